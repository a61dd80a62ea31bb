"""`TrainState`, the one record of a run's progress."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

# Metrics whose names show which value is the best; for others, `mode` must be given.
LOWEST_IS_BEST = ("loss",)
HIGHEST_IS_BEST = ("acc", "accuracy", "auc", "f1", "iou", "map", "miou", "precision", "recall")


@dataclass
class RunningSums:
    """Sums over the samples since the last log line, and the learning rate of the newest step.

    totals: the numbers of each metric, by name: for "loss" the sum of each step's mean loss times
    its samples, and the number of samples; for other metrics see `paddle_mnist.metrics.sums`.
    """

    samples: int = 0
    lr: float = 0.0
    totals: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class TrainState:
    """The progress of a run. Every manifest holds it as JSON; no path is parsed for it.

    epoch: the current epoch, 0-based, until it is evaluated; then the next one.
    position: batches of this epoch that are done.
    step: optimizer steps since the run began.
    samples: samples seen since the run began.
    train_seconds: time spent in training steps, summed over all starts of the run.
    running_sums: sums since the last log line; a resumed run continues them and writes the same
        line. During training they lag behind the steps until `synchronize`.
    metrics: the results of an evaluation of the current weights, by tag; empty without one.
    scores: [step, value of `monitor`] of every evaluation of the run; None if it is not finite.
    monitor, mode: the metric by which evaluations are compared, and whether the highest value is
        the best, "max", or the lowest, "min".

    To save, compare or copy a state, use `as_dict`, `copy` or `pickle`: all of them synchronize
    first.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    running_sums: RunningSums = field(default_factory=RunningSums)
    metrics: dict[str, float] = field(default_factory=dict)
    scores: list[list[Any]] = field(default_factory=list)
    monitor: str = "valid/acc"
    mode: str = "max"

    def __post_init__(self) -> None:
        self._add_pending: Optional[Callable[[], None]] = None

    def attach(self, add_pending: Callable[[], None]) -> None:
        """Call `add_pending` from now on in `synchronize`."""
        self._add_pending = add_pending

    def synchronize(self) -> None:
        """Bring `running_sums` up to date: add the results that steps left on the device.

        Raises DivergedError if the loss of such a step is not finite.
        """
        if self._add_pending:
            self._add_pending()

    def count_step(self, samples: int, in_epoch: bool = True) -> None:
        """Count one optimizer step.

        samples: in the step. in_epoch: whether it is a batch of the current epoch.
        """
        self.metrics = {}  # they belong to the weights before this step
        self.position += in_epoch
        self.step += 1
        self.samples += samples

    def record_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of the current weights; they replace earlier ones of the same step."""
        self.metrics = dict(metrics)
        if self.monitor in metrics:
            value = metrics[self.monitor]
            earlier = [score for score in self.scores if score[0] < self.step]
            self.scores = [*earlier, [self.step, _or_none(value)]]

    def best_scores(self, count: int) -> list[list[Any]]:
        """Return [step, value] of the best evaluations, at most `count`, the best one first.

        Of equal values, the earlier counts as better; NaN is never included.
        """
        sign = -1 if self.mode == "max" else 1
        scores = [score for score in self.scores if score[1] is not None]
        return sorted(scores, key=lambda score: sign * score[1])[:count]

    @property
    def best(self) -> Optional[list[Any]]:
        """[step, value] of the best evaluation; None before any."""
        return next(iter(self.best_scores(1)), None)

    def evaluations_without_improvement(self, min_delta: float = 0.0) -> int:
        """Return the number of evaluations since the last improvement; of all if none has a value.

        min_delta: a value is an improvement if it beats the last improvement by more than this.
        """
        sign, reference, count = (1 if self.mode == "max" else -1), -math.inf, 0
        for _, value in self.scores:
            count += 1
            if value is not None and sign * value - reference > min_delta:
                reference, count = sign * value, 0
        return count

    def end_epoch(self) -> None:
        self.epoch += 1
        self.position = 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, which share nothing with the state. Synchronizes first.

        Raises DivergedError.
        """
        self.synchronize()
        values = asdict(self)
        values["metrics"] = {tag: _or_none(value) for tag, value in self.metrics.items()}
        totals = self.running_sums.totals
        values["running_sums"]["totals"] = {tag: [*map(_or_none, totals[tag])] for tag in totals}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainState":
        """Return the state with the values that `as_dict` gave."""
        metrics = {tag: _or_nan(value) for tag, value in values["metrics"].items()}
        sums = RunningSums(**values["running_sums"])
        sums.totals = {name: [*map(_or_nan, row)] for name, row in sums.totals.items()}
        return cls(**{**values, "metrics": metrics, "running_sums": sums})

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainState.from_dict, (self.as_dict(),)  # for copies and pickles


def _or_none(value: float) -> Optional[float]:
    """Return a number, or None for one that JSON does not have: NaN or infinity."""
    return value if math.isfinite(value) else None


def _or_nan(value: Optional[float]) -> float:
    return math.nan if value is None else value

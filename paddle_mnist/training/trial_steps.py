"""Train a few steps on the first batches as a trial, without writing anything."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

import paddle

from paddle_mnist.data.sampler import Shard
from paddle_mnist.data.structures import mapped
from paddle_mnist.errors import DivergedError
from paddle_mnist.hidden_state.plain_data import digest_of
from paddle_mnist.interfaces import Loader, Observer, View, Writer, as_number
from paddle_mnist.nn.ema import NO_AVERAGE
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.loop import TrainingLoop
from paddle_mnist.training.parts import new_loop, new_state

CORE = ("metrics", "weights", "average")  # entries of an outcome that may never differ

MOST_BATCHES = 4

Outcome = dict[str, Any]  # of some steps: metrics, and digests of all state, by name


class TrialSteps:
    """Trains the first steps of a run as a trial, without writing anything.

    reads_again: (attribute) whether to read the batches again each time, because the data depends
        on state that the steps change.
    """

    def __init__(self, training: Training):
        self.training, self.reads_again = training, False
        self._batches: list[Any] = []
        self._evaluated: dict[str, list[Any]] = {}

    def _read(self, count: int) -> list[Any]:
        """Return the first batches of the training data, and read the first of each split."""
        if self.reads_again or len(self._batches) < count:
            self._batches = self.training.loader.first_batches(count)
            self._evaluated = {
                split: data.first_batches(1)
                for split, data in self.training.evaluator.datasets.items()
            }
        return self._batches

    def train(self, start: int, count: int, ends_epoch: bool = True) -> Outcome:
        """Train on batches of the first epoch; return the outcome.

        start: the number of the first batch and step, from 0. count: the number of batches; after
        MOST_BATCHES, the first ones are repeated. ends_epoch: whether to evaluate a batch of each
        split and end the epoch.
        """
        batches = self._read(min(start + count, MOST_BATCHES))
        # A OneCycleLR raises beyond its last step, which a trial of a short run would pass.
        end = getattr(self.training.schedule.scheduler, "total_steps", start + count)
        batches = [batches[number % len(batches)] for number in range(min(start + count, end))]
        metrics: list[str] = []
        reported: Outcome = {}
        loop = self._loop(start, metrics, reported)
        try:
            loop.train_epoch(_Batches(self.training.loader, batches), 0, start)
            if ends_epoch:
                loop.end_epoch()
        except DivergedError as error:  # not an error here: the run itself may not diverge
            metrics.append(str(error))
        model, average = self.training.model, self.training.average
        outcome = {"metrics": metrics, "weights": digest_of(model.state_dict())}
        if average is not NO_AVERAGE:
            outcome["average"] = digest_of(average.weights(model))
        return {**reported, **self.training.extra.digests(), **outcome}

    def _loop(self, start: int, metrics: list[str], reported: Outcome) -> TrainingLoop:
        """Return a loop like the run's own, but one that writes nothing."""
        training = self.training
        evaluated = {
            split: _Batches(training.evaluator.datasets[split], batches)
            for split, batches in self._evaluated.items()
        }
        return new_loop(
            training,
            new_state(training.arguments, step=start),
            _Metrics(metrics),
            evaluator=EpochEvaluator(training.step, evaluated, world=training.world),
            observers=[_Listener(callback, reported) for callback in training.callbacks],
            log_every=1,
        )


class _Batches(Loader):
    """Yields copies of some batches of another loader, because steps may change them."""

    def __init__(self, loader: Loader, batches: Sequence[Any]):
        self._loader, self._batches = loader, batches
        self.is_indexed = loader.is_indexed

    @property
    def steps_per_epoch(self) -> Optional[int]:
        return self._loader.steps_per_epoch

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Any]:
        return map(_copied_batch, self._batches[start::stride])

    def sample_name(self, epoch: int, number: int, shard: int, row: int) -> str:
        return self._loader.sample_name(epoch, number, shard, row)


def _copied_batch(batch: Any) -> Any:
    if isinstance(batch, list) and batch and isinstance(batch[0], Shard):
        return [replace(shard, batch=_copied_batch(shard.batch)) for shard in batch]
    return mapped(batch, lambda leaf: leaf.clone() if isinstance(leaf, paddle.Tensor) else leaf)


class _Metrics(Writer):
    """Adds metrics, except speeds, as text to a list."""

    def __init__(self, texts: list[str]):
        self._texts = texts

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        measured = {tag: value for tag, value in values.items() if not tag.startswith("speed/")}
        self._texts.append(repr(sorted(measured.items())))


class _Listener(Observer):
    """Calls a callback, and keeps the metrics that it returns."""

    def __init__(self, callback: Observer, reported: Outcome):
        self._callback, self._reported = callback, reported

    def on_epoch_start(self, view: View) -> None:
        self._callback.on_epoch_start(view)

    def recorded_layers(self, step: int) -> Collection[str]:
        return self._callback.recorded_layers(step)

    def after_step(self, view: View) -> None:
        self._keep(self._callback.after_step(view))

    def after_epoch(self, view: View) -> None:
        self._keep(self._callback.after_epoch(view))

    def _keep(self, values: Optional[Mapping[str, Any]]) -> None:
        name = type(self._callback).__name__
        for tag, value in (values or {}).items():
            self._reported.setdefault(tag, []).append(as_number(value, tag, name))

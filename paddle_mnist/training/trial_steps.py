"""Train a few steps on the first batches as a trial, without writing anything."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from paddle_mnist.errors import DivergedError
from paddle_mnist.hidden_state.plain_data import digest_of
from paddle_mnist.interfaces import Loader
from paddle_mnist.nn.ema import NO_AVERAGE
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.parts import new_loop, new_state
from paddle_mnist.training.witness import Witness

MOST_BATCHES = 5  # after these, the first one comes again

# What steps have computed, by name: what a witness compares, metrics, and digests of all state.
Outcome = dict[str, Any]
STEPS, WEIGHTS, AVERAGE, GRADIENTS = "steps", "weights", "average", "gradients"


def train_trial(training: Training, start: int, count: int, ends_epoch: bool = True) -> Outcome:
    """Train steps of the first epoch, end the epoch if that is wanted, and return the outcome.

    start: the number of the first batch and step, from 0. count: of steps. At the end of the epoch,
    one batch of each split is evaluated. Without an end, the outcome has no digests.
    """
    outcome: Outcome = {STEPS: []}
    record, schedule = _Record(outcome), training.schedule
    # A OneCycleLR raises beyond its last rate, which a trial of a short run would pass.
    rates = getattr(schedule.scheduler, "total_steps", sys.maxsize)
    left = rates - getattr(schedule.scheduler, "last_epoch", 0)
    if schedule.every == "step":
        count = min(count, left)
    datasets = training.evaluator.datasets.items()
    splits = {split: _FirstBatches(data, end=1) for split, data in datasets}
    loop = new_loop(
        training,
        new_state(training.arguments, step=start),
        record,
        evaluator=EpochEvaluator(training.step, splits, world=training.world),
        observers=training.callbacks,
        log_every=1,
        witness=record,
    )
    try:
        loop.train_epoch(_FirstBatches(training.loader, end=start + count), 0, start)
        if ends_epoch:  # at its end, they may be used
            outcome[GRADIENTS] = training.extra.gradient_digests()
        if ends_epoch and (left or schedule.every == "step"):
            loop.end_epoch()
    except DivergedError as error:  # not an error here: the run itself may not diverge
        outcome[STEPS].append(str(error))
    if not ends_epoch:
        return outcome
    outcome |= training.extra.digests()
    outcome[WEIGHTS] = digest_of(training.model.state_dict())
    if training.average is not NO_AVERAGE:
        outcome[AVERAGE] = digest_of(training.average.weights(training.model))
    return outcome


class _FirstBatches(Loader):
    """The batches of another loader before number `end`, read anew in each epoch."""

    def __init__(self, loader: Loader, end: int):
        self._loader, self._end = loader, end
        self.is_indexed = loader.is_indexed

    @property
    def steps_per_epoch(self) -> Optional[int]:
        return self._loader.steps_per_epoch

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Any]:
        batches = self._loader.first_batches(min(self._end, MOST_BATCHES))
        return (batches[number % len(batches)] for number in range(start, self._end, stride))

    def sample_name(self, epoch: int, number: int, shard: int, row: int) -> str:
        return self._loader.sample_name(epoch, number, shard, row)


class _Record(Witness):
    """Keeps what a witness compares, and by its tag what else is written, except speeds."""

    def __init__(self, outcome: Outcome):
        self._outcome = outcome

    def after_step(self, step: int, loss: Any, rate: float, buffers: Any) -> None:
        self._outcome[STEPS].append(f"{step} {loss.item()!r} {rate!r}")

    def after_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._outcome[STEPS].append(f"{step} {sorted(metrics.items())!r}")

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            if not tag.startswith("speed/"):
                self._outcome.setdefault(tag, []).append(repr(value))

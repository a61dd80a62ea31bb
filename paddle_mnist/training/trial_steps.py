"""`TrialSteps`: steps that are trained on trial, on the first batches, without writing anything."""

import copy
import functools
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import paddle

from paddle_mnist.checkpoint.places import find
from paddle_mnist.checkpoint.plain_data import add_to_digest, digest_of, is_plain
from paddle_mnist.checkpoint.reachable import Path
from paddle_mnist.data.collate import mapped
from paddle_mnist.data.loader import Shard, first_batches
from paddle_mnist.data.seeding import reseed
from paddle_mnist.errors import DivergedError
from paddle_mnist.interfaces import Observer, View, Writer, as_number
from paddle_mnist.nn.ema import NO_AVERAGE
from paddle_mnist.progress import TrainState
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.job import TrainingJob
from paddle_mnist.training.trainer import Trainer

STEPS = 2


@dataclass
class Outcome:
    """The outcome of steps.

    digest: of the weights, the metrics and the further state. reported: what may depend on the
    time, such as metrics that callbacks return, by name.
    """

    digest: str
    reported: Mapping[str, Any]

    def differs_from(self, other: "Outcome", names: Collection[str]) -> bool:
        """Return whether the outcomes differ. names: the entries of `reported` to compare."""
        is_other = any(self.reported.get(name) != other.reported.get(name) for name in names)
        return is_other or self.digest != other.digest

    def shared_names(self, other: "Outcome") -> list[str]:
        """Return the names of the entries of `reported` that are equal in both outcomes."""
        values = self.reported
        return [name for name in values if values[name] == other.reported.get(name)]


class TrialSteps:
    """Trains the first steps of a job, evaluates a batch of each split, and ends the epoch.

    reads_again: (attribute) whether to read the batches again each time, because the data depend on
        what is tried.
    """

    def __init__(self, job: TrainingJob):
        self.job, self.reads_again, self._count = job, False, STEPS
        self.read(STEPS)

    def read(self, count: Optional[int] = None) -> None:
        """Read batches of the training data, and the first batch of each split.

        count: how many batches, from now on. Of more than `STEPS`, the next come first, and the
        numbers of the steps and their seeds are those of the next steps.
        """
        self._count = count or self._count
        batches = first_batches(self.job.parts.loader, self._count)
        # The next batches come first. The effect of a maximum, for example, shows only on these;
        # that of values kept for each sample only on batches seen before.
        self._batches = [*batches[STEPS:], *batches[:STEPS]]
        self._evaluated = {
            split: first_batches(data, 1) for split, data in self.job.evaluator.datasets.items()
        }

    def outcome(self, watched: Mapping[str, Path] = {}) -> Outcome:
        """Train, and return what came of it. watched: paths of values to report, by name."""
        digest, reported = self.train()
        job = self.job
        add_to_digest(digest, job.parts.model.state_dict())
        if job.parts.average is not NO_AVERAGE:
            add_to_digest(digest, job.parts.average.weights(job.parts.model))
        add_to_digest(digest, job.parts.further.digests())
        roots = job.parts.further.roots
        for name, path in watched.items():
            value = find(roots, path)
            reported[f"value of {name}"] = digest_of(value) if is_plain(value) else None
        return Outcome(digest.hexdigest(), reported)

    def train(self, steps: Optional[int] = None) -> tuple[Any, dict[str, Any]]:
        """Train; return a digest of the metrics, and those that callbacks returned.

        steps: how many, without ending the epoch; by default all that there are batches for.
        """
        if self.reads_again:
            self.read()
        digest = hashlib.sha256()
        reported: dict[str, Any] = {}
        trainer = self._trainer(digest, reported)
        try:
            trainer.train_epoch(_with_batches(self.job.parts.loader, self._batches[:steps]), 0)
            if steps is None:
                trainer.end_epoch()
        except DivergedError as error:  # not an error yet: the training itself may not diverge
            digest.update(str(error).encode())
        return digest, reported

    def _trainer(self, digest: Any, reported: dict[str, Any]) -> Trainer:
        """Return a trainer like that of the training, which writes nothing."""
        job, parts = self.job, self.job.parts
        evaluated = {
            split: _with_batches(job.evaluator.datasets[split], batches)
            for split, batches in self._evaluated.items()
        }
        return Trainer(
            "",
            parts.model,
            parts.optimizer,
            step=job.step,
            metric_examples=job.metric_examples,
            schedule=parts.schedule,
            average=parts.average,
            evaluator=EpochEvaluator(job.step, evaluated, world=job.world),
            writer=_Digester(digest),
            observers=[_Listener(callback, reported) for callback in job.callbacks],
            state=job.new_state(step=STEPS * (self._count > STEPS)),
            log_every=1,
            reseed=functools.partial(reseed, job.arguments.seed),
            exchange=job.gradient_exchange(),
        )


def _with_batches(loader: Any, batches: Sequence[Any]) -> Any:
    """Return a loader of some batches only; copies, because steps may change them."""

    def epoch(epoch: int, start: int = 0, stride: int = 1) -> Iterator[Any]:
        return map(_copied_batch, batches[start::stride])

    other = copy.copy(loader)
    other.epoch = epoch
    return other


def _copied_batch(batch: Any) -> Any:
    if isinstance(batch, list) and batch and isinstance(batch[0], Shard):
        return [replace(shard, batch=_copied_batch(shard.batch)) for shard in batch]
    return mapped(batch, lambda leaf: leaf.clone() if isinstance(leaf, paddle.Tensor) else leaf)


class _Digester(Writer):
    """Adds metrics to a digest, except times."""

    def __init__(self, digest: Any):
        self._digest = digest

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        measured = {tag: value for tag, value in values.items() if not tag.startswith("speed/")}
        self._digest.update(repr(sorted(measured.items())).encode())


class _Listener(Observer):
    """Calls a callback, and keeps the metrics that it returns, which may be times."""

    def __init__(self, callback: Observer, reported: dict[str, Any]):
        self._callback, self._reported = callback, reported

    def on_epoch_start(self, view: View) -> None:
        self._callback.on_epoch_start(view)

    def after_step(self, view: View) -> None:
        self._keep(self._callback.after_step(view))

    def after_epoch(self, view: View) -> None:
        self._keep(self._callback.after_epoch(view))

    def _keep(self, values: Optional[Mapping[str, Any]]) -> None:
        name = type(self._callback).__name__
        for tag, value in (values or {}).items():
            self._reported.setdefault(tag, []).append(as_number(value, tag, name))

"""Rehearse a resume before a training starts, to find the state that checkpoints would lose.

The rehearsal trains two steps, evaluates a batch of each split and calls the callbacks. Then it
restores the beginning with the code that a resume uses, and examines the values that this does not
bring back.
"""

import contextlib
import copy
import functools
import hashlib
import itertools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint.checkpointer import NO_CHECKPOINTER
from paddle_mnist.checkpoint.further_state import DATA_ROOTS, optimizer_parameters
from paddle_mnist.checkpoint.plain_data import GENERATORS, add_to_digest, copied, equal
from paddle_mnist.checkpoint.reachable import Path, assign, describe
from paddle_mnist.checkpoint.snapshot import (
    Change,
    Snapshot,
    find,
    put,
    replace_items,
    replaceable,
    unit,
    with_own_items,
)
from paddle_mnist.data.collate import leaves, mapped
from paddle_mnist.data.loader import Shard, epoch_batches, shards_of
from paddle_mnist.data.sample_loader import can_be_repeated
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.data.workers import map_in_workers
from paddle_mnist.errors import ConfigError, DivergedError, PeerError, StoppedError
from paddle_mnist.nn.seeding import reseed
from paddle_mnist.state import Observer, TrainState, View, as_number
from paddle_mnist.training.beginning import Beginning, data_snapshot
from paddle_mnist.training.evaluator import NoEvaluator
from paddle_mnist.training.job import TrainingJob
from paddle_mnist.training.rehearsing import rehearsing
from paddle_mnist.training.step_evaluator import StepEvaluator
from paddle_mnist.training.trainer import Trainer

log = logging.getLogger("paddle_mnist")

STEPS = 2
MOST_ATTEMPTS = 32  # to leave candidates out
MOST_NAMES = 8  # in a line of the log
REMEDY = (
    'pass state={"name": object} to fit, where the object holds the value and has state_dict and '
    "set_state_dict"
)
CLEAR = "call clear_grad() before the backward pass that adds to it"


def rehearse(job: TrainingJob) -> None:
    """Find the state that checkpoints would lose, and have them save it or refuse it.

    Afterwards, everything is as before: the weights, the attributes of callbacks, the generators
    of random numbers. All processes rehearse together. Data that can be read only once are not
    rehearsed.

    Raises ConfigError for state that cannot be saved, for samples that differ when they are read
    again, and for state that differs between processes.
    """
    loader, data = job.parts.loader, job.parts.further.data
    if not can_be_repeated(loader):
        log.info("the data can be read only once, so the resume is not rehearsed")
        return
    with rehearsing(), generators_restored(), _put_back(data_snapshot(data)):
        _check_samples(loader, data, "the first batch")
        for split, valid in _splits(job).items():
            _check_samples(valid, data, f"the first batch of {split}")
        _Rehearsal(job).run()


@dataclass
class _Candidate:
    """A value that the steps have changed and that the restored checkpoint has not brought back.

    value: the value after the steps; a copy if it is plain data and can be saved.
    parameter: for a gradient, the parameter to which it belongs.
    """

    change: Change
    path: Path
    value: Any
    is_plain: bool
    parameter: Optional[paddle.Tensor] = None

    @property
    def name(self) -> str:
        return describe(self.path)

    @property
    def is_counter(self) -> bool:
        return isinstance(self.value, (int, float, np.number)) and self.path[0][1] != "train"

    def apply(self, roots: Mapping[str, Any]) -> None:
        """Set the value that it had after the steps."""
        if self.parameter is not None:
            self.parameter.grad = self.value.clone()
        elif self.is_plain:
            put(roots, self.path, self.value)
        elif not replace_items(find(roots, self.path), self.value):
            assign(find(roots, self.path[:-1]), self.path[-1], with_own_items(self.value))

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        if self.is_plain:
            add_to_digest(digest, self.value)
        return digest.hexdigest()


@dataclass
class _Outcome:
    """The outcome of steps: a digest, and the metrics that callbacks returned, by tag."""

    digest: str
    reported: Mapping[str, Sequence[float]]

    def differs_from(self, other: "_Outcome", tags: Collection[str]) -> bool:
        """Return whether the outcomes differ. tags: the metrics of callbacks to compare."""
        is_other = any(self.reported.get(tag) != other.reported.get(tag) for tag in tags)
        return is_other or self.digest != other.digest


class _Rehearsal:
    """The rehearsal of a job on its first batches."""

    def __init__(self, job: TrainingJob):
        self.job, self.further, self.world = job, job.parts.further, job.world
        self.steps = STEPS
        self._read_data()
        self.reads_again = False  # whether to read the data before each play
        self.roots = self.further.roots
        self.beginning = Beginning(job.parts.model, self.further, job.parts.average)

    def run(self) -> None:
        """Rehearse, and choose the values to save. Raises ConfigError."""
        first = self._play()
        candidates = self._restore()
        # Two steps may leave a value as they found it, such as a switch; one step does not.
        self._train(steps=1)
        candidates = self._agreed({**self._restore(), **candidates})
        again = self._play()
        self.beginning.put_back()
        self._check_repeated(first, again)
        stable = [tag for tag in first.reported if first.reported[tag] == again.reported.get(tag)]
        relevant = self._relevant(candidates, stable) if candidates else []
        for candidate in relevant:
            if not candidate.is_plain:
                change = candidate.change
                raise ConfigError(
                    f"a step changes {describe(change.path)} from {change.before} to {change.now}, "
                    "and later steps depend on it, but a checkpoint cannot hold it; "
                    f"{CLEAR if candidate.parameter is not None else REMEDY}"
                )
        self._require_same_everywhere({one.name: one.digest for one in relevant})
        self._say(candidates, relevant)

    def _restore(self) -> dict[str, _Candidate]:
        """Restore everything, and return the values that a checkpoint would not have restored.

        Raises ConfigError if what a checkpoint holds differs between processes.
        """
        if self.world.size > 1:
            self._require_same_everywhere(self.further.digests())
        self.beginning.restore_saved()
        candidates = self._candidates()
        self.beginning.put_back()
        return candidates

    def _read_data(self) -> None:
        self.batches = _read(self.job.parts.loader, self.steps)
        # The next batches come first. The effect of a maximum, for example, shows only on these;
        # that of values kept for each sample only on batches seen before.
        self.batches = [*self.batches[STEPS:], *self.batches[:STEPS]]
        self.evaluated = {split: _read(data, 1) for split, data in _splits(self.job).items()}

    def _play(self, candidates: Collection[_Candidate] = ()) -> _Outcome:
        """Train steps, end the epoch, and return the outcome; see `_train`."""
        digest, reported = self._train(candidates)
        parts = self.job.parts
        add_to_digest(digest, parts.model.state_dict())
        if self.beginning.has_average:
            add_to_digest(digest, parts.average.weights(parts.model))
        add_to_digest(digest, self.further.digests())
        return _Outcome(digest.hexdigest(), reported)

    def _train(
        self, candidates: Collection[_Candidate] = (), steps: Optional[int] = None
    ) -> tuple[Any, dict[str, list]]:
        """Train steps and end the epoch; return a digest of the metrics, and the callbacks'.

        candidates: the values that begin as the steps have left them, not as they were. steps: by
            default as many as there are batches.
        """
        for candidate in candidates:
            candidate.apply(self.roots)
        if self.reads_again:
            self._read_data()
        digest, reported = hashlib.sha256(), {}
        trainer = self._trainer(digest, reported)
        try:
            trainer.train_epoch(_with_batches(self.job.parts.loader, self.batches[:steps]), 0)
            trainer.end_epoch()
        except DivergedError as error:  # not an error yet: the training itself may not diverge
            digest.update(str(error).encode())
        return digest, reported

    def _trainer(self, digest: Any, reported: dict[str, list]) -> Trainer:
        """Return a trainer like that of the training, which writes nothing."""
        job, parts, options = self.job, self.job.parts, self.job.options
        evaluator = NoEvaluator()
        if self.evaluated:
            evaluator = copy.copy(job.evaluator)
            evaluator.every_epochs = 1
            evaluator.datasets = {
                split: _with_batches(job.evaluator.datasets[split], batches)
                for split, batches in self.evaluated.items()
            }
        return Trainer(
            "",
            parts.model,
            parts.optimizer,
            step=job.step,
            metric_functions=job.metric_functions,
            schedule=parts.schedule,
            average=parts.average,
            evaluator=evaluator,
            checkpointer=NO_CHECKPOINTER,
            writer=_Digester(digest),
            observers=[_Listener(callback, reported) for callback in job.callbacks],
            state=TrainState(monitor=options.monitor, mode=options.mode),
            log_every=1,
            reseed=functools.partial(reseed, options.seed),
            exchange=job.gradient_exchange(),
        )

    def _candidates(self) -> dict[str, _Candidate]:
        """Return the values that the restored checkpoint has not brought back, by name."""
        candidates = {}
        for change in self.beginning.changes():
            if self.further.is_saved(change.path):
                continue
            where = unit(self.roots, change.path, self.further.known)
            path = where or replaceable(self.roots, change.path)
            value = find(self.roots, path)
            self.reads_again |= path[0][1] in DATA_ROOTS
            value = copied(value) if where else with_own_items(value)
            candidates[describe(path)] = _Candidate(change, path, value, is_plain=where is not None)
        for name, parameter in self._others_parameters():
            gradient = parameter.grad
            if gradient is not None and not gradient.is_selected_rows() and gradient.any():
                path = (("root", f"the gradient of {name}"),)
                change = Change(path, "nothing", "a gradient that is not 0")
                candidates[describe(path)] = _Candidate(
                    change, path, gradient.detach().clone(), False, parameter
                )
        return candidates

    def _others_parameters(self) -> Iterator[tuple[str, paddle.Tensor]]:
        """Yield the names and parameters whose gradients the trainer does not clear."""
        cleared = {id(parameter) for parameter in optimizer_parameters(self.job.parts.optimizer)}
        named = {**self.further.parameters, **self.further.others_tensors()}
        for part_name, part in self.beginning.parts.items():
            if isinstance(part, nn.Layer):
                named.update((f"{part_name}.{name}", p) for name, p in part.named_parameters())
        return ((name, p) for name, p in named.items() if id(p) not in cleared)

    def _agreed(self, candidates: Mapping[str, _Candidate]) -> list[Optional[_Candidate]]:
        """Return the candidates of all processes in one order; None for those of others only."""
        gathered = self.world.all_gather_objects(list(candidates))
        self.reads_again = any(self.world.all_gather_objects(self.reads_again))
        names = sorted({name for names in gathered for name in names})
        return [candidates.get(name) for name in names]

    def _check_repeated(self, first: _Outcome, again: _Outcome) -> None:
        """Raise ConfigError if the same steps from the same state gave another result."""
        if not any(self.world.all_gather_objects(first.digest != again.digest)):
            return
        if self.job.device.startswith("gpu"):
            log.info(
                "repeating the first steps gave different bits on this device, so a resumed run "
                "will not end with the same bits; deterministic=True selects algorithms that do"
            )
            return
        hidden = [f"the position of the iterator {name}" for name in self.beginning.iterators()]
        hidden += [f"{name}, which is too large to be examined" for name in self.beginning.skipped]
        known = f", such as {_listed(hidden)}" if hidden else ""
        raise ConfigError(
            "repeating the first steps from the same state gave another result, so they depend on "
            f"state that fit cannot see{known}; expected steps that depend only on the batch and "
            "on values that objects hold; take data from train and random numbers from random, "
            f"numpy.random or paddle, or {REMEDY}"
        )

    def _relevant(
        self, candidates: Sequence[Optional[_Candidate]], tags: Collection[str]
    ) -> list[_Candidate]:
        """Return the candidates on which the outcome of the next steps depends.

        They are sufficient: if only these are as the steps have left them, as after a resume, the
        outcome is the same as with all candidates.
        """
        self.steps = 2 * STEPS
        self._read_data()
        relevant: list[Optional[_Candidate]] = []
        while True:
            self.further.values = [one.path for one in relevant if one and one.is_plain]
            unbroken = self._outcome_with(candidates)
            self._check_repeated(unbroken, self._outcome_with(candidates))
            if self._is_enough(relevant, unbroken, tags):
                break
            relevant += self._needed(candidates, relevant, unbroken, tags)
        # Save counters in any case: every hundredth step, for example, may read them.
        counters = [one for one in candidates if one not in relevant and one and one.is_counter]
        for some in [counters, *([one] for one in counters)]:
            if some and self._is_enough([*relevant, *some], unbroken, tags):
                relevant += [one for one in some if one not in relevant]
        relevant = [one for one in relevant if one]
        self.further.values = [one.path for one in relevant if one.is_plain]
        return relevant

    def _needed(
        self,
        candidates: Sequence[Optional[_Candidate]],
        relevant: Sequence[Optional[_Candidate]],
        unbroken: _Outcome,
        tags: Collection[str],
    ) -> list[Optional[_Candidate]]:
        """Return a small sufficient set of further candidates, of which none can be left out.

        This is the algorithm of A. Zeller and R. Hildebrandt, "Simplifying and Isolating
        Failure-Inducing Input", 2002. After too many attempts, it keeps what remains.
        """
        rest = [one for one in candidates if one not in relevant]
        # First leave out values that cannot be saved.
        rest.sort(key=lambda one: one is not None and one.is_plain)
        attempts = 0
        for size in _halved(len(rest)):
            start = 0
            while start < len(rest) and attempts < MOST_ATTEMPTS:
                attempts += 1
                fewer = rest[:start] + rest[start + size :]
                if self._is_enough([*relevant, *fewer], unbroken, tags):
                    rest = fewer
                else:
                    start += size
        return rest

    def _is_enough(
        self,
        candidates: Sequence[Optional[_Candidate]],
        unbroken: _Outcome,
        tags: Collection[str],
    ) -> bool:
        """Return whether these candidates alone give the outcome of an unbroken training."""
        try:
            is_other = self._outcome_with(candidates).differs_from(unbroken, tags)
        except (PeerError, StoppedError):
            raise
        except Exception:  # a step may fail if only some of the values that belong together are set
            is_other = True
        return not any(self.world.all_gather_objects(is_other))

    def _outcome_with(self, candidates: Sequence[Optional[_Candidate]]) -> _Outcome:
        """Play with some values as the steps have left them, and restore everything."""
        with self.beginning.kept():
            return self._play([one for one in candidates if one])

    def _require_same_everywhere(self, digests: Mapping[str, str]) -> None:
        """Raise ConfigError for state that differs between processes: only one of them saves it."""
        everywhere = self.world.all_gather_objects(dict(digests))
        names = [name for name in digests if len({found.get(name) for found in everywhere}) > 1]
        if names:
            raise ConfigError(
                f"{', '.join(names)}: after two steps, the values differ between the processes, "
                "because each has seen other samples and only the model's gradients are added up; "
                "expected state that does not depend on the samples, or one process"
            )

    def _say(
        self, candidates: Sequence[Optional[_Candidate]], relevant: Sequence[_Candidate]
    ) -> None:
        """Log the values that are saved, that are not saved, and that were not examined."""
        saved = [one.name for one in relevant]
        others = [one.name for one in candidates if one and one not in relevant]
        if saved:
            log.info("checkpoints hold what the steps depend on: %s", _listed(saved))
            if self.job.parts.loader.passes_per_step * self.world.size > 1:
                log.warning(
                    "each pass changes %s, so the result depends on the number of shards and "
                    "processes",
                    _listed(saved),
                )
        if others:
            log.info("not saved, since the steps do not depend on it: %s", _listed(others))
        if self.beginning.skipped:
            log.info("too large to be examined: %s", _listed(self.beginning.skipped))


# ------------------------------------------------------------------ data


def _read(loader: Any, count: int) -> list[Any]:
    """Return the first batches of the first epoch."""
    with contextlib.closing(epoch_batches(loader, 0)) as batches:
        return list(itertools.islice(batches, count))


def _splits(job: TrainingJob) -> Mapping[str, Any]:
    return job.evaluator.datasets if isinstance(job.evaluator, StepEvaluator) else {}


@contextlib.contextmanager
def _put_back(snapshot: Snapshot) -> Iterator[None]:
    try:
        yield
    finally:
        snapshot.put_back()


def _check_samples(loader: Any, data: Mapping[str, Any], what: str) -> None:
    """Raise ConfigError if the first batch differs when it is read again."""
    what_differs = functools.partial(_what_differs, loader, data)
    # In a worker, because workers that are forked later must not share files that it opens.
    in_worker = functools.partial(map_in_workers, num_workers=1)
    map_once = in_worker if getattr(loader, "num_workers", 0) else map
    (differs,) = map_once(what_differs, iter([[what]]))
    if differs:
        raise ConfigError(
            f"{differs}, so a resumed run and workers would see other samples; expected samples "
            "that depend only on their index and on random numbers from random, numpy.random or "
            "paddle, which are seeded for each sample"
        )


def _what_differs(loader: Any, data: Mapping[str, Any], what: Sequence[str]) -> str:
    """Read the first batch twice; return what differs, or "" if nothing does."""

    def read() -> Any:
        return loader.first_batch() if hasattr(loader, "first_batch") else _read(loader, 1)[0]

    first = read()
    before = data_snapshot(data)
    is_same = _is_same_batch(first, read())
    changes = before.changes()
    drawn = [change for change in changes if isinstance(find(data, change.path), GENERATORS)]
    if is_same and not drawn:
        return ""
    names = _listed([describe(one.path) for one in drawn or changes] or before.iterators())
    change = "draws new numbers" if drawn else "changes"
    found = f": {names} {change} with each reading" if names else ""
    return f"{what[0]} differs when it is read again{found}"


def _is_same_batch(one: Any, other: Any) -> bool:
    first, second = (
        [leaf for shard in shards_of(batch) for leaf in leaves(shard.batch)]
        for batch in (one, other)
    )
    return len(first) == len(second) and all(map(equal, first, second))


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


# ------------------------------------------------------------------ writing nothing


class _Digester:
    """Adds metrics to a digest, except times."""

    def __init__(self, digest: Any):
        self._digest = digest

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        measured = {tag: value for tag, value in values.items() if not tag.startswith("speed/")}
        self._digest.update(repr(sorted(measured.items())).encode())

    def advance(self, state: TrainState) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _Listener(Observer):
    """Calls a callback, and keeps the metrics that it returns, which may be times."""

    def __init__(self, callback: Observer, reported: dict[str, list]):
        self._callback, self._reported = callback, reported

    def after_step(self, view: View) -> None:
        self._keep(self._callback.after_step(view))

    def after_epoch(self, view: View) -> None:
        self._keep(self._callback.after_epoch(view))

    def _keep(self, values: Optional[Mapping[str, Any]]) -> None:
        name = type(self._callback).__name__
        for tag, value in (values or {}).items():
            self._reported.setdefault(tag, []).append(as_number(value, tag, name))


def _halved(size: int) -> Iterator[int]:
    """Yield half of a size, half of that, and so on, down to 1."""
    while size > 1:
        size //= 2
        yield size
    if not size or size == 1:
        yield 1


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more

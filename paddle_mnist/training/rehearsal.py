"""Rehearse a resume before the first step, to find state that a checkpoint would lose.

A list of what a training may hide never ends, so the rehearsal compares results:

1. Copy the initial state: the weights, and every value that objects hold. Train one step, and two
   more if it has changed anything besides the weights and the optimizer: some state first changes
   in the second step, and an odd number shows a switch that two steps turn back. Train others, up
   to six, until gradients that steps leave in other nets are there, as far as some steps use them.
2. Make a checkpoint in memory. It holds the changed values, as far as they can be saved.
3. Train on: one step after one, else three. End the epoch, and keep the outcome:
   losses, metrics, digests of the weights and of other state. Of the three, some train new batches,
   on which a maximum acts, and one the first batch again, on which values kept for a sample act.
4. Restore the initial state, which a restarted program has, load the checkpoint with the code of a
   resume, and repeat the steps of 3.
5. If the outcome differs, the steps depend on something that no checkpoint holds: ConfigError.

In the end, the initial state is restored.
"""

import contextlib
import logging
import os
import tempfile
from collections import UserDict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Optional, cast

from paddle_mnist.checkpoint.contents import checkpoint_files, optimizer_entries
from paddle_mnist.checkpoint.manifest import Checkpoint, Manifest
from paddle_mnist.checkpoint.safe_load import load_from
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.errors import ConfigError, StoppedError, listed
from paddle_mnist.hidden_state.extra_state import LARGE_VALUE
from paddle_mnist.hidden_state.object_graph import ObjectPath, describe_path, identity
from paddle_mnist.hidden_state.object_paths import find
from paddle_mnist.hidden_state.plain_data import ABSENT, nbytes
from paddle_mnist.hidden_state.snapshot import data_snapshot
from paddle_mnist.hidden_state.unsaved import GRADIENT
from paddle_mnist.system.files import writing
from paddle_mnist.training.callbacks import Training, rehearsing
from paddle_mnist.training.initial_state import InitialState, restored
from paddle_mnist.training.parts import shards_per_step
from paddle_mnist.training.resume import load_training
from paddle_mnist.training.sample_check import check_samples
from paddle_mnist.training.trial_steps import (
    AVERAGE,
    GRADIENTS,
    STEPS,
    WEIGHTS,
    Outcome,
    train_trial,
)

log = logging.getLogger("paddle_mnist")

MOST_STEPS = 6  # before the checkpoint
MOST_IN_MEMORY = 32 * 2**20  # bytes of each file of a checkpoint
REMEDY = (
    'give fit state={"name": object}, with an object that holds it and has state_dict and '
    "set_state_dict"
)
CLEAR = "call clear_grad() before the backward pass that adds to it"


def rehearse(training: Training) -> None:
    """Find the state that checkpoints would lose, and make them save it.

    Restores everything afterwards: the weights, the attributes of callbacks, the random-number
    generators. All processes rehearse together.

    Raises ConfigError for state that cannot be saved, for samples that differ when they are read
    again, and for state that differs between processes.
    """
    log.info(
        "rehearsing a resume before the first step (is_rehearsal() is True): 3 steps, more if they "
        "change anything besides the weights and the optimizer"
    )
    with rehearsing(), generators_restored():
        if not _has_repeatable_samples(training):
            return
        initial = InitialState(training.model, training.extra, training.average)
        with restored(initial), contextlib.ExitStack() as opened:
            _Rehearsal(training, initial, opened).run()


def _has_repeatable_samples(training: Training) -> bool:
    """Check the first batch of each split; see `check_samples`, which raises."""
    data = training.extra.data
    with restored(data_snapshot(data)):
        is_repeatable = check_samples(training.loader, data, "the first batch")
        for split, loader in training.evaluator.datasets.items():
            is_repeatable &= check_samples(loader, data, f"the first batch of {split}")
    return is_repeatable


class _Rehearsal:
    """The rehearsal of a run: `run` is the algorithm, the other methods are its parts.

    initial: the state of the run, which the caller restores in the end. opened: closes the files of
        the checkpoint.
    start, count: (attributes) the steps before the checkpoint, and those after it.
    lost: (attribute) what has changed and no checkpoint holds: descriptions by `identity`.
    growing: (attribute) the gradients that steps add up, by `identity`.
    """

    def __init__(self, training: Training, initial: InitialState, opened: contextlib.ExitStack):
        self.training, self.extra, self.world = training, training.extra, training.world
        self.initial, self.opened = initial, opened
        self.start = self.count = 1
        self.lost: dict[str, str] = {}
        self.growing: set[str] = set()

    def run(self) -> None:
        """Rehearse, as the module says. Raises ConfigError."""
        if self.initial.skipped:
            log.info(
                "too large to be examined: %s; if a step fails because the rehearsal does not "
                "restore it, make it smaller, or %s",
                listed(self.initial.skipped),
                REMEDY,
            )
        self._save(self.extra.changes())  # of callbacks' `before_training`
        self._train_step(0)
        if any(self.world.all_gather_objects(self._has_hidden_state())):
            # Gradients that are added up over some steps come and go.
            gradients = {*self.extra.gradients()}
            self._train_step(1)
            gradients |= {*self.extra.gradients()}
            self._train_step(2)
            self.start = self.count = 3
            while self.start < MOST_STEPS and self._lacks(gradients):
                self._train_step(self.start)
                self.start += 1
        self._leave_out_what_differs()
        large, checkpoint = self._large_values(), self._checkpoint()
        present = {*map(identity, self.extra.gradients())}
        self._forget({n for n, text in self.lost.items() if text.startswith(GRADIENT)} - present)
        uninterrupted = train_trial(self.training, self.start, self.count)
        lost_before = {*self.lost}
        self._save(self.initial.changes(), has_limit=True)
        late = {*self.lost} - lost_before  # which the checkpoint did not have to hold
        saved = dict(self.extra.saved)  # to load the checkpoint leaves only what that holds
        differs = self._differs(checkpoint, uninterrupted, large)
        # Large values, such as outputs that a pass keeps to be looked at, are only saved if the
        # steps depend on them.
        if differs and large:
            large = set()
            differs = self._differs(checkpoint, uninterrupted, large)
        if differs:
            self._refuse()
        self.extra.saved = saved
        self._forget(late | self.growing)
        # A resumed run does not rehearse, and must not warn of those that each step clears either.
        self.extra.left_out |= {n for n, text in self.lost.items() if text.startswith(GRADIENT)}
        for path in large:
            self._leave_out(path, describe_path(path))
        self._log()

    # -------------------------------------------------------------- what a checkpoint holds

    def _train_step(self, number: int) -> None:
        train_trial(self.training, number, 1, ends_epoch=False)
        self._save(self.initial.changes())

    def _save(self, changes: Sequence[ObjectPath], has_limit: bool = False) -> None:
        """Make checkpoints save what has changed, and note what they cannot save.

        has_limit: whether to leave out new values that are large.
        """
        for path in self.extra.save_changed(changes, has_limit):
            value = find(self.extra.roots, path)
            kind = "" if value is ABSENT else f" ({type(value).__name__})"
            self.lost.setdefault(identity(path), describe_path(path) + kind)

    def _lacks(self, gradients: Collection[ObjectPath]) -> bool:
        """Return whether any of the gradients that steps had left is gone now, in any process."""
        gone = {*gradients} - {*self.extra.gradients()}
        return any(self.world.all_gather_objects(bool(gone)))

    def _forget(self, names: Collection[str]) -> None:
        """Take what no longer counts off the list of what is lost. names: by `identity`."""
        self.lost = {name: text for name, text in self.lost.items() if name not in names}

    def _leave_out(self, path: ObjectPath, text: str) -> None:
        """Leave a value out of all checkpoints. text: its description."""
        self.extra.saved.pop(path, None)
        self.extra.left_out.add(identity(path))
        self.lost.setdefault(identity(path), text)

    def _leave_out_what_differs(self) -> None:
        """Compare the state of all processes, since only one of them saves it.

        Raises ConfigError for parts that differ, and leaves out values that differ.
        """
        if self.world.size == 1:
            return
        own = {describe_path(path): path for path in self.extra.saved}
        digests = self.world.all_gather_objects(self.extra.digests())
        names = set[str]().union(*digests)
        differing = {n for n in names if len({each.get(n) for each in digests}) > 1}
        parts = sorted(differing.difference(*self.world.all_gather_objects({*own})))
        if parts:
            raise ConfigError(
                f"{listed(parts)}: after the first step, the values differ between the processes, "
                "because each has seen other samples and only the model's gradients are added up; "
                "expected state that does not depend on the samples, or one process"
            )
        for name in sorted(own.keys() & differing):
            self._leave_out(own[name], f"{name}, which differs between the processes")

    def _has_hidden_state(self) -> bool:
        """Return whether anything may have changed besides the weights and the optimizer."""
        extra, iterators = self.extra, self.initial.iterators()
        return bool(extra.parts or extra.optimizers or extra.saved or self.lost or iterators)

    def _large_values(self) -> set[ObjectPath]:
        """Return the large values that are saved, except tensors of layers and optimizers."""
        extra = self.extra
        values = {path: find(extra.roots, path) for path in extra.saved if not extra.is_state(path)}
        plain = {path: value for path, value in values.items() if extra.is_plain(value)}
        return {path for path, value in plain.items() if nbytes(value) > LARGE_VALUE}

    def _checkpoint(self) -> Checkpoint:
        """Make a checkpoint, in files in memory or, if they are large, on disk without a name."""
        training, files = self.training, _Files()
        # The other processes may share no disk with the run directory.
        folder = training.run.path if self.world.is_main_process else Path(tempfile.gettempdir())
        states = checkpoint_files(training.model, training.optimizer, training.average, self.extra)
        for suffix, state in states.items():
            spooled = tempfile.SpooledTemporaryFile(MOST_IN_MEMORY, dir=str(folder))  # noqa: SIM115
            files[suffix] = self.opened.enter_context(spooled)
            with writing(folder):
                state.write_to(cast(BinaryIO, spooled))
        manifest = {
            **optimizer_entries(training.model, training.optimizer, self.extra),
            "files": {f"rehearsal{suffix}": {} for suffix in files},
        }
        return Checkpoint(Path("rehearsal.json"), cast(Manifest, manifest), files)

    # -------------------------------------------------------------- what a resume computes

    def _differs(
        self, checkpoint: Checkpoint, uninterrupted: Outcome, left_out: Collection[ObjectPath]
    ) -> bool:
        """Return whether a resumed run computes something else than the uninterrupted one.

        left_out: values that it does not load. Raises ConfigError if steps cannot be repeated.
        """
        if not (first := self._differing(checkpoint, uninterrupted, left_out)):
            return False
        second = self._differing(checkpoint, uninterrupted, left_out)
        # What differs each time, such as the time of day, cannot be compared.
        unstable = {n for n in {*first, *second} if first.get(n) != second.get(n)}
        if unstable.intersection((STEPS, WEIGHTS, AVERAGE)):
            self.growing = set()
            self._refuse_what_cannot_be_repeated()
            return False
        return first.keys() != unstable

    def _differing(
        self, checkpoint: Checkpoint, expected: Outcome, left_out: Collection[ObjectPath]
    ) -> dict[str, Any]:
        """Return the entries of a resumed run's outcome that differ, of all processes."""
        resumed = self._resumed(checkpoint, left_out)
        # Saved values may belong to the process, such as its memory; only their effects count.
        values = map(describe_path, {*self.extra.saved, *left_out})
        before, after = (outcome.get(GRADIENTS, {}) for outcome in (expected, resumed))
        lost = [name for name, text in self.lost.items() if text.startswith(GRADIENT)]
        self.growing = {name for name in lost if before.get(name, "") != after.get(name)}
        names = {*expected, *resumed}.difference(values, [GRADIENTS])
        different = {n: resumed.get(n) for n in names if resumed.get(n) != expected.get(n)}
        everywhere = self.world.all_gather_objects(different)
        return {name: value for outcome in reversed(everywhere) for name, value in outcome.items()}

    def _resumed(self, checkpoint: Checkpoint, left_out: Collection[ObjectPath]) -> Outcome:
        """Restore the initial state, load the checkpoint as a resume does, and train on.

        Returns the outcome, an empty one if it fails without the values that are left out.
        """
        try:
            self.initial.restore()
            load_training(self.training, checkpoint, left_out=left_out)
            if self.lost:  # some of it may have come back with the state of a part
                self._forget({*map(identity, self.initial.changes())})
            return train_trial(self.training, self.start, self.count)
        except StoppedError:
            raise
        except Exception as error:  # a step may fail without what is lost or left out
            if self.world.size > 1:
                raise
            if not left_out:
                self._refuse(error)
            return {}

    # -------------------------------------------------------------- messages

    def _unseen(self) -> str:
        """Describe the state that fit cannot see, for messages."""
        unseen = [f"the position of {name}" for name in self.initial.iterators()]
        unseen += [f"{name}, too large to be examined" for name in self.initial.skipped]
        return f", such as {listed(unseen)}" if unseen else ""

    def _refuse(self, error: Optional[Exception] = None) -> None:
        """Raise ConfigError with the state that no checkpoint holds. error: of a resumed run."""
        everywhere = self.world.all_gather_objects(self.lost)
        texts = list(dict.fromkeys(text for lost in everywhere for text in lost.values()))
        if error and not texts:
            raise ConfigError(
                f"a resume would fail with {type(error).__name__}: {error}; it may lack state that "
                f"fit cannot see{self._unseen()}; {REMEDY}"
            ) from error
        if not texts:
            self._refuse_what_cannot_be_repeated()
            return
        remedy = CLEAR if all(text.startswith(GRADIENT) for text in texts) else REMEDY
        raise ConfigError(
            f"a step changes {listed(texts, most=3)}, and later steps depend on it, but a "
            f"checkpoint cannot hold it; {remedy}"
        ) from error

    def _refuse_what_cannot_be_repeated(self) -> None:
        """Raise ConfigError, except beside the CPU, where sums may be computed in any order."""
        if self.training.device != "cpu":
            log.info(
                "repeating the first steps gave different bits on this device, so a resumed run "
                "will, too; set deterministic=True for reproducible results"
            )
            return
        raise ConfigError(
            "repeating the first steps from the same state gave another result, so they depend on "
            f"state that fit cannot see{self._unseen()}; expected steps that depend only on the "
            "batch and on values that objects hold; take data from train and random numbers from "
            f"random, numpy.random or paddle, or {REMEDY}"
        )

    def _log(self) -> None:
        """Log the values that are saved, and those that are not."""
        extra = self.extra
        saved = [
            describe_path(path)
            for path in extra.saved
            if path[0][1] not in ("optimizer", "schedule")
        ]
        if saved:
            log.info("saved with checkpoints, besides weights and optimizer: %s", listed(saved))
            in_passes = [name for name in saved if not name.startswith("callbacks")]
            if in_passes and shards_per_step(self.training.arguments, self.world) > 1:
                log.warning(
                    "each pass may change %s, and the result may depend on the number of shards "
                    "and processes",
                    listed(in_passes),
                )
        if self.lost:
            extra.logged |= {*self.lost}
            names = listed(list(self.lost.values()))
            log.info("not saved, since the first steps do not depend on it: %s", names)


class _Files(UserDict[str, Any]):
    """The dictionaries in open files of a checkpoint, by suffix, each read on access."""

    def __getitem__(self, suffix: str) -> dict[str, Any]:
        file = self.data[suffix]
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(0)
        return load_from(file, size, f"rehearsal{suffix}")

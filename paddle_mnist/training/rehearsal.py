"""Rehearse a resume before the first step, to find state that a checkpoint would lose.

The rehearsal trains the first steps and makes a checkpoint. It trains the following steps twice: at
once, and after it has restored the initial state and loaded the checkpoint as a resume does. If the
results differ, the run could not be resumed, and ConfigError is raised.
"""

import contextlib
import logging
import os
import tempfile
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Optional, cast

from paddle_mnist.checkpoint.contents import (
    checkpoint_files,
    optimizer_entries,
)
from paddle_mnist.checkpoint.manifest import Checkpoint, Manifest
from paddle_mnist.checkpoint.safe_load import load_from
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.errors import ConfigError, StoppedError, listed
from paddle_mnist.hidden_state.extra_state import DATA_ROOTS, MOST_BYTES
from paddle_mnist.hidden_state.object_graph import ObjectPath, describe_path, identity
from paddle_mnist.hidden_state.object_paths import find, walk
from paddle_mnist.hidden_state.optimizer_state import optimizer_parameters
from paddle_mnist.hidden_state.plain_data import nbytes
from paddle_mnist.hidden_state.snapshot import Change, data_snapshot
from paddle_mnist.system.arrays import is_tensor
from paddle_mnist.system.files import writing
from paddle_mnist.training.callbacks import Training, rehearsing
from paddle_mnist.training.initial_state import InitialState, restored
from paddle_mnist.training.parts import shards_per_step
from paddle_mnist.training.resume import load_training
from paddle_mnist.training.sample_check import check_samples
from paddle_mnist.training.trial_steps import CORE, Outcome, TrialSteps

log = logging.getLogger("paddle_mnist")

MOST_IN_MEMORY = 32 * 2**20  # bytes of each file of a checkpoint
STEPS = 3  # of a rehearsal that finds no other state than weights and optimizer
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
    loader, data = training.loader, training.extra.data
    log.info(
        "rehearsing a resume before the first step (is_rehearsal() is True): %d steps, more if "
        "they change anything besides the weights and the optimizer",
        STEPS,
    )
    with rehearsing(), generators_restored(), restored(data_snapshot(data)):
        is_repeatable = check_samples(loader, data, "the first batch")
        for split, valid in training.evaluator.datasets.items():
            is_repeatable &= check_samples(valid, data, f"the first batch of {split}")
        if is_repeatable:
            _Rehearsal(training).run()


@dataclass(frozen=True)
class _Trip:
    """A checkpoint after `start` steps, and the outcome of the `count` steps after it."""

    manifest: Manifest
    files: "_Files"
    start: int
    count: int
    uninterrupted: Outcome


class _Files(UserDict[str, Any]):
    """The dictionaries in the files of a checkpoint, by suffix, each read on access.

    A file is in memory or, if it is large, on disk without a name, so that it is never left behind.

    folder: on the disk to use; None: the one of temporary files. opened: closes the files. Raises
    OutputError.
    """

    def __init__(
        self,
        states: Mapping[str, SavedState],
        folder: Optional[Path],
        opened: contextlib.ExitStack,
    ):
        super().__init__()
        where = str(folder) if folder else tempfile.gettempdir()
        for suffix, state in states.items():
            spooled = tempfile.SpooledTemporaryFile(MOST_IN_MEMORY, dir=where)  # noqa: SIM115
            file = opened.enter_context(spooled)
            with writing(Path(where)):
                state.write_to(cast(BinaryIO, file))
            self.data[suffix] = file

    def __getitem__(self, suffix: str) -> dict[str, Any]:
        file = self.data[suffix]
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(0)
        return load_from(file, size, f"rehearsal{suffix}")


class _Rehearsal:
    """The rehearsal of a run on its first batches."""

    def __init__(self, training: Training):
        self.training, self.extra, self.world = training, training.extra, training.world
        self.trial = TrialSteps(training)
        self.initial = InitialState(training.model, self.extra, training.average)
        self.unsaved: dict[str, str] = {}  # descriptions of the changes that are not saved
        # The paths of large values, which a checkpoint may not need: it lacks them at first.
        self.left_out: set[ObjectPath] = set()
        self.error: Optional[Exception] = None
        self.opened = contextlib.ExitStack()

    def run(self) -> None:
        """Rehearse. Raises ConfigError."""
        if self.initial.skipped:
            log.info(
                "too large to be examined: %s; if a step fails because the rehearsal does not "
                "restore it, make it smaller, or %s",
                listed(self.initial.skipped),
                REMEDY,
            )
        self._save(self.extra.changes())  # of callbacks' `before_training`
        with restored(self.initial), self.opened:
            self._train(0, 1, ends_epoch=False)
            trips = [self._trip(1, 1)]
            # A maximum, for example, only affects new batches, and values that are kept for each
            # sample only batches that were seen before. The number of steps between the compared
            # states is odd, since two steps may leave a value such as a switch unchanged.
            if any(self.world.all_gather_objects(self._has_hidden_state())):
                trips.append(self._trip(2, 4))
            for trip in trips:
                self._repeat(trip)
        for path in self.left_out:
            self._leave_out(path, describe_path(path))
        self._log()

    def _train(self, start: int, count: int, ends_epoch: bool = True) -> Outcome:
        """Train, and make checkpoints save the values that this has changed."""
        outcome = self.trial.train(start, count, ends_epoch)
        changes = self.initial.changes()
        self.trial.reads_again |= any(change.path[0][1] in DATA_ROOTS for change in changes)
        self._save(changes)
        self._note_gradients()
        return outcome

    def _save(self, changes: Sequence[Change]) -> None:
        """Make checkpoints save the changed values, and note those that they cannot save."""
        texts = {
            path: f"{describe_path(path)} from {before} to {now}" for path, before, now in changes
        }
        for path in self.extra.save_changed(changes, has_limit=False):
            self.unsaved.setdefault(identity(path), texts.get(path, describe_path(path)))

    def _note_gradients(self) -> None:
        """Note the gradients that remain and that the optimizer does not clear."""
        cleared = {id(parameter) for parameter in optimizer_parameters(self.training.optimizer)}
        for place in walk(self.extra.others):
            value = place.value
            is_parameter = is_tensor(value) and hasattr(value, "trainable") and not place.is_alias
            gradient = value.grad if is_parameter and id(value) not in cleared else None
            if gradient is not None and not gradient.is_selected_rows() and gradient.any():
                name = f"the gradient of {describe_path(place.path)}"
                self.unsaved.setdefault(name, f"{name} from nothing to a gradient that is not 0")

    def _has_hidden_state(self) -> bool:
        """Return whether the steps so far have changed other state than training itself does."""
        extra = self.extra
        has_parts = bool(extra.parts or extra.optimizers)
        return has_parts or bool(extra.saved or self.unsaved or self.initial.iterators())

    def _trip(self, start: int, count: int) -> _Trip:
        """Make a checkpoint, and continue training. Raises ConfigError if processes differ."""
        if self.world.size > 1:
            self._leave_out_what_differs()
        extra = self.extra
        values = {path: find(extra.roots, path) for path in extra.saved}
        large = {path for path, value in values.items() if nbytes(value) > MOST_BYTES}
        self.left_out |= {path for path in large if not extra.is_state(path)}
        training = self.training
        states = checkpoint_files(training.model, training.optimizer, training.average, self.extra)
        # The other processes may share no disk with the run directory.
        folder = training.run.path if self.world.is_main_process else None
        files = _Files(states, folder, self.opened)
        manifest = {
            **optimizer_entries(training.model, training.optimizer, self.extra),
            "files": {f"rehearsal{suffix}": {} for suffix in files},
        }
        return _Trip(cast(Manifest, manifest), files, start, count, self._train(start, count))

    def _leave_out(self, path: ObjectPath, text: str) -> None:
        """Leave a value out of all checkpoints. text: its description."""
        self.extra.saved.pop(path, None)
        self.extra.left_out.add(identity(path))
        self.unsaved.setdefault(identity(path), text)

    def _leave_out_what_differs(self) -> None:
        """Compare the state of all processes, since only one of them saves it.

        Raises ConfigError for parts that differ, and leaves out values that differ.
        """
        own = {describe_path(path): path for path in self.extra.saved}
        values = {name for names in self.world.all_gather_objects({*own}) for name in names}
        digests = self.world.all_gather_objects(self.extra.digests())
        names = {name for own_digests in digests for name in own_digests}
        differing = sorted(
            name for name in names if len({own_digests.get(name) for own_digests in digests}) > 1
        )
        parts = [name for name in differing if name not in values]
        if parts:
            raise ConfigError(
                f"{listed(parts)}: after two steps, the values differ between the processes, "
                "because each has seen other samples and only the model's gradients are added up; "
                "expected state that does not depend on the samples, or one process"
            )
        for name in sorted(own.keys() & {*differing}):
            self._leave_out(own[name], f"{name}, which differs between the processes")

    def _resumed(self, trip: _Trip) -> Outcome:
        """Restore the initial state, load the checkpoint as a resume does, and train."""
        training = self.training
        self.initial.restore()
        checkpoint = Checkpoint(Path("rehearsal.json"), trip.manifest, trip.files)
        load_training(training, checkpoint, left_out=self.left_out)
        if self.unsaved:
            for change in self.initial.changes():  # restored with the state of a part
                self.unsaved.pop(identity(change.path), None)
        return self.trial.train(trip.start, trip.count)

    def _repeat(self, trip: _Trip) -> None:
        """Compare a resumed run with the uninterrupted one. Raises ConfigError."""
        differing = self._differing(trip)
        if not differing:
            return
        again = self._differing(trip)
        names = {*differing, *again}
        # Values that differ each time, such as the time of day.
        unstable = {name for name in names if again.get(name) != differing.get(name)}
        if unstable.intersection(CORE):
            self._refuse_what_cannot_be_repeated()
            return
        while {*differing} - unstable:
            if not self.left_out:
                self._refuse()
                return
            self.left_out = set()
            differing = self._differing(trip)

    def _differing(self, trip: _Trip) -> dict[str, Any]:
        """Return the entries of the resumed outcome that differ from the uninterrupted one."""
        self.error = None
        try:
            resumed = self._resumed(trip)
        except StoppedError:
            raise
        except Exception as error:  # a step may fail without the lost state
            if self.world.size > 1:
                raise
            self.error = error
            return {"weights": repr(error)}
        # Saved values may belong to the process, such as its memory; only their effects count.
        values = map(describe_path, {*self.extra.saved, *self.left_out})
        expected = trip.uninterrupted
        names = {*expected, *resumed}.difference(values)
        different = {n: resumed.get(n) for n in names if resumed.get(n) != expected.get(n)}
        everywhere = self.world.all_gather_objects(different)
        return {name: value for outcome in reversed(everywhere) for name, value in outcome.items()}

    def _unseen(self) -> str:
        """Describe the state that fit cannot see, for messages."""
        unseen = [f"the position of {name}" for name in self.initial.iterators()]
        unseen += [f"{name}, too large to be examined" for name in self.initial.skipped]
        return f", such as {listed(unseen)}" if unseen else ""

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

    def _refuse(self) -> None:
        """Raise ConfigError with the state that no checkpoint can hold."""
        everywhere = self.world.all_gather_objects(self.unsaved)
        texts = list(dict.fromkeys(text for unsaved in everywhere for text in unsaved.values()))
        if self.error and not texts:
            raise ConfigError(
                f"a resume would fail with {type(self.error).__name__}: {self.error}; it may lack "
                f"state that fit cannot see{self._unseen()}; {REMEDY}"
            ) from self.error
        if not texts:
            self._refuse_what_cannot_be_repeated()
            return
        remedy = CLEAR if all(text.startswith("the gradient") for text in texts) else REMEDY
        raise ConfigError(
            f"a step changes {listed(texts, most=3)}, and later steps depend on it, but a "
            f"checkpoint cannot hold it; {remedy}"
        ) from self.error

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
        if self.unsaved:
            extra.logged |= {*self.unsaved}
            texts = [text.partition(" from ")[0] for text in self.unsaved.values()]
            log.info("not saved, since the first steps do not depend on it: %s", listed(texts))

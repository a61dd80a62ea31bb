"""The checkpoints in a folder: commit, list, verify, prune, quarantine.

Order of a commit: each file is written under a temporary name and forced to the disk; then they are
renamed; the manifest comes last. Before that, the checkpoint does not exist; afterwards it is
complete. To replace a checkpoint, whose files cannot all be replaced at once, the new one is first
written under a second name, so that one of the two is always valid.
"""

import contextlib
import glob
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from paddle_mnist.checkpoint.manifest import (
    CHECKSUM,
    DATA_SUFFIXES,
    FORMAT,
    Checkpoint,
    DamagedError,
    UnreadableError,
    checksum,
    parse_manifest,
    read_manifest,
)
from paddle_mnist.checkpoint.saving import Saving, best_first
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.errors import CheckpointError, spelled
from paddle_mnist.system.files import (
    PART,
    PendingFile,
    first_free,
    make_folder,
    matching,
    remedy,
    remove,
    remove_temporary,
    sync_folder,
    write_atomically,
    writing,
)
from paddle_mnist.train_state import TrainState

log = logging.getLogger("paddle_mnist")

FileSignatures = list[tuple[int, int, int, int]]

ANY_NAME = "*_epoch*"  # a glob pattern for the names of checkpoints
QUARANTINE = "quarantine"
SPARE_SUFFIX = "_new"  # the end of the second name of a checkpoint that replaces another


def without_lock() -> None:
    """Do nothing, for a folder without a lock. Unlike a lambda, it can be sent to processes."""


class CheckpointStore:
    """The checkpoints in one folder.

    require_ownership: (attribute) raises RunLockedError once another process has taken the folder
        over.
    """

    def __init__(self, folder: Union[str, Path]):
        self.folder = Path(folder)
        self.require_ownership: Callable[[], None] = without_lock
        # Of files that this process wrote or verified, by the checksum of the manifest.
        self._signatures: dict[str, FileSignatures] = {}
        # The checkpoints that `_listed_for` may drop, so that a save need not read all manifests.
        self._listed: dict[Path, Checkpoint] = {}
        self._listed_for: Optional[Saving] = None

    def commit(
        self,
        name: str,
        files: Mapping[str, SavedState],
        state: TrainState,
        entries: Mapping[str, Any] = {},
        number: int = FORMAT,
    ) -> Checkpoint:
        """Write a checkpoint, completely or not at all. Raises OutputError, RunLockedError.

        A checkpoint of the same name is replaced: at each moment the old or the new one is valid.

        files: contents by suffix. entries: further entries of the manifest, which do not replace
            those that every checkpoint has. number: the format.
        """
        self.require_ownership()
        if self._signatures and not self.folder.exists():
            log.warning("%s: deleted during training, with all earlier checkpoints", self.folder)
        make_folder(self.folder)
        path, spare = (self.folder / f"{name}{end}.json" for end in ("", SPARE_SUFFIX))
        if os.path.lexists(path):
            self.commit(name + SPARE_SUFFIX, files, state, entries, number)
            remove(path)
        listed, pending = {}, []
        with contextlib.ExitStack() as stack:
            for suffix, contents in files.items():
                file = stack.enter_context(PendingFile(self.folder / (name + suffix)))
                contents.write_to(file)
                listed[file.path.name] = file.finish()
                pending.append(file)
            for file in pending:
                file.publish()
        common = {"format": number, "state": state.as_dict(), "saved_at": time.time()}
        manifest = {**entries, **common, "files": listed}
        data = json.dumps({**manifest, CHECKSUM: checksum(manifest)}, indent=1).encode()
        checkpoint = parse_manifest(path, data)  # as it will be read
        self._signatures[checkpoint.manifest["checksum"]] = _file_signatures(checkpoint)
        sync_folder(self.folder)
        self.require_ownership()
        write_atomically(path, data)
        sync_folder(self.folder)
        self._listed[path] = checkpoint
        if spare.exists():
            with contextlib.suppress(CheckpointError):
                self._delete([read_manifest(spare)])
        return checkpoint

    def all(self) -> list[Checkpoint]:
        """Return the checkpoints with a readable manifest, by step, oldest first. Moves nothing."""
        return self._read_manifests()[0]

    def newest_step(self) -> int:
        """Return the step of the newest checkpoint with a readable manifest; 0 without one."""
        return max((checkpoint.step for checkpoint in self.all()), default=0)

    def _read_manifests(self) -> tuple[list[Checkpoint], dict[Path, CheckpointError]]:
        """Return the checkpoints, by step, and why other manifests cannot be read."""
        checkpoints, unreadable = [], dict[Path, CheckpointError]()
        for path in list_files(self.folder, f"{ANY_NAME}.json"):
            try:
                checkpoints.append(read_manifest(path))
            except CheckpointError as error:
                if not (isinstance(error, UnreadableError) or os.path.lexists(path)):
                    return self._read_manifests()  # its writer has deleted it: list again
                unreadable[path] = error
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.sort_key), unreadable

    def load_newest(self) -> Optional[Checkpoint]:
        """Return the newest checkpoint that verifies, loaded; for the one writer of the folder.

        Moves newer ones that are damaged to `quarantine/`. Raises as `newest` does, and
        CheckpointError for files with other contents than `paddle.save` writes.
        """
        return self.newest(is_resumed=True)

    def newest(self, is_resumed: bool = False) -> Optional[Checkpoint]:
        """Return the newest checkpoint that verifies; None in a folder that never held one.

        Logs newer ones that are damaged. Raises CheckpointError if there are checkpoints but none
        verifies: damage must never make training start from the beginning; UnreadableError if one
        that may be newer cannot be read.

        is_resumed: see `load_newest`.
        """
        newest, damaged = self._first_valid(lambda oldest_first: oldest_first[::-1], is_resumed)
        if is_resumed:
            for path in damaged:
                self._quarantine(path)
        if not newest and (damaged or (self.folder / QUARANTINE).exists()):
            raise CheckpointError(
                f"{self.folder}: no valid checkpoint; put a good one back or, unless the run has a "
                f"mirror, use {spelled('fresh')} to start over"
            )
        return newest

    def best(self) -> Optional[Checkpoint]:
        """Return the valid checkpoint whose monitored metric is the best, the earliest of equals.

        None if no checkpoint was evaluated. Logs better ones that are damaged; raises
        CheckpointError if there are no others, UnreadableError as `newest` does.
        """
        best, damaged = self._first_valid(best_first)
        if damaged and not best:
            raise CheckpointError(
                f"{self.folder}: no evaluated checkpoint is valid; put a good one back"
            )
        return best

    def _first_valid(
        self, ordered: Callable[[list[Checkpoint]], list[Checkpoint]], loads: bool = False
    ) -> tuple[Optional[Checkpoint], list[Path]]:
        """Return the first checkpoint that verifies, and the manifests of damaged ones before it.

        Logs the damaged ones. ordered: puts the checkpoints in order, and may leave some out.
        loads: whether to load it.
        """
        checkpoints, damaged = self._read_manifests()
        for error in damaged.values():
            if isinstance(error, UnreadableError):
                raise error
        first_valid = None
        for checkpoint in ordered(checkpoints):
            try:
                first_valid = self._verified(checkpoint, loads)
                break
            except (DamagedError, UnreadableError) as reason:
                if not os.path.lexists(checkpoint.path):  # its writer has deleted it: list again
                    return self._first_valid(ordered, loads)
                if isinstance(reason, UnreadableError):
                    raise
                damaged[checkpoint.path] = reason
        for error in damaged.values():
            log.warning("damaged checkpoint: %s", error)
        return first_valid, [*damaged]

    def prune(self, saving: Saving) -> list[Checkpoint]:
        """Delete the checkpoints that `saving` does not keep; return them. Raises OutputError."""
        dropped = self.checkpoints_to_prune(saving)
        self._delete(dropped)
        return dropped

    def _delete(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Delete checkpoints, manifests first: files without one are not a checkpoint."""
        for checkpoint in checkpoints:
            remove(checkpoint.path)
        if checkpoints:
            # Else a power failure could bring back a manifest whose data files are gone.
            sync_folder(self.folder)
        for checkpoint in checkpoints:
            for name in checkpoint.manifest["files"]:
                remove(checkpoint.path.with_name(name))
            self._signatures.pop(checkpoint.manifest["checksum"], None)
            self._listed.pop(checkpoint.path, None)

    def checkpoints_to_prune(self, saving: Saving) -> list[Checkpoint]:
        """Return the checkpoints that `saving` does not keep.

        A damaged checkpoint must not take a good one's place, such as that of the best. Verifying
        takes time, so only the checkpoints to be kept are verified; those that are damaged or
        cannot be read are left out, but not pruned, and the choice is made again.
        """
        if saving != self._listed_for:
            self._listed = {checkpoint.path: checkpoint for checkpoint in self.all()}
            self._listed_for = saving
        while True:
            listed = [*self._listed.values()]
            names = saving.kept(listed)
            dropped = [checkpoint for checkpoint in listed if checkpoint.name not in names]
            kept = [checkpoint for checkpoint in listed if checkpoint.name in names]
            invalid = [c for c in kept if dropped and not self._is_unchanged_or_valid(c)]
            if not invalid:
                break
            for checkpoint in invalid:
                del self._listed[checkpoint.path]
        settled = names - saving.ranked(kept)  # kept whatever is saved later
        self._listed = {c.path: c for c in listed if c.name not in settled}
        return dropped

    def _verified(self, checkpoint: Checkpoint, loads: bool = False) -> Checkpoint:
        """Verify a checkpoint, remember its files' signatures, return it. Raises as `load_all`.

        loads: whether to load them, too.
        """
        # Taken before the files are read, so that one that changes meanwhile will not match.
        signatures = _file_signatures(checkpoint)
        if loads:
            checkpoint = checkpoint.load_all()
        else:
            checkpoint.verify()
        self._signatures[checkpoint.manifest["checksum"]] = signatures
        return checkpoint

    def _is_unchanged_or_valid(self, checkpoint: Checkpoint) -> bool:
        """Return whether it verifies; log why not. Unchanged files are not read.

        Files are unchanged if they have the signature with which this process hashed them, or are
        older than their manifest, which is written after them. This is enough for checkpoints that
        are not loaded now.
        """
        if not checkpoint.path.exists():  # deleted since the folder was listed
            return False
        signatures = _file_signatures(checkpoint)
        is_known = self._signatures.get(checkpoint.manifest["checksum"]) == signatures
        if signatures and (is_known or _are_older(signatures, checkpoint)):
            return True
        try:
            self._verified(checkpoint)
        except (DamagedError, UnreadableError) as error:
            kind = "damaged" if isinstance(error, DamagedError) else "unreadable"
            log.warning("%s checkpoint: %s", kind, error)
            return False
        return True

    def find_damaged(self) -> dict[Path, CheckpointError]:
        """Verify every checkpoint; return, by manifest, why some cannot be used.

        They are damaged, or cannot be read. Moves nothing.
        """
        checkpoints, errors = self._read_manifests()
        for checkpoint in checkpoints:
            try:
                checkpoint.verify()
            except (DamagedError, UnreadableError) as error:
                errors[checkpoint.path] = error
        # If a manifest is gone by now, training has deleted the checkpoint: it is not damaged.
        return {p: e for p, e in errors.items() if isinstance(e, UnreadableError) or p.exists()}

    def orphaned_files(self) -> list[Path]:
        """Return the files that belong to no checkpoint: temporary ones, and unlisted data.

        An interrupted save or deletion, or a lost manifest, leaves such files.
        """
        checkpoints, unreadable = self._read_manifests()
        listed = {name for checkpoint in checkpoints for name in checkpoint.manifest["files"]}
        listed |= {path.stem + suffix for path in unreadable for suffix in DATA_SUFFIXES}
        data = [
            path for suffix in DATA_SUFFIXES for path in list_files(self.folder, ANY_NAME + suffix)
        ]
        return sorted(
            [path for path in data if path.name not in listed]
            + list_files(self.folder, f".{ANY_NAME}{PART}")
        )

    def quarantined(self) -> list[Path]:
        """Return the folders of the quarantined checkpoints."""
        return list_files(self.folder / QUARANTINE, "*")

    def _quarantine(self, manifest: Path) -> None:
        """Move a checkpoint's files to a folder of their own in `quarantine/`."""
        target = first_free(self.folder / QUARANTINE / manifest.stem)
        make_folder(target)
        with writing(target):
            # The manifest sorts first: files without one are not a checkpoint.
            for path in matching(self.folder, f"{glob.escape(manifest.stem)}.*"):
                os.replace(path, target / path.name)
        log.warning("moved to %s", target)

    def remove_temporary_files(self) -> None:
        """Delete the temporary files of interrupted saves. For the one writer of the folder."""
        remove_temporary(self.folder, "*_epoch")


def list_files(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder whose names match a pattern, sorted. Raises CheckpointError."""
    try:
        return matching(folder, pattern)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: cannot be listed ({error.strerror}); nothing is changed; {remedy(error)}"
        ) from error


def _file_signatures(checkpoint: Checkpoint) -> FileSignatures:
    """Return the size, times of change and inode of each file; [] if one is missing.

    If a file changes, so does one of these.
    """
    try:
        files = [checkpoint.path.with_name(name).stat() for name in checkpoint.manifest["files"]]
    except OSError:
        return []
    return [(file.st_size, file.st_mtime_ns, file.st_ctime_ns, file.st_ino) for file in files]


def _are_older(signatures: FileSignatures, checkpoint: Checkpoint) -> bool:
    """Return whether the files are as long as the manifest says, and older than it."""
    try:
        written = checkpoint.path.stat().st_mtime_ns
    except OSError:
        return False
    entries = checkpoint.manifest["files"].values()
    # Strictly older, since the clock of a file system is coarse; a rename may be that close.
    return all(
        size == entry["size"] and modified < written and changed <= written
        for (size, modified, changed, _), entry in zip(signatures, entries)
    )

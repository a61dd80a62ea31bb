"""The checkpoints in a folder: commit, list, verify, prune, quarantine.

Order of a commit: each file is written under a temporary name and forced to the disk; then they are
renamed; the manifest comes last. Until then the checkpoint does not exist; from then on it is
complete.
"""

import contextlib
import glob
import itertools
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
    OutdatedFormatError,
    checksum,
    read_manifest,
)
from paddle_mnist.checkpoint.policy import Saving
from paddle_mnist.checkpoint.statefile import SavedState, write_and_hash
from paddle_mnist.errors import CheckpointError
from paddle_mnist.progress import TrainState
from paddle_mnist.system.files import (
    PART,
    PendingFile,
    first_free,
    make_folder,
    remove,
    remove_temporary,
    sync_folder,
    write_atomically,
    writing,
)
from paddle_mnist.system.ownership import owned_by_nobody
from paddle_mnist.system.program import as_option

log = logging.getLogger("paddle_mnist")

ANY_NAME = "*_epoch*"  # a glob pattern for the names of checkpoints
QUARANTINE = "quarantine"

FileSignature = tuple[int, ...]


def _file_signature(path: Path) -> FileSignature:
    """Return size, times of change and inode: if the file changes, so does one of them."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


class CheckpointStore:
    """The checkpoints in one folder.

    context: entries of every manifest beside the state: config, data hash, versions, ...
    """

    def __init__(self, folder: Union[str, Path], context: Optional[Mapping[str, Any]] = None):
        self.folder = Path(folder)
        self.context = dict(context or {})
        # Raises RunLockedError once another process has taken the folder over.
        self.require_ownership: Callable[[], None] = owned_by_nobody
        # Signatures and hashes of the files that this process wrote or verified.
        self._hashed: dict[Path, tuple[FileSignature, Mapping[str, Any]]] = {}

    def commit(
        self,
        name: str,
        files: Mapping[str, Union[SavedState, bytes]],
        state: TrainState,
        extra_entries: Optional[Mapping[str, Any]] = None,
    ) -> Checkpoint:
        """Write a checkpoint, completely or not at all. Raises OutputError, RunLockedError.

        files: contents by suffix. extra_entries: of the manifest, beside the store's `context`.
        """
        self.require_ownership()
        make_folder(self.folder)
        path = self.folder / f"{name}.json"
        with contextlib.ExitStack() as stack:
            pending = []
            entries = {}
            for suffix, contents in files.items():
                file = stack.enter_context(PendingFile(self.folder / (name + suffix)))
                entries[file.path.name] = write_and_hash(file, contents)
                pending.append(file)
            if not _lists_files(path, entries):
                # There is an older checkpoint of this name, perhaps, which must not exist while its
                # files are replaced.
                remove(path)
            for file in pending:
                file.publish()
                self._hashed[file.path] = _file_signature(file.path), entries[file.path.name]
        manifest = {
            "format": FORMAT,
            "files": entries,
            "state": state.as_dict(),
            "saved_at": time.time(),
            **self.context,
            **(extra_entries or {}),
        }
        manifest = json.loads(json.dumps(manifest, allow_nan=False))  # as it will be read
        manifest[CHECKSUM] = checksum(manifest)
        sync_folder(self.folder)
        self.require_ownership()
        write_atomically(path, json.dumps(manifest, indent=1).encode())
        sync_folder(self.folder)
        return Checkpoint(path, manifest)

    def all(self) -> list[Checkpoint]:
        """Return the checkpoints with a readable manifest, by step, oldest first. Moves nothing."""
        return self._read_manifests()[0]

    def newest_step(self) -> int:
        """Return the step of the newest checkpoint with a readable manifest; 0 without one."""
        return max((checkpoint.step for checkpoint in self.all()), default=0)

    def _read_manifests(self) -> tuple[list[Checkpoint], list[tuple[Path, CheckpointError]]]:
        """Return the checkpoints, by step, and the unreadable manifests, with the reason."""
        checkpoints, unreadable = [], []
        for path in sorted(self.folder.glob(f"{ANY_NAME}.json")):
            try:
                checkpoints.append(read_manifest(path))
            except CheckpointError as error:
                if not os.path.lexists(path):  # its writer has deleted it: list again
                    return self._read_manifests()
                unreadable.append((path, error))
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.sort_key), unreadable

    def newest(self, quarantine_damaged: bool = False) -> Optional[Checkpoint]:
        """Return the newest checkpoint that verifies; None in a folder that never held one.

        Newer ones that are damaged are logged, and with `quarantine_damaged` moved to
        `quarantine/`; only the one writer of the folder may ask for that.
        Raises CheckpointError if there are checkpoints but none verifies: damage must never make a
        training start from the beginning. Raises OutdatedFormatError as `best` does.
        """
        checkpoints, damaged = self._read_manifests()
        _require_current_format(checkpoints, damaged)
        newest_valid = None
        for checkpoint in reversed(checkpoints):
            if not (error := self._damage(checkpoint)):
                newest_valid = checkpoint
                break
            if not checkpoint.path.exists():  # its writer has deleted it: list again
                return self.newest(quarantine_damaged)
            damaged.append((checkpoint.path, error))
        for path, reason in damaged:
            if isinstance(reason, OutdatedFormatError):  # of a run that an older version began
                log.warning("%s", reason)
                continue
            log.warning("damaged checkpoint: %s", reason)
            if quarantine_damaged:
                self._quarantine(path)
        if not newest_valid and (damaged or (self.folder / QUARANTINE).exists()):
            raise CheckpointError(
                f"{self.folder}: no valid checkpoint; put a good one back, or start over with "
                + as_option("fresh")
            )
        return newest_valid

    def best(self) -> Optional[Checkpoint]:
        """Return the valid checkpoint whose monitored metric is the best, the earliest of equals.

        None if none was evaluated. Damaged ones are logged; raises CheckpointError if all are.
        Raises OutdatedFormatError if none has a format that is read.
        """
        checkpoints, unreadable = self._read_manifests()
        _require_current_format(checkpoints, unreadable)
        evaluated = [
            (score, checkpoint)
            for checkpoint in checkpoints
            if (score := checkpoint.info.score) is not None
        ]
        for _, checkpoint in sorted(evaluated, key=lambda scored: -scored[0]):
            if not (error := self._damage(checkpoint)):
                return checkpoint
            if not checkpoint.path.exists():  # its writer has deleted it: list again
                return self.best()
            log.warning("damaged checkpoint: %s", error)
        if evaluated:
            raise CheckpointError(f"{self.folder}: no evaluated checkpoint is valid")
        return None

    def prune(self, saving: Saving) -> list[str]:
        """Delete the checkpoints that `saving` does not keep; return their names.

        The manifest goes first: what an interrupted deletion leaves is no checkpoint.
        Raises OutputError.
        """
        dropped = self.checkpoints_to_prune(saving)
        for checkpoint in dropped:
            remove(checkpoint.path)
        if dropped:
            # Else a power failure could bring back a manifest whose data files are gone.
            sync_folder(self.folder)
        for checkpoint in dropped:
            for name in checkpoint.manifest["files"]:
                remove(checkpoint.path.with_name(name))
                self._hashed.pop(checkpoint.path.with_name(name), None)
        return [checkpoint.name for checkpoint in dropped]

    def checkpoints_to_prune(self, saving: Saving) -> list[Checkpoint]:
        """Return the checkpoints that `saving` does not keep.

        A damaged checkpoint must not take a place from a good one, such as that of the best. As
        only those that are kept are verified, which takes time, this repeats without the damaged
        ones until it keeps none. They are not pruned either, but left for the quarantine.
        """
        candidates = {checkpoint.name: checkpoint for checkpoint in self.all()}
        verified: set[str] = set()
        while True:
            kept = saving.kept(checkpoint.info for checkpoint in candidates.values())
            dropped = [checkpoint for name, checkpoint in candidates.items() if name not in kept]
            if not dropped:
                return []
            damaged = [
                name
                for name in candidates
                if name in kept - verified and not self._is_unchanged_or_valid(candidates[name])
            ]
            if not damaged:
                return dropped
            for name in damaged:
                del candidates[name]
            verified |= kept

    def _is_valid(self, checkpoint: Checkpoint) -> bool:
        """Return whether it verifies; log the reason if not."""
        if error := self._damage(checkpoint):
            log.warning("damaged checkpoint: %s", error)
        return not error

    def _damage(self, checkpoint: Checkpoint) -> Optional[CheckpointError]:
        """Return why it does not verify; None if it does, and then remember its files."""
        paths = {name: checkpoint.path.with_name(name) for name in checkpoint.manifest["files"]}
        signatures: dict[Path, FileSignature] = {}
        with contextlib.suppress(OSError):  # a file that is missing, which is damage
            # From before it is read: a file that changes meanwhile has another one afterwards.
            signatures = {path: _file_signature(path) for path in paths.values()}
        error = checkpoint.damage()
        if not error and signatures:
            entries = checkpoint.manifest["files"]
            self._hashed.update(
                {path: (signatures[path], entries[name]) for name, path in paths.items()}
            )
        return error

    def _is_unchanged_or_valid(self, checkpoint: Checkpoint) -> bool:
        """Return whether it verifies, without reading files that are as they were written.

        Those are the files whose signature is that with which this process hashed them, or that
        have not been changed since their manifest was written, after them. This is enough for
        checkpoints that are not loaded now.
        """
        with contextlib.suppress(OSError):
            written = checkpoint.path.stat().st_mtime_ns
            if all(
                self._is_unchanged(checkpoint.path.with_name(name), entry, written)
                for name, entry in checkpoint.manifest["files"].items()
            ):
                return True
        return self._is_valid(checkpoint)

    def _is_unchanged(self, path: Path, entry: Mapping[str, Any], manifest_written: int) -> bool:
        signature = _file_signature(path)
        size, modified, changed, _ = signature
        # Strictly, as the clock of a file system is coarse; its change of name may be that close.
        is_older = modified < manifest_written and changed <= manifest_written
        return self._hashed.get(path) == (signature, entry) or (is_older and size == entry["size"])

    def find_damaged(self) -> dict[Path, CheckpointError]:
        """Verify every checkpoint; return, by manifest, why the damaged ones cannot be used.

        Moves nothing.
        """
        checkpoints, unreadable = self._read_manifests()
        errors = dict(unreadable)
        for checkpoint in checkpoints:
            if error := checkpoint.damage():
                errors[checkpoint.path] = error
        # One whose manifest is gone by now was deleted by a training, not damaged.
        return {path: error for path, error in errors.items() if path.exists()}

    def orphaned_files(self) -> list[Path]:
        """Return the files that belong to no checkpoint: temporary ones, and unlisted data.

        They are left by an interrupted save or deletion, or by a lost manifest.
        """
        checkpoints, unreadable = self._read_manifests()
        listed = {name for checkpoint in checkpoints for name in checkpoint.manifest["files"]}
        listed |= {path.stem + suffix for path, _ in unreadable for suffix in DATA_SUFFIXES}
        data = [path for suffix in DATA_SUFFIXES for path in self.folder.glob(ANY_NAME + suffix)]
        return sorted(
            [path for path in data if path.name not in listed]
            + list(self.folder.glob(f".{ANY_NAME}{PART}"))
        )

    def quarantined(self) -> list[Path]:
        """Return the folders of the quarantined checkpoints."""
        return sorted((self.folder / QUARANTINE).glob("*"))

    def _quarantine(self, manifest: Path) -> None:
        """Move a checkpoint's files to a folder of their own in `quarantine/`."""
        quarantine = self.folder / QUARANTINE
        target = first_free(quarantine / f"{manifest.stem}.{n}" for n in itertools.count(1))
        make_folder(target)
        with writing(target):
            # The manifest sorts first: what an interrupted move leaves behind is no checkpoint.
            for path in sorted(self.folder.glob(f"{glob.escape(manifest.stem)}.*")):
                os.replace(path, target / path.name)
        log.warning("moved to %s", target)

    def remove_temporary_files(self) -> None:
        """Delete the temporary files of interrupted saves. For the one writer of the folder."""
        remove_temporary(self.folder, "*_epoch")


def _require_current_format(
    checkpoints: Sequence[Checkpoint], unreadable: Sequence[tuple[Path, CheckpointError]]
) -> None:
    """Raise OutdatedFormatError if all that could be read are manifests of such a format."""
    outdated = [error for _, error in unreadable if isinstance(error, OutdatedFormatError)]
    if outdated and not checkpoints:
        raise outdated[0]


def _lists_files(manifest: Path, entries: Mapping[str, Any]) -> bool:
    """Return whether there is a manifest that lists exactly these files, with these contents."""
    try:
        return bool(read_manifest(manifest).manifest["files"] == entries)
    except CheckpointError:
        return False

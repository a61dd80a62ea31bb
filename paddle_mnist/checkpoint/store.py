"""Checkpoints on the disk: commit, verify, list, set aside.

A checkpoint is `{NAME}_epoch{E}.pdparams`, `.pdopt`, with an average of the weights `.pdtrain`, and
`.json`, the manifest. It exists when its
manifest does, with the checksum that stands in it, and the files named there have the sizes and
SHA-256s given there. Order of a commit: each file is written under a temporary name, forced to the
disk and renamed; the manifest last. Until then the checkpoint is not there, from then on it is
whole.
"""

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from paddle_mnist.checkpoint.policy import CheckpointInfo, RetentionPolicy
from paddle_mnist.checkpoint.safe_load import safe_loads
from paddle_mnist.errors import CheckpointError
from paddle_mnist.state import BEST, TrainState
from paddle_mnist.system.files import (
    PART,
    make_folder,
    remove,
    remove_temporary,
    sync_folder,
    write_atomically,
    writing,
)

log = logging.getLogger("paddle_mnist")

FORMAT = 2  # of the manifest; 1 had no checksum, scores, breakpoints and averages
ANY = "*_epoch*"  # what names of checkpoints look like
PARAMS, OPTIMIZER = ".pdparams", ".pdopt"
TRAINING = ".pdtrain"  # the weights in training, where .pdparams holds their average
DATA = (PARAMS, OPTIMIZER, TRAINING)
BREAKPOINT = "_breakpoint"  # the end of a name
QUARANTINE = "quarantine"
CHECKSUM = "checksum"  # the entry of a manifest that protects the others


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: the manifest's path and contents."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def state(self) -> TrainState:
        return TrainState.from_dict(self.manifest["state"])

    @property
    def order(self) -> tuple[int, int]:
        """Later ones are greater; after an epoch is later than inside it, at the same step."""
        return self.manifest["state"]["step"], self.manifest["state"]["epoch"]

    @property
    def step(self) -> int:
        return self.manifest["state"]["step"]

    @property
    def saved(self) -> CheckpointInfo:
        """What the policy of keeping looks at."""
        state = self.manifest["state"]
        return CheckpointInfo(
            self.name,
            self.order,
            time=self.manifest["saved_at"],
            ends_epoch=state["position"] == 0,
            score=state["metrics"].get(BEST),
            breakpoint=self.name.endswith(BREAKPOINT),
        )

    @property
    def size(self) -> int:
        """Bytes on the disk, the manifest's too; none of files that are gone."""
        paths = [self.path, *map(self.path.with_name, self.manifest["files"])]
        total = 0
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def has(self, suffix: str) -> bool:
        """Whether it names such a file."""
        return self.name + suffix in self.manifest["files"]

    def read(self, suffix: str) -> bytes:
        """The bytes of one of its files. Raises CheckpointError unless they are the committed."""
        name = self.name + suffix
        expected = self.manifest["files"].get(name)
        if expected is None:
            raise CheckpointError(f"{self.path}: names no {name}; expected one; use another")
        path = self.path.with_name(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}; {self.path.name} names it") from error
        found = _fingerprint(data)
        if found != expected:
            raise CheckpointError(
                f"{path}: {found['size']} bytes, SHA-256 {found['sha256'][:12]}...; "
                f"{self.path.name} says {expected['size']} bytes, {expected['sha256'][:12]}..."
            )
        return data

    def in_memory(self) -> "Checkpoint":
        """The same, with what is in its files, for a process that cannot read them."""
        return _InMemory(
            self.path,
            self.manifest,
            {Path(name).suffix: self.read(Path(name).suffix) for name in self.manifest["files"]},
        )

    def load(self, suffix: str) -> dict[str, Any]:
        """The dictionary in one of its files, tensors as NumPy arrays. Raises CheckpointError."""
        return safe_loads(self.read(suffix), self.path.with_name(self.name + suffix))

    def verify(self) -> None:
        """Raises CheckpointError unless every file is there and as committed."""
        for name in self.manifest["files"]:
            self.read(Path(name).suffix)


@dataclass(frozen=True)
class _InMemory(Checkpoint):
    contents: Mapping[str, bytes]

    def read(self, suffix: str) -> bytes:
        return self.contents[suffix]


Signature = tuple[int, ...]


def _signature(path: Path) -> Signature:
    """What changes when a file does: size, times of change and number on its disk."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _fingerprint(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over all entries but itself, as JSON without white space, keys in order."""
    others = {key: value for key, value in manifest.items() if key != CHECKSUM}
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: Union[str, Path]) -> Checkpoint:
    """The checkpoint whose manifest is at `path`. Raises CheckpointError."""
    path = Path(path)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
        if version not in (1, FORMAT):
            raise CheckpointError(
                f"{path}: format {version!r:.40}; this version reads formats up to {FORMAT}; "
                "use the package it was written with"
            )
        sealed = CHECKSUM in manifest or version > 1
        if sealed and manifest.get(CHECKSUM) != _checksum(manifest):
            raise CheckpointError(
                f"{path}: its checksum is not that of its entries, so it is damaged or was edited; "
                "use another"
            )
        names = [path.stem + suffix for suffix in DATA]
        if set(manifest["files"]) not in (set(names[:2]), set(names)):
            raise CheckpointError(f"{path}: names other files than {', '.join(names)}")
        for entry in manifest["files"].values():
            int(entry["size"]), str(entry["sha256"])
        state = TrainState.from_dict(manifest["state"])
        if min(state.epoch, state.position, state.step, state.samples) < 0:
            raise ValueError("a state before the beginning")
        float(manifest["saved_at"])
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; expected a manifest") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path}: not a manifest ({reason}); use another") from error
    return Checkpoint(path, manifest)


def _names(path: Path, fingerprints: Mapping[str, Any]) -> bool:
    """Whether a manifest is there, and of these very contents."""
    try:
        return read_manifest(path).manifest["files"] == fingerprints
    except CheckpointError:
        return False


class CheckpointStore:
    """The checkpoints in one folder.

    context: what every manifest binds beside the state: config, data hash, versions, ...
    """

    def __init__(self, folder: Union[str, Path], context: Optional[Mapping[str, Any]] = None):
        self.folder = Path(folder)
        self.context = dict(context or {})
        # What this process wrote or hashed, by path: looks at a checkpoint that is only to be kept
        # need not read it again.
        self._hashed: dict[Path, tuple[Signature, Mapping[str, Any]]] = {}

    def commit(
        self,
        name: str,
        files: Mapping[str, bytes],
        state: TrainState,
        more: Optional[Mapping[str, Any]] = None,
    ) -> Checkpoint:
        """Write a checkpoint, whole or not at all. Raises OutputError.

        files: contents by suffix. more: further entries of the manifest.
        """
        make_folder(self.folder)
        path = self.folder / f"{name}.json"
        fingerprints = {name + suffix: _fingerprint(data) for suffix, data in files.items()}
        if not _names(path, fingerprints):
            remove(path)  # while its files change, an old one is not there either
        for suffix, data in files.items():
            part = self.folder / (name + suffix)
            write_atomically(part, data)
            self._hashed[part] = _signature(part), fingerprints[part.name]
        manifest = {
            "format": FORMAT,
            "files": fingerprints,
            "state": state.as_dict(),
            "saved_at": time.time(),
            **self.context,
            **(more or {}),
        }
        manifest = json.loads(json.dumps(manifest, allow_nan=False))  # as it will be read
        manifest[CHECKSUM] = _checksum(manifest)
        sync_folder(self.folder)
        write_atomically(path, json.dumps(manifest, indent=1).encode())
        sync_folder(self.folder)
        return Checkpoint(path, manifest)

    def prune(self, keep: RetentionPolicy) -> list[str]:
        """Delete the checkpoints that a policy drops; gives their names. Raises OutputError.

        The manifest goes first: what is left of a deletion that was broken off is no checkpoint.
        """
        dropped = self.dropped(keep)
        for checkpoint in dropped:
            remove(checkpoint.path)
        if dropped:
            sync_folder(self.folder)  # a power loss may else bring back a manifest without its data
        for checkpoint in dropped:
            for name in checkpoint.manifest["files"]:
                remove(checkpoint.path.with_name(name))
                self._hashed.pop(checkpoint.path.with_name(name), None)
        return [checkpoint.name for checkpoint in dropped]

    def dropped(self, keep: RetentionPolicy) -> list[Checkpoint]:
        """What a policy lets go. What it keeps is whole: damaged ones count for nothing there.

        They are not let go either, but left to be set aside.
        """
        left, whole = self.all(), set()
        while True:
            kept = keep(checkpoint.saved for checkpoint in left)
            dropped = [checkpoint for checkpoint in left if checkpoint.name not in kept]
            unseen = [one for one in left if one.name in kept and one.name not in whole]
            damaged = [one for one in unseen if not self._known_whole(one)] if dropped else []
            if not damaged:
                return dropped
            left = [one for one in left if one not in damaged]
            whole |= {one.name for one in unseen if one not in damaged}

    def all(self) -> list[Checkpoint]:
        """The checkpoints with a readable manifest, oldest first, by step. Moves nothing."""
        return self._read()[0]

    def _read(self) -> tuple[list[Checkpoint], list[tuple[Path, CheckpointError]]]:
        """The checkpoints, by step, and the manifests that cannot be read, with the reason."""
        found, unreadable = [], []
        for path in sorted(self.folder.glob(f"{ANY}.json")):
            try:
                found.append(read_manifest(path))
            except CheckpointError as error:
                if path.exists():  # not one that the writer has just deleted
                    unreadable.append((path, error))
        return sorted(found, key=lambda checkpoint: checkpoint.order), unreadable

    def newest(self, set_aside: bool = False) -> Optional[Checkpoint]:
        """The newest checkpoint that verifies; None in a folder that never held one.

        Damaged ones that are newer are named, and moved to `quarantine/` if `set_aside`, which is
        for the one writer of the folder. Raises CheckpointError if there are some and none is
        whole: a training never starts anew because of damage.
        """
        found, damaged = self._read()
        whole = None
        while found and not whole:
            try:
                found[-1].verify()
                whole = found[-1]
            except CheckpointError as error:
                if not found[-1].path.exists():  # its writer has deleted it: what is there now?
                    return self.newest(set_aside)
                damaged.append((found.pop().path, error))
        for path, reason in damaged:
            log.warning("damaged checkpoint: %s", reason)
            if set_aside:
                self._set_aside(path)
        if not whole and (damaged or (self.folder / QUARANTINE).exists()):
            raise CheckpointError(
                f"{self.folder}: no checkpoint is whole; put a good one back, or start over with "
                "--fresh"
            )
        return whole

    def best(self) -> Optional[Checkpoint]:
        """The whole checkpoint with the highest validation accuracy, the earliest of equals.

        None if none was judged. Damaged ones are named; raises CheckpointError if all are.
        """
        scored = [checkpoint for checkpoint in self.all() if checkpoint.saved.score is not None]
        for checkpoint in sorted(scored, key=lambda one: -one.saved.score):
            if self._whole(checkpoint):
                return checkpoint
            if not checkpoint.path.exists():  # its writer has deleted it: what is there now?
                return self.best()
        if scored:
            raise CheckpointError(f"{self.folder}: no checkpoint that was judged is whole")
        return None

    @staticmethod
    def _whole(checkpoint: Checkpoint) -> bool:
        """Whether it verifies; says so if not."""
        try:
            checkpoint.verify()
            return True
        except CheckpointError as error:
            log.warning("damaged checkpoint: %s", error)
            return False

    def _known_whole(self, checkpoint: Checkpoint) -> bool:
        """The same, without reading files again that have not changed since this process did.

        For checkpoints that are not going to be loaded.
        """
        files = checkpoint.manifest["files"]
        paths = {name: checkpoint.path.with_name(name) for name in files}
        try:
            signatures = {name: _signature(path) for name, path in paths.items()}
        except OSError:
            return self._whole(checkpoint)
        if all(self._hashed.get(paths[name]) == (signatures[name], files[name]) for name in files):
            return True
        whole = self._whole(checkpoint)
        if whole:  # a file that changed while it was read has another signature now
            self._hashed.update({paths[name]: (signatures[name], files[name]) for name in files})
        return whole

    def damage(self) -> dict[Path, CheckpointError]:
        """Why checkpoints cannot be used, by manifest; every one is verified. Moves nothing."""
        found, unreadable = self._read()
        reasons = dict(unreadable)
        for checkpoint in found:
            try:
                checkpoint.verify()
            except CheckpointError as error:
                reasons[checkpoint.path] = error
        # What is gone by now a training has just let go.
        return {path: reason for path, reason in reasons.items() if path.exists()}

    def strays(self) -> list[Path]:
        """Files of no checkpoint: temporary ones, and data that no manifest names.

        They are what a save or a deletion that was broken off leaves, or a manifest that was lost.
        """
        found, unreadable = self._read()
        named = {name for checkpoint in found for name in checkpoint.manifest["files"]}
        named |= {path.stem + suffix for path, _ in unreadable for suffix in DATA}
        data = [path for suffix in DATA for path in self.folder.glob(f"{ANY}{suffix}")]
        return sorted(
            [path for path in data if path.name not in named]
            + list(self.folder.glob(f".{ANY}{PART}"))
        )

    def quarantined(self) -> list[Path]:
        """The folders of the checkpoints that were set aside."""
        return sorted((self.folder / QUARANTINE).glob("*"))

    def _set_aside(self, manifest: Path) -> None:
        """Move a checkpoint's files to a folder of their own in `quarantine/`."""
        quarantine = self.folder / QUARANTINE
        number = 1
        while (target := quarantine / f"{manifest.stem}.{number}").exists():
            number += 1
        make_folder(target)
        with writing(target):  # the manifest first: what is left behind is no checkpoint
            for path in sorted(self.folder.glob(f"{manifest.stem}.*")):
                os.replace(path, target / path.name)
        log.warning("moved to %s", target)

    def clear(self) -> None:
        """Delete the temporary files of saves that were broken off; for the one writer."""
        remove_temporary(self.folder, "*_epoch")

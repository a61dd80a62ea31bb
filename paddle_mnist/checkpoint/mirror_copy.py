"""`MirrorCopy`: the copy of a run under a URL. Only the uploader's process uses it.

The copy has the files of the run directory, under the same names. There is no list of what waits to
be uploaded: that is the difference between both folders, so that nothing is lost with a process.
The order is that of the disk: the manifest of a checkpoint comes last.

The first file of a copy is its list, by which it is recognized: it names the files that it has, or
is about to have, among `checkpoints`. No other file there is ever deleted or moved.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Optional

from paddle_mnist.checkpoint.manifest import CHECKSUM, PARAMS, Checkpoint, read_manifest
from paddle_mnist.checkpoint.remote_checkpoints import CHECKPOINTS, RemoteCheckpoints
from paddle_mnist.checkpoint.run import METRICS_LINES, MIRROR_RECORD, RunDirectory
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.errors import CheckpointError, RunLockedError, listed
from paddle_mnist.system.files import PART, make_folder, sync_folder, write_atomically
from paddle_mnist.system.lock import LOCK
from paddle_mnist.system.remote import RemoteFolder

log = logging.getLogger("paddle_mnist")

ASIDE = "aside"
LIST = ".copy"
MADE_BY = "paddle_mnist"  # in the list
MOST_BYTES = 2**32  # of the metrics or the log
PROBE = ".probe"
PASSING = (PROBE, f".{PROBE}", f".{LIST}{PART}")  # how names of files in an empty place may begin


def identity(checkpoint: Optional[Checkpoint]) -> Optional[str]:
    """Return what tells a checkpoint from all others, also from those of its name."""
    return str(checkpoint.manifest[CHECKSUM]) if checkpoint else None


class MirrorCopy:
    """The copy of a run under a URL.

    Its methods raise what drivers raise, and RunLockedError if another process has written there.
    """

    def __init__(self, url: str, run: RunDirectory, saving: Saving):
        self.remote = RemoteFolder(url)
        self.run = run
        self.saving = saving
        self._listing = RemoteCheckpoints(self.remote, run.checkpoints.folder)
        # Which checkpoints may be the newest of the copy; None before the copy was seen.
        self._known: Optional[set[Optional[str]]] = None
        self._skipped: set[Optional[str]] = set()
        self._list: dict[str, Any] = {}  # as it is there; empty before the copy was seen
        self._is_unfinished = False  # whether the copy has no result for certain
        self._written: dict[str, str] = {}  # SHA-256 of the small files

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints of the copy, by step, with the paths that they have in the run.

        Raises CheckpointError for a place that is neither empty nor a copy.
        """
        copies = self._listing.read()
        if not self._list:
            self._list = self._recognize(copies)
        return copies

    def _recognize(self, copies: Sequence[Checkpoint]) -> dict[str, Any]:
        """Return the list of the copy. Copies of former versions have none, but manifests."""
        folders = self.remote.folders()
        folders += [f"{CHECKPOINTS}/{one}" for one in self.remote.folders(CHECKPOINTS)]
        found = {name for name in self._sizes() if not name.startswith(PASSING)}
        found = found.union(f"{one}/" for one in folders) - {CHECKPOINTS, f"{CHECKPOINTS}/"}
        missing_or_others = (FileNotFoundError, ValueError, KeyError, TypeError)
        with contextlib.suppress(*missing_or_others):  # last: another may begin now
            there = json.loads(self.remote.read(LIST, MOST_BYTES))
            if there["made_by"] == MADE_BY:
                return _list([*map(str, there["checkpoints"])], int(there["aside"]))
        if LOCK in found or (found and not copies):
            raise CheckpointError(
                f"{self.remote.url}: holds {listed(sorted(found), most=3)}, so it is neither empty "
                f"nor the mirror of a run; nothing is changed there; choose another mirror"
            )
        return {**_list([]), "made_by": ""}  # other than any that is written: none is there yet

    def _sizes(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of the files of a copy, by their names below a folder."""
        inside = self.remote.sizes(f"{folder}/{CHECKPOINTS}".lstrip("/"))
        inside = {f"{CHECKPOINTS}/{name}": size for name, size in inside.items()}
        return {**inside, **self.remote.sizes(folder)}

    def _own(self) -> set[str]:
        """Return those files among `checkpoints` that are the copy's, temporary ones included."""
        own = self._listing.named().union(self._list["checkpoints"])
        return own.union(f".{one}{PART}" for one in own).intersection(self._listing.names)

    def _write_list(self, new: Iterable[str] = (), aside: int = 0) -> None:
        """Write the list. new: what is about to be uploaded. aside: see `_list`."""
        content = _list(sorted(self._own().union(new)), aside)
        if content != self._list:
            self.remote.write(LIST, json.dumps(content).encode())
            self._list = content

    # At the start of a training

    def look(self) -> dict[str, Any]:
        """Return what the copy holds, plainly; from now on, it is known."""
        copies = self.checkpoints()
        if not copies and not self._listing.damaged:  # fail now rather than hours later
            probe = f"{PROBE}.{secrets.token_hex(8)}"  # two machines may start at once
            self.remote.write(probe, b"paddle_mnist\n")
            self.remote.remove(probe)
        self._known = {identity(copies[-1] if copies else None)}
        return {
            "manifests": {checkpoint.path.name: checkpoint.manifest for checkpoint in copies},
            "damaged": list(self._listing.damaged.values()),
            "uploaded": [one for one in self._recorded() or () if one],
        }

    def download(self, name: str, with_log: bool) -> None:
        """Download a checkpoint, with the metrics up to it. Raises CheckpointError for damage.

        name: of the manifest. with_log: put the log of the copy before the run's.
        """
        checkpoint = next(one for one in self.checkpoints() if one.path.name == name)
        contents, sizes = {}, self.remote.sizes(CHECKPOINTS)
        for file, entry in checkpoint.manifest["files"].items():
            where = f"{CHECKPOINTS}/{file}"
            if sizes.get(file) != entry["size"]:
                raise CheckpointError(
                    f"{self.remote.url}/{where}: {sizes.get(file, 'no')} bytes, but {name} says "
                    f"{entry['size']}"
                )
            contents[file] = self.remote.read(where, entry["size"])
            if hashlib.sha256(contents[file]).hexdigest() != entry["sha256"]:
                raise CheckpointError(
                    f"{self.remote.url}/{where}: another SHA-256 than {name} says"
                )
        self._download_history(with_log)
        make_folder(checkpoint.path.parent)
        for file, data in contents.items():
            write_atomically(checkpoint.path.with_name(file), data)
        sync_folder(checkpoint.path.parent)
        self._record({*(self._known or ()), identity(checkpoint)})
        write_atomically(checkpoint.path, _encoded(checkpoint))
        sync_folder(checkpoint.path.parent)

    def _download_history(self, with_log: bool) -> None:
        names = self.remote.sizes()
        if self.run.metrics.name in names:
            metrics = self.remote.read(self.run.metrics.name, MOST_BYTES)
            write_atomically(self.run.metrics, metrics)
        if with_log and self.run.log.name in names:
            earlier = self.remote.read(self.run.log.name, MOST_BYTES)
            # The training has it open, to append to it.
            with self.run.log.open("r+b") as file:
                now = file.read()
                file.seek(0)
                file.write(earlier + now)

    def move_aside(self) -> dict[str, Any]:
        """Move the copy of a former run to a folder under the same URL; return its name as target.

        An interrupted move leaves a copy that is complete, or none. The next one goes on with it.
        """
        copies, sizes = self.checkpoints(), self._sizes()
        own = [f"{CHECKPOINTS}/{one.path.name}" for one in copies]  # oldest first
        own += [path.name for path in (self.run.weights, *self._small_files(), self.run.result)]
        own += [f"{one.name.rpartition('_epoch')[0]}{PARAMS}" for one in copies]
        own += [f"{CHECKPOINTS}/{name}" for name in self._own()]
        names = [name for name in dict.fromkeys(own) if name in sizes]
        number = self._list["aside"]
        if names and not number:
            taken = self.remote.folders()
            number = next(n for n in itertools.count(1) if f"{ASIDE}.{n}" not in taken)
            self._write_list(aside=number)
        target = f"{ASIDE}.{number}" if number else None
        if target:
            there = self._sizes(target)  # what an interrupted move has copied already
            for name in names:
                if there.get(name) != sizes[name]:
                    self.remote.copy(name, f"{target}/{name}")
            for name in names:
                self.remote.remove(name)
            self.checkpoints()  # of which none is left
            self._write_list()
        self._record({None})
        return {"target": target}

    # During a training

    def upload_next(self) -> bool:
        """Upload the checkpoint that is next; return False if none waits."""
        copies = self.checkpoints()
        self._require_own(copies)
        waiting = self.waiting(copies)
        if not waiting:
            return False
        checkpoint = _most_urgent(waiting, copies)
        if not self._upload_files(checkpoint, copies):
            return True
        self._require_own(self.checkpoints())
        # Should this process die meanwhile, either may be the newest.
        self._record({*(self._known or ()), identity(checkpoint)})
        self.remote.write(f"{CHECKPOINTS}/{checkpoint.path.name}", _encoded(checkpoint))
        copies = self.checkpoints()
        self._require_own(copies)
        self._record({identity(copies[-1])})
        self._prune(copies)
        return True

    def _upload_files(self, checkpoint: Checkpoint, copies: Sequence[Checkpoint]) -> bool:
        """Upload all but the manifest; return False if the checkpoint is deleted, or damaged."""
        with contextlib.ExitStack() as stack:  # what is open outlives its deletion
            files: dict[str, BinaryIO] = {}
            with contextlib.suppress(FileNotFoundError):
                for name in checkpoint.manifest["files"]:
                    files[name] = stack.enter_context(checkpoint.path.with_name(name).open("rb"))
            if not _is_there(checkpoint):
                return False
            self._write_list([checkpoint.path.name, *checkpoint.manifest["files"]])
            if not (self._is_unfinished or self.run.result.exists()):
                self.remote.remove(self.run.result.name)  # of the run before it was continued
                self._is_unfinished = True
            if not copies or copies[-1].sort_key <= checkpoint.sort_key:  # else shorter metrics
                self._write_small(checkpoint.manifest.get(METRICS_LINES))
            self._remove_of_same_name(checkpoint, copies)
            for name, entry in checkpoint.manifest["files"].items():
                data = files[name].read() if name in files else b""
                if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                    path = checkpoint.path.with_name(name)
                    log.warning("not uploaded, because it is damaged: %s", path)
                    self._skipped.add(identity(checkpoint))
                    return False
                self.remote.write(f"{CHECKPOINTS}/{name}", data)
        return True

    def upload_result(self) -> None:
        """Upload the final weights and the result, if there is one, and the log."""
        self._require_own(self.checkpoints())
        self._write_list()
        self._write_small(None)
        if self.run.result.exists():
            self._write_changed(self.run.weights.name, self.run.weights.read_bytes())
            self._write_changed(self.run.result.name, self.run.result.read_bytes())

    def waiting(self, copies: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Return the checkpoints that are to be uploaded, oldest first.

        Those are kept on the disk too; of those inside epochs, only the newest, unless a rule other
        than `keep_last` keeps it.
        """
        local = {one.name: one for one in self.run.checkpoints.all()}
        there = {identity(one) for one in copies}
        known = {one.name: one for one in [*copies, *local.values()]}.values()
        kept = self.saving.kept(known)
        at_once = replace(self.saving, keep_last=1).kept(known)
        return [
            one
            for name, one in local.items()
            if identity(one) not in there | self._skipped
            and name in kept
            and (one.ends_epoch or name in at_once)
        ]

    def names_waiting(self) -> list[str]:
        """Return the names of what waits, by what the copy held when it was last seen."""
        return [one.name for one in self.waiting(self._listing.last_read())]

    def _write_small(self, lines: Optional[int]) -> None:
        """Upload the files beside the checkpoints. lines: how many of `metrics.jsonl`; all."""
        for path in self._small_files():
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
                if path == self.run.metrics and lines is not None:
                    data = b"".join(data.splitlines(keepends=True)[:lines])
                self._write_changed(path.name, data)

    def _small_files(self) -> tuple[Path, ...]:
        return self.run.metrics, self.run.config, self.run.log

    def _write_changed(self, name: str, data: bytes) -> None:
        digest = hashlib.sha256(data).hexdigest()
        if self._written.get(name) != digest:
            self._written.pop(name, None)
            self.remote.write(name, data)
            self._written[name] = digest

    def _remove_of_same_name(self, new: Checkpoint, copies: Sequence[Checkpoint]) -> None:
        """Delete the manifest of an older checkpoint whose files are to be replaced."""
        for old in copies:
            if old.name == new.name and old.manifest["files"] != new.manifest["files"]:
                others = [one for one in copies if one is not old]
                known = self._known or set()
                self._record({*known, identity(others[-1] if others else None)})
                self.remote.remove(f"{CHECKPOINTS}/{old.path.name}")

    def _prune(self, copies: Sequence[Checkpoint]) -> None:
        """Delete leftovers, and the checkpoints that the run does not keep, the manifest first."""
        for name in self._own() - self._listing.named():
            self.remote.remove(f"{CHECKPOINTS}/{name}")
        kept = self.saving.kept(copies)
        for checkpoint in copies:
            if checkpoint.name not in kept:
                self.remote.remove(f"{CHECKPOINTS}/{checkpoint.path.name}")
                for name in checkpoint.manifest["files"]:
                    self.remote.remove(f"{CHECKPOINTS}/{name}")

    # Whose copy it is

    def _require_own(self, copies: Sequence[Checkpoint]) -> None:
        """Raise RunLockedError if another process has uploaded a checkpoint, or moved the copy."""
        newest = copies[-1] if copies else None
        if self._known is None:  # it could not be reached when the training started
            recorded = self._recorded()
            local = {identity(one) for one in self.run.checkpoints.all()}
            self._known = {*local, *({None} if recorded is None else recorded)}
        if identity(newest) not in self._known:
            found = f"holds {newest.name}, which another process uploaded" if newest else "is empty"
            raise RunLockedError(
                f"{self.remote.url}: {found}; expected the copy as this training left it; stop one "
                "of both, or give each a mirror of its own"
            )

    def _record(self, known: set[Optional[str]]) -> None:
        self._known = known
        record = {"url": self.remote.url, "newest": sorted(known, key=str)}
        write_atomically(self.run.path / MIRROR_RECORD, json.dumps(record).encode())

    def _recorded(self) -> Optional[list[Optional[str]]]:
        """Return what was recorded for this URL; None without a record."""
        try:
            record = json.loads((self.run.path / MIRROR_RECORD).read_bytes())
            return list(record["newest"]) if record["url"] == self.remote.url else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _list(checkpoints: list[str], aside: int = 0) -> dict[str, Any]:
    """Return a list. aside: the number of the folder to which the copy is being moved; else 0."""
    return {"made_by": MADE_BY, "checkpoints": checkpoints, "aside": aside}


def _most_urgent(waiting: Sequence[Checkpoint], copies: Sequence[Checkpoint]) -> Checkpoint:
    """Return the newest, or once it is there its best, with which a run may end, or the next."""
    newest = max([*copies, *waiting], key=lambda one: one.sort_key)
    return max(waiting, key=lambda one: (one is newest, one.is_best_of(newest), one.sort_key))


def _is_there(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is still on the disk, and not another of its name."""
    try:
        return identity(read_manifest(checkpoint.path)) == identity(checkpoint)
    except CheckpointError:
        return False


def _encoded(checkpoint: Checkpoint) -> bytes:
    return json.dumps(checkpoint.manifest, indent=1).encode()

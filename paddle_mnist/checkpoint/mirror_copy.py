"""`MirrorCopy`: the copy of a run under a URL, and the process that reads and writes it.

The copy has the files of the run directory, under the same names. There is no list of what waits to
be uploaded: that is the difference between both folders, so that nothing is lost with a process.
The order is that of the disk: the manifest of a checkpoint comes last.

The first file of a copy is its mark, by which it is recognized. Among `checkpoints`, only files
with the names of checkpoints are ever deleted or moved.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Optional

from paddle_mnist.checkpoint.manifest import (
    CHECKSUM,
    PARAMS,
    Checkpoint,
    parse_manifest,
    read_manifest,
)
from paddle_mnist.checkpoint.mirror import PROGRESS, Contents, checkpoints_to_upload
from paddle_mnist.checkpoint.run import MIRROR_LOCK, MIRROR_RECORD, RunDirectory
from paddle_mnist.checkpoint.saving import Saving, best_first
from paddle_mnist.errors import (
    CheckpointError,
    DeviceError,
    PaddleMnistError,
    RunLockedError,
    listed,
)
from paddle_mnist.system.files import PART, make_folder, sync_folder, write_atomically
from paddle_mnist.system.lock import locked
from paddle_mnist.system.remote import Failure, RemoteFolder, failure

CHECKPOINTS = "checkpoints"
ASIDE = "aside"
MARK = ".copy"
# A file of a checkpoint, perhaps under its temporary name.
OWN_NAME = re.compile(r"\.?(.+_epoch\d+(?:_step\d+)?(?:_breakpoint)?)\.(?:json|pd\w+)(?:\.part)?")
MOST_BYTES = 2**32  # of the metrics, the log or a manifest


class MirrorCopy:
    """The copy of a run under a URL.

    Its methods raise what drivers raise, and RunLockedError if another process has written there.
    """

    def __init__(self, url: str, run: RunDirectory, saving: Saving):
        self.remote = RemoteFolder(url)
        self.run = run
        self.saving = saving
        # Which manifests may be the newest of the copy, None for an empty one.
        self._known: Optional[set[Optional[str]]] = None  # before the copy was seen
        self._manifests: dict[tuple[str, int], Checkpoint] = {}  # those read, by name and size
        self._damaged: list[str] = []  # why other manifests cannot be read
        self._files: set[str] = set()  # all names in `checkpoints`
        # The number of the folder to which the copy is being moved, or 0, as the mark says.
        self._aside: Optional[int] = None  # without a mark, or before it was read
        self._skipped: dict[str, Path] = {}  # damaged files of the run, by checksum of the manifest
        self._written: dict[str, str] = {}  # SHA-256 of the small files

    def _read(self) -> list[Checkpoint]:
        """Return the checkpoints of the copy, by step, with the paths that they have in the run.

        Of manifests that were read before, only the newest is read again: another process may have
        uploaded one of the same name and size.
        Raises CheckpointError for a place that is neither empty nor a copy.
        """
        sizes = self.remote.sizes(CHECKPOINTS)
        if self._aside is None:
            self._recognize()
        known, self._manifests, self._damaged, self._files = self._manifests, {}, [], {*sizes}
        if known:
            del known[max(known, key=lambda key: known[key].sort_key)]
        for name, size in sizes.items():
            if OWN_NAME.fullmatch(name) and name.endswith(".json") and not name.startswith("."):
                try:
                    self._manifests[name, size] = known.get((name, size)) or parse_manifest(
                        self.run.checkpoints.folder / name,
                        self.remote.read(f"{CHECKPOINTS}/{name}", MOST_BYTES),
                    )
                except CheckpointError as error:
                    self._damaged.append(f"{self.remote.url}/{CHECKPOINTS}/{name}: {error}")
                except FileNotFoundError:  # another process has deleted it
                    self._files.remove(name)
        return sorted(self._manifests.values(), key=lambda checkpoint: checkpoint.sort_key)

    def _recognize(self) -> None:
        """Read the mark of the copy. Raises CheckpointError for files without one."""
        found = {*self.remote.sizes(), *self.remote.folders()} - {f".{MARK}{PART}"}
        try:  # last: another process may write it now
            self._aside = int(json.loads(self.remote.read(MARK, MOST_BYTES))["aside"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            if found:
                raise CheckpointError(
                    f"{self.remote.url}: holds {listed(sorted(found), most=3)}, so it is neither "
                    "empty nor the mirror of a run; nothing is changed there; choose another mirror"
                ) from None

    def _write_mark(self, aside: int = 0) -> None:
        if aside != self._aside:
            self.remote.write(
                MARK, json.dumps({"made_by": "paddle_mnist", "aside": aside}).encode()
            )
            self._aside = aside

    # At the start of a training

    def look(self) -> Contents:
        """Return what the copy holds; from now on, it is known."""
        copies = self._read()
        if self._aside is None:  # fail now rather than hours later
            self._write_mark()
        self._known = {_checksum(copies[-1]) if copies else None}
        return Contents(copies, self._damaged, [one for one in self._recorded() or () if one])

    def pull(
        self, newer_than: Optional[tuple[int, int]], ends_with_best: bool
    ) -> tuple[list[str], list[str]]:
        """Download the newest checkpoint that is intact, and the best ones, which are kept.

        If the run ends with its best, one whose best is there, too, comes before a newer one.
        Returns the names of what was downloaded, and why others are damaged.
        """
        copies = self._read()
        downloaded, damaged = list[str](), [*self._damaged]
        here = [*copies, *self.run.checkpoints.all()]
        newer = [one for one in copies if not newer_than or one.sort_key > newer_than]
        if ends_with_best:
            newer.sort(
                key=lambda one: not one.state.best or any(best.is_best_of(one) for best in here)
            )
        for newest in reversed(newer):
            if self._download(newest, damaged, with_log=newer_than is None):
                before = [one for one in copies if one.sort_key <= newest.sort_key]
                best = best_first(before)[: self.saving.keep_best]
                missing = [one for one in best if not one.path.exists()]
                got = [one for one in missing if self._download(one, damaged)]
                downloaded = [one.name for one in (newest, *got)]
                break
        return downloaded, damaged

    def _download(self, checkpoint: Checkpoint, damaged: list[str], with_log: bool = False) -> bool:
        """Download a checkpoint and the metrics; return whether it is intact, else say why not.

        with_log: put the log of the copy before the run's.
        """
        contents = {}
        for name, entry in checkpoint.manifest["files"].items():
            where = f"{CHECKPOINTS}/{name}"
            with contextlib.suppress(FileNotFoundError, ValueError):  # it is larger
                contents[name] = self.remote.read(where, entry["size"])
            if hashlib.sha256(contents.get(name, b"")).hexdigest() != entry["sha256"]:
                damaged.append(
                    f"{self.remote.url}/{where}: not the file that {checkpoint.path.name} lists"
                )
                return False
        self._download_history(with_log)
        make_folder(checkpoint.path.parent)
        for name, data in contents.items():
            write_atomically(checkpoint.path.with_name(name), data)
        sync_folder(checkpoint.path.parent)
        self._record({*(self._known or ()), checkpoint.manifest[CHECKSUM]})
        write_atomically(checkpoint.path, _encoded(checkpoint))
        sync_folder(checkpoint.path.parent)
        return True

    def _download_history(self, with_log: bool) -> None:
        run = self.run
        with contextlib.suppress(FileNotFoundError):
            write_atomically(run.metrics, self.remote.read(run.metrics.name, MOST_BYTES))
        with contextlib.suppress(FileNotFoundError):
            earlier = self.remote.read(run.log.name, MOST_BYTES) if with_log else b""
            with run.log.open("r+b") as file:  # which the training has open, to append to it
                now = file.read()
                file.seek(0)
                file.write(earlier + now)

    def move_aside(self) -> str:
        """Move the copy of a former run to a folder under the same URL; return its name, or "".

        An interrupted move leaves a copy that is complete, or none. The next one continues it.
        """
        run, copies = self.run, self._read()
        names = [f"{CHECKPOINTS}/{one.path.name}" for one in copies]  # oldest first
        names += [f"{CHECKPOINTS}/{name}" for name in self._files if OWN_NAME.fullmatch(name)]
        names += [path.name for path in (run.metrics, run.config, run.log, run.result)]
        names += [f"{one.name.rpartition('_epoch')[0]}{PARAMS}" for one in copies]
        sizes = self._sizes()
        names = [name for name in dict.fromkeys(names) if name in sizes]
        if names and not self._aside:
            taken = self.remote.folders()
            self._write_mark(next(n for n in itertools.count(1) if f"{ASIDE}.{n}" not in taken))
        target = f"{ASIDE}.{self._aside}" if self._aside else ""
        if target:
            there = self._sizes(f"{target}/")  # what an interrupted move has copied already
            for name in names:
                if there.get(name) != sizes[name]:
                    self.remote.copy(name, f"{target}/{name}")
            for name in names:
                self.remote.remove(name)
            self._write_mark()
        self._record({None})
        return target

    def _sizes(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of the files of a copy, by their names below a folder."""
        inside = self.remote.sizes(f"{folder}{CHECKPOINTS}")
        sizes = {f"{CHECKPOINTS}/{name}": size for name, size in inside.items()}
        return {**sizes, **self.remote.sizes(folder)}

    # During a training

    def push(self, is_last: bool) -> tuple[list[Checkpoint], bool, list[Path]]:
        """Upload the checkpoint that is next, and delete those that the run does not keep.

        is_last: after the last checkpoint, upload the result and the final weights, if there are
            any.
        Returns the checkpoints of the copy, whether none waits any more, and which files of the run
        are damaged, so that their checkpoints are not uploaded.
        """
        copies = self._read()
        self._require_own(copies)
        local = [one for one in self.run.checkpoints.all() if _checksum(one) not in self._skipped]
        waiting = checkpoints_to_upload(local, copies, self.saving)
        if waiting:
            newest = max([*copies, *waiting], key=lambda one: one.sort_key)
            # The newest, or once it is there its best, with which a run may end, or the next.
            chosen = max(
                waiting, key=lambda one: (one is newest, one.is_best_of(newest), one.sort_key)
            )
            if self._upload_data(chosen):
                copies = self._upload_manifest(chosen)
        is_complete = len(waiting) <= 1
        if is_last and is_complete:
            self._write_small_files(with_weights=self.run.result.exists())
        return copies, is_complete, [*self._skipped.values()]

    def _upload_data(self, checkpoint: Checkpoint) -> bool:
        """Upload all but the manifest; return False if the checkpoint is deleted, or damaged."""
        with contextlib.ExitStack() as stack:  # what is open outlives its deletion
            files: dict[str, BinaryIO] = {}
            with contextlib.suppress(FileNotFoundError):
                for name in checkpoint.manifest["files"]:
                    files[name] = stack.enter_context(checkpoint.path.with_name(name).open("rb"))
            if not _is_there(checkpoint):
                return False
            self._write_mark()
            self._write_small_files()
            for name, entry in checkpoint.manifest["files"].items():
                data = files[name].read() if name in files else b""
                if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                    self._skipped[_checksum(checkpoint)] = checkpoint.path.with_name(name)
                    return False
                self.remote.write(f"{CHECKPOINTS}/{name}", data)
        return True

    def _upload_manifest(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """Upload a manifest, and prune the copy; return its checkpoints."""
        copies = self._read()
        self._require_own(copies)
        # Should this process die meanwhile, either may be the newest.
        self._record({*(self._known or ()), _checksum(checkpoint)})
        self.remote.write(f"{CHECKPOINTS}/{checkpoint.path.name}", _encoded(checkpoint))
        copies = [one for one in copies if one.name != checkpoint.name] + [checkpoint]
        copies.sort(key=lambda one: one.sort_key)
        self._record({_checksum(copies[-1])})
        self._files.add(checkpoint.path.name)
        for name in self._files:
            own = OWN_NAME.fullmatch(name)
            if own and (name.endswith(PART) or f"{own[1]}.json" not in self._files):
                self.remote.remove(f"{CHECKPOINTS}/{name}")  # of an upload that was killed
        kept = self.saving.kept(copies)
        for dropped in (one for one in copies if one.name not in kept):
            for name in (dropped.path.name, *dropped.manifest["files"]):
                self.remote.remove(f"{CHECKPOINTS}/{name}")
        return [one for one in copies if one.name in kept]

    def _write_small_files(self, with_weights: bool = False) -> None:
        """Upload the files beside the checkpoints, the result last."""
        run = self.run
        weights = [run.weights] if with_weights else []
        for path in (run.metrics, run.config, run.log, *weights, run.result):
            data = path.read_bytes() if path.exists() else None
            digest = hashlib.sha256(data).hexdigest() if data is not None else "none"
            if self._written.get(path.name) != digest:
                self._written.pop(path.name, None)
                if data is None:  # such as the result of the run before it was continued
                    self.remote.remove(path.name)
                else:
                    self.remote.write(path.name, data)
                self._written[path.name] = digest

    # Whose copy it is

    def _require_own(self, copies: Sequence[Checkpoint]) -> None:
        """Raise RunLockedError if another process has uploaded a checkpoint, or moved the copy."""
        newest = copies[-1] if copies else None
        if self._known is None:  # it could not be reached when the training started
            recorded = self._recorded()
            local = map(_checksum, self.run.checkpoints.all())
            self._known = {*local, *({None} if recorded is None else recorded)}
        if (_checksum(newest) if newest else None) not in self._known:
            found = f"holds {newest.name}, which another process uploaded" if newest else "is empty"
            raise RunLockedError(
                f"{self.remote.url}: {found}; expected the copy as this training left it; stop one "
                "of both, or give each a mirror of its own"
            )

    def _record(self, known: set[Optional[str]]) -> None:
        """Note in the run directory which manifests may be the newest of the copy."""
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


def _checksum(checkpoint: Checkpoint) -> str:
    """Return what tells a checkpoint from all others, also from those of its name."""
    return str(checkpoint.manifest[CHECKSUM])


def _is_there(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is still on the disk, and not another of its name."""
    try:
        return _checksum(read_manifest(checkpoint.path)) == _checksum(checkpoint)
    except CheckpointError:
        return False


def _encoded(checkpoint: Checkpoint) -> bytes:
    return json.dumps(checkpoint.manifest, indent=1).encode()


# The process


def main() -> None:
    """Answer the calls of the training that started this process, until it ends.

    The arguments are the descriptor of the connection, and the signals that stop the training.
    """
    connection = Connection(int(sys.argv[1]))
    for signum in map(int, sys.argv[2:]):  # the training says when to end
        signal.signal(signum, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        parent, url, run, name, saving = connection.recv()
        threading.Thread(target=_exit_with, args=[parent], daemon=True).start()
        copy = MirrorCopy(url, RunDirectory(run, name), saving)
        copy.remote.progress = lambda: connection.send(PROGRESS)
        with locked(copy.run.path / MIRROR_LOCK):  # until that of a killed training has ended
            while True:
                connection.send(_answer(copy, *connection.recv()))


def _answer(copy: MirrorCopy, method: str, *arguments: Any) -> Any:
    """Return what a method returns, or an error of this package, or why the driver failed."""
    try:
        return getattr(copy, method)(*arguments)
    except PaddleMnistError as error:
        return error
    except ImportError as error:
        return DeviceError(
            f"mirror is {copy.remote.url}: {error}; expected fsspec and its driver: "
            "pip install 'paddle_mnist[mirror]' has that of s3://"
        )
    except Exception as error:  # whatever the driver raises
        copy.remote.reconnect()
        # A bucket that is not there looks empty until something is written.
        is_missing = method == "look" and isinstance(error, FileNotFoundError)
        why = failure(error)
        return Failure(why.text, is_permanent=True) if is_missing else why


def _exit_with(parent: int) -> None:
    """End with the training: its forked workers may hold the connection longer."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


if __name__ == "__main__":
    main()

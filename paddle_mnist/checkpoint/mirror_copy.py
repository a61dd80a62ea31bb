"""`MirrorCopy`: upload a run to its mirror, and download it; `main` is the process that does.

The copy has the files of the run directory, under the same names. Nothing lists the files that are
still to be uploaded: they are the difference between both folders, so a process that dies loses
nothing. As on the disk, the manifest of a checkpoint is written last.

The first file of a copy is its mark, by which it is recognized. In `checkpoints`, only files with
the names of checkpoints are ever deleted.
"""

import contextlib
import hashlib
import json
import logging
import operator
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.checkpoint.manifest import Checkpoint, parse_manifest, read_manifest
from paddle_mnist.checkpoint.mirror import PROGRESS, Answer, Message, UnreachableError
from paddle_mnist.checkpoint.run import MIRROR_LOCK, RunDirectory
from paddle_mnist.checkpoint.saving import Saving, best_first
from paddle_mnist.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    PaddleMnistError,
    RunLockedError,
    listed,
)
from paddle_mnist.system import heartbeat
from paddle_mnist.system.files import PART, make_folder, sync_folder, warn_once, write_atomically
from paddle_mnist.system.lock import locked
from paddle_mnist.system.regular_files import UnusableFileError, open_own, read_bytes
from paddle_mnist.system.remote import Failure, RemoteFolder, failure

log = logging.getLogger("paddle_mnist")

CHECKPOINTS = "checkpoints"
MARK_FILE = ".copy"
# A file of a checkpoint, perhaps under its temporary name.
OWN_NAME = re.compile(r"\.?(.+_epoch\d+(?:_step\d+|_breakpoint|_new)*)\.(?:json|pd\w+)(?:\.part)?")
MAX_BYTES = 2**32  # of the metrics, the log or a manifest

_by_step = operator.attrgetter("sort_key")


@dataclass(frozen=True)
class Listing:
    """What the folder `checkpoints` of a copy holds.

    manifests: by their names and sizes. damaged: the names of checkpoints whose manifests cannot be
        read. files: all names.
    """

    manifests: dict[tuple[str, int], Checkpoint]
    damaged: set[str]
    files: set[str]


class MirrorCopy:
    """The copy of a run under a URL.

    Its methods raise what drivers raise, and RunLockedError if another process has written there.
    """

    def __init__(self, url: str, run: Path, name: str, saving: Saving):
        self.remote = RemoteFolder(url)
        self.run = RunDirectory(run, name)
        self.saving = saving
        self._listing = Listing({}, set(), set())  # the newest one
        self._is_marked = False  # as far as this process knows
        self._skipped: set[str] = set()  # the checksums of damaged checkpoints of the run
        self._written: dict[str, str] = {}  # the SHA-256 of the small files, by name

    def list_copies(self) -> list[Checkpoint]:
        """Return the checkpoints of the copy, by step, with the paths that they have in the run.

        Of the manifests that were read before, only the newest is read again: another process may
        have uploaded one of the same name and size. Logs damaged ones.
        """
        self._require_mark()
        sizes, known = self.remote.sizes(CHECKPOINTS), self._listing.manifests
        self._listing = listing = Listing({}, set(), {*sizes})
        newest = max(known.values(), key=_by_step, default=None)
        for name, size in sizes.items():
            if not (OWN_NAME.fullmatch(name) and name.endswith(".json")) or name.startswith("."):
                continue
            checkpoint = known.get((name, size))
            try:
                if checkpoint is None or checkpoint is newest:
                    data = self.remote.read(f"{CHECKPOINTS}/{name}", MAX_BYTES)
                    checkpoint = parse_manifest(self.run.checkpoints.folder / name, data)
                listing.manifests[name, size] = checkpoint
            except CheckpointError as error:
                listing.damaged.add(Path(name).stem)
                self._warn_of_damage(name, error)
            except FileNotFoundError:  # another process has deleted it
                listing.files.remove(name)
        return sorted(listing.manifests.values(), key=_by_step)

    def _warn_of_damage(self, name: str, reason: object) -> None:
        where = f"{self.remote.url}/{CHECKPOINTS}/{name}"
        warn_once(where, "damaged copy: %s: %s", where, reason)

    def _require_mark(self) -> None:
        """Look for the mark of a copy, and leave one in an empty folder.

        Raises CheckpointError for a folder with files but no mark.
        """
        if self._is_marked:
            return
        names = self.remote.names() - {f".{MARK_FILE}{PART}"}
        if names and MARK_FILE not in names:
            raise CheckpointError(
                f"{self.remote.url}: holds {listed(sorted(names), most=3)}, so it is neither "
                "empty nor the mirror of a run; nothing is changed there; choose another mirror"
            )
        if not names:
            self.remote.write(MARK_FILE, json.dumps({"made_by": "paddle_mnist"}).encode())
        self._is_marked = True

    # At the start of training

    def pull(self, newer_than: Optional[tuple[int, int]]) -> None:
        """Download the newest checkpoint that is intact, and the best ones that the run keeps.

        newer_than: the `sort_key` of the newest checkpoint on the disk, if there is any; older ones
            are not downloaded.
        Raises CheckpointError if all are damaged and there is none on the disk.
        """
        copies = self.list_copies()
        for newest in reversed(copies):
            if newer_than and newest.sort_key <= newer_than:
                break
            if self._download(newest, with_log=newer_than is None):
                before = copies[: copies.index(newest) + 1]
                for best in best_first(before)[: self.saving.keep_best]:
                    if not best.path.exists():
                        self._download(best)
                return
        if not newer_than and (copies or self._listing.damaged):
            raise CheckpointError(
                f"{self.remote.url}: no valid checkpoint there, and none in {self.run.path}; put a "
                "good one back, or choose another mirror to start over"
            )

    def _download(self, checkpoint: Checkpoint, with_log: bool = False) -> bool:
        """Download a checkpoint and the metrics; return whether it is intact, else log why not.

        with_log: put the log of the copy before the run's.
        """
        contents = {}
        for name, entry in checkpoint.manifest["files"].items():
            with contextlib.suppress(FileNotFoundError, ValueError):  # it is larger
                contents[name] = self.remote.read(f"{CHECKPOINTS}/{name}", entry["size"])
        if wrong := _wrong_file(checkpoint, contents):
            self._warn_of_damage(wrong, f"not the file that {checkpoint.path.name} lists")
            return False
        self._download_history(with_log)
        make_folder(checkpoint.path.parent)
        for name, data in contents.items():
            write_atomically(checkpoint.path.with_name(name), data)
        sync_folder(checkpoint.path.parent)
        write_atomically(checkpoint.path, _encoded(checkpoint))
        sync_folder(checkpoint.path.parent)
        log.info("downloaded %s from %s", checkpoint.name, self.remote.url)
        return True

    def _download_history(self, with_log: bool) -> None:
        run = self.run
        with contextlib.suppress(FileNotFoundError):
            write_atomically(run.metrics, self.remote.read(run.metrics.name, MAX_BYTES))
        with contextlib.suppress(FileNotFoundError):
            earlier = self.remote.read(run.log.name, MAX_BYTES) if with_log else b""
            # The training has it open, too, to append to it.
            with open(run.log, "r+b", opener=open_own) as file:
                now = file.read()
                if not now.startswith(earlier):  # as it does after another attempt
                    file.seek(0)
                    file.write(earlier + now)

    def require_empty(self) -> None:
        """Raise ConfigError if the copy has checkpoints, which a new run would mix with its own."""
        self._require_mark()
        if names := sorted(self.remote.sizes(CHECKPOINTS)):
            raise ConfigError(
                f"fresh is set, but {self.remote.url} holds {listed(names, most=3)}; delete that "
                "copy, or choose another mirror"
            )

    # During training

    def push(self, is_last: bool, newest_at_start: Optional[str]) -> bool:
        """Upload one of the checkpoints that wait, and delete those that the run does not keep.

        is_last: after the last checkpoint, upload the result and the final weights, if there are
            any.
        newest_at_start: see `_look_while_training`, which raises.
        Returns whether the copy is complete; otherwise more checkpoints wait.
        """
        local = [own for own in self.run.checkpoints.all() if _checksum(own) not in self._skipped]
        copies = self._look_while_training(local, newest_at_start)
        waiting = checkpoints_to_upload(local, copies, self.saving)
        if waiting:
            best = max([*copies, *waiting], key=_by_step).state.best or [None]
            # The best first, since a run may end with it, then the newest of the others.
            chosen = max(waiting, key=lambda own: (own.step == best[0], own.sort_key))
            if self._upload_data(chosen):
                copies = self._look_while_training(local, newest_at_start)
                self._upload_manifest(chosen, copies)
        is_complete = len(waiting) <= 1
        if is_last and is_complete:
            self._write_small_files(with_weights=self.run.result.exists())
        return is_complete

    def _look_while_training(
        self, local: Sequence[Checkpoint], newest_at_start: Optional[str]
    ) -> list[Checkpoint]:
        """Return the checkpoints of the copy; raise RunLockedError if another process writes there.

        Another process does if the copy's newest checkpoint is neither its newest at the start nor
        on the disk, and if no later checkpoint of the same run is on the disk.

        local: the checkpoints on the disk. newest_at_start: the checksum of the copy's newest one.
        """
        copies = self.list_copies()
        known = {newest_at_start, *map(_checksum, local)}
        if copies and _checksum(newest := copies[-1]) not in known:
            later = [own for own in local if own.sort_key > newest.sort_key]
            if newest.manifest.get("run_id") not in [own.manifest.get("run_id") for own in later]:
                raise RunLockedError(
                    f"{self.remote.url}: holds {newest.name}, which another process uploaded; stop "
                    "one of the two, or give each its own mirror"
                )
        return copies

    def _upload_data(self, checkpoint: Checkpoint) -> bool:
        """Upload all but the manifest; return False if the checkpoint is deleted, or damaged."""
        contents = {}
        for name, entry in checkpoint.manifest["files"].items():
            with contextlib.suppress(FileNotFoundError, UnusableFileError):
                contents[name] = read_bytes(checkpoint.path.with_name(name), entry["size"])
        if not _is_there(checkpoint):
            return False
        if wrong := _wrong_file(checkpoint, contents):
            self._skipped.add(_checksum(checkpoint))
            path = checkpoint.path.with_name(wrong)
            log.warning("not uploaded, because it is damaged: %s", path)
            return False
        self._write_small_files()
        for name, data in contents.items():
            self.remote.write(f"{CHECKPOINTS}/{name}", data)
        return True

    def _upload_manifest(self, checkpoint: Checkpoint, copies: Sequence[Checkpoint]) -> None:
        """Upload a manifest, and prune the copy. copies: its checkpoints before."""
        self.remote.write(f"{CHECKPOINTS}/{checkpoint.path.name}", _encoded(checkpoint))
        copies = [*(copy for copy in copies if copy.name != checkpoint.name), checkpoint]
        names = self.saving.kept(copies)
        kept = [copy for copy in copies if copy.name in names]
        kept_files = {name for copy in kept for name in (copy.path.name, *copy.manifest["files"])}
        # Manifests first: files without one are not a checkpoint.
        for name in sorted(self._listing.files - kept_files, key=lambda n: not n.endswith(".json")):
            own = OWN_NAME.fullmatch(name)
            if own and own[1] not in self._listing.damaged:  # pruned, or left by a killed upload
                self.remote.remove(f"{CHECKPOINTS}/{name}")

    def _write_small_files(self, with_weights: bool = False) -> None:
        """Upload the files beside the checkpoints, the result last."""
        run = self.run
        weights = [run.weights] if with_weights else []
        for path in (run.metrics, run.config, run.log, *weights, run.result):
            data = read_bytes(path) if path.exists() else None
            digest = hashlib.sha256(data).hexdigest() if data is not None else "none"
            if self._written.get(path.name) != digest:
                self._written.pop(path.name, None)
                if data is None:  # such as the result of the run before it was continued
                    self.remote.remove(path.name)
                else:
                    self.remote.write(path.name, data)
                self._written[path.name] = digest


def checkpoints_to_upload(
    local: Sequence[Checkpoint], copies: Sequence[Checkpoint], saving: Saving
) -> list[Checkpoint]:
    """Return the checkpoints on the disk that the copy lacks, oldest first.

    Those are the newest, and those that a rule other than `keep_last` keeps.
    """
    uploaded = set(map(_checksum, copies))
    by_name = {checkpoint.name: checkpoint for checkpoint in [*copies, *local]}
    kept = replace(saving, keep_last=1).kept(by_name.values())
    return [own for own in local if _checksum(own) not in uploaded and own.name in kept]


def _checksum(checkpoint: Checkpoint) -> str:
    """Return the identity of a checkpoint, which others of its name do not share."""
    return checkpoint.manifest["checksum"]


def _wrong_file(checkpoint: Checkpoint, contents: Mapping[str, bytes]) -> Optional[str]:
    """Return the name of a file that is missing or differs from the manifest; None if all match."""
    for name, entry in checkpoint.manifest["files"].items():
        if hashlib.sha256(contents.get(name, b"")).hexdigest() != entry["sha256"]:
            return name
    return None


def _is_there(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is still on the disk, and was not replaced by another."""
    try:
        return _checksum(read_manifest(checkpoint.path)) == _checksum(checkpoint)
    except CheckpointError:
        return False


def _encoded(checkpoint: Checkpoint) -> bytes:
    return json.dumps(checkpoint.manifest, indent=1).encode()


# The process


class _ToTraining(logging.Handler):
    """Sends log records to the training process, which logs them."""

    def __init__(self, connection: Connection):
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        self._connection.send(record)


def main() -> None:
    """Answer the requests of the training process until it ends.

    The command line has the descriptor of the connection to it.
    """
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        parent, stopping, arguments = connection.recv()
        for signum in stopping:  # the training process decides when this one ends
            signal.signal(signum, signal.SIG_IGN)
        heartbeat.die_with(parent)  # its forked workers may hold the connection longer
        log.addHandler(_ToTraining(connection))
        log.setLevel(logging.INFO)
        copy = MirrorCopy(*arguments)
        copy.remote.progress = lambda: connection.send(PROGRESS)
        with locked(copy.run.path / MIRROR_LOCK):  # waits for the process of a killed run
            while True:
                connection.send(_answer(copy, *connection.recv()))


def _answer(copy: MirrorCopy, method: str, *arguments: Any) -> Message:
    """Call a method, and return its value or what its error becomes in the training process:

    error                           of push     of other methods
    RunLockedError                  raised      raised
    another one of this package     repeated    raised
    ImportError                     repeated    raised as DeviceError
    a permanent one of the driver   repeated    raised as UnreachableError
    another one of the driver       repeated    repeated
    """
    is_upload = method == "push"
    try:
        return Answer(getattr(copy, method)(*arguments))
    except RunLockedError as error:
        return error
    except PaddleMnistError as error:  # such as a full disk
        return Failure(str(error)) if is_upload else error
    except ImportError as error:
        if is_upload:  # `list_copies` has imported the driver
            return Failure(str(error))
        return DeviceError(
            f"mirror is {copy.remote.url}: {error}; expected fsspec and its driver: "
            "pip install 'paddle_mnist[mirror]' has that of s3://"
        )
    except Exception as error:  # whatever the driver raises
        copy.remote.reconnect()
        why = failure(error)
        # A bucket that is not there looks empty until something is written.
        is_missing = method != "pull" and isinstance(error, FileNotFoundError)
        if not is_upload and (why.is_permanent or is_missing):
            return UnreachableError(f"{copy.remote.url}: cannot be reached ({why}); try again")
        return why

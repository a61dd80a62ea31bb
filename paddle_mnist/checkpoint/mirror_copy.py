"""`MirrorCopy`: the copy of a run under a URL, and the process that reads and writes it.

The copy has the files of the run directory, under the same names. There is no list of what waits to
be uploaded: that is the difference between both folders, so that nothing is lost with a process.
The order is that of the disk: the manifest of a checkpoint comes last.

The first file of a copy is its mark, by which it is recognized. Among `checkpoints`, only files
with the names of checkpoints are ever deleted.
"""

import contextlib
import hashlib
import json
import logging
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.checkpoint.manifest import (
    CHECKSUM,
    Checkpoint,
    parse_manifest,
    read_manifest,
)
from paddle_mnist.checkpoint.mirror import PROGRESS, UnreachableError, checkpoints_to_upload
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
from paddle_mnist.system.remote import Failure, RemoteFolder, failure

log = logging.getLogger("paddle_mnist")

CHECKPOINTS = "checkpoints"
MARK = ".copy"
# A file of a checkpoint, perhaps under its temporary name.
OWN_NAME = re.compile(r"\.?(.+_epoch\d+(?:_step\d+)?(?:_breakpoint)?)\.(?:json|pd\w+)(?:\.part)?")
MOST_BYTES = 2**32  # of the metrics, the log or a manifest


class MirrorCopy:
    """The copy of a run under a URL.

    Its methods raise what drivers raise, and RunLockedError if another process has written there.
    """

    def __init__(
        self, url: str, run: Path, name: str, saving: Saving, newest_at_start: Optional[str] = None
    ):
        self.remote = RemoteFolder(url)
        self.run = RunDirectory(run, name)
        self.saving = saving
        self._newest_at_start = newest_at_start  # of the copy, by checksum
        self._manifests: dict[tuple[str, int], Checkpoint] = {}  # those read, by name and size
        self._damaged: set[str] = set()  # the names of checkpoints whose manifests cannot be read
        self._files: set[str] = set()  # all names in `checkpoints`
        self._is_marked = False
        self._skipped: set[str] = set()  # checkpoints of the run that are damaged, by checksum
        self._written: dict[str, str] = {}  # SHA-256 of the small files

    def _read(self) -> list[Checkpoint]:
        """Return the checkpoints of the copy, by step, with the paths that they have in the run.

        Of manifests that were read before, only the newest is read again: another process may have
        uploaded one of the same name and size. Damaged ones are logged.
        """
        self._require_mark()
        sizes = self.remote.sizes(CHECKPOINTS)
        known, self._manifests = self._manifests, {}
        self._damaged, self._files = set(), {*sizes}
        newest = max(known.values(), key=lambda one: one.sort_key, default=None)
        for name, size in sizes.items():
            if not (OWN_NAME.fullmatch(name) and name.endswith(".json")) or name.startswith("."):
                continue
            checkpoint = known.get((name, size))
            try:
                if checkpoint is None or checkpoint is newest:
                    data = self.remote.read(f"{CHECKPOINTS}/{name}", MOST_BYTES)
                    checkpoint = parse_manifest(self.run.checkpoints.folder / name, data)
                self._manifests[name, size] = checkpoint
            except CheckpointError as error:
                self._damaged.add(Path(name).stem)
                self._warn_of_damage(name, error)
            except FileNotFoundError:  # another process has deleted it
                self._files.remove(name)
        return sorted(self._manifests.values(), key=lambda one: one.sort_key)

    def _warn_of_damage(self, name: str, reason: object) -> None:
        where = f"{self.remote.url}/{CHECKPOINTS}/{name}"
        warn_once(where, "damaged copy: %s: %s", where, reason)

    def _require_mark(self) -> None:
        """Look for the mark of a copy, and leave one in an empty folder.

        Raises CheckpointError for a folder with files but no mark.
        """
        if self._is_marked:
            return
        found = self.remote.names() - {f".{MARK}{PART}"}
        if found and MARK not in found:
            raise CheckpointError(
                f"{self.remote.url}: holds {listed(sorted(found), most=3)}, so it is neither "
                "empty nor the mirror of a run; nothing is changed there; choose another mirror"
            )
        if not found:
            self.remote.write(MARK, json.dumps({"made_by": "paddle_mnist"}).encode())
        self._is_marked = True

    # At the start of training

    def look(self) -> list[Checkpoint]:
        """Return the checkpoints of the copy, by step."""
        copies = self._read()
        self._newest_at_start = _checksum(copies[-1]) if copies else None
        return copies

    def pull(self, newer_than: Optional[tuple[int, int]]) -> bool:
        """Download the newest checkpoint that is intact, and the best ones, which are kept.

        Returns whether there was one. Raises CheckpointError if all are damaged, and there are none
        on the disk to be newer than.
        """
        copies = self._read()
        newer = [one for one in copies if not newer_than or one.sort_key > newer_than]
        for newest in reversed(newer):
            if self._download(newest, with_log=newer_than is None):
                before = [one for one in copies if one.sort_key <= newest.sort_key]
                for best in best_first(before)[: self.saving.keep_best]:
                    if not best.path.exists():
                        self._download(best)
                return True
        if not newer_than and (copies or self._damaged):
            raise CheckpointError(
                f"{self.remote.url}: no valid checkpoint there, and none in {self.run.path}; put a "
                "good one back, or choose another mirror to start over"
            )
        return False

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
            write_atomically(run.metrics, self.remote.read(run.metrics.name, MOST_BYTES))
        with contextlib.suppress(FileNotFoundError):
            earlier = self.remote.read(run.log.name, MOST_BYTES) if with_log else b""
            with run.log.open("r+b") as file:  # which the training has open, to append to it
                now = file.read()
                if not now.startswith(earlier):  # as it does after another attempt
                    file.seek(0)
                    file.write(earlier + now)

    def require_empty(self) -> bool:
        """Raise ConfigError if the copy has checkpoints, which a new run would mix with its own."""
        self._require_mark()
        if names := sorted(self.remote.sizes(CHECKPOINTS)):
            raise ConfigError(
                f"fresh is set, but {self.remote.url} holds {listed(names, most=3)}; delete that "
                "copy, or choose another mirror"
            )
        return True

    # During training

    def push(self, is_last: bool) -> tuple[list[Checkpoint], bool]:
        """Upload the checkpoint that is next, and delete those that the run does not keep.

        is_last: after the last checkpoint, upload the result and the final weights, if there are
            any.
        Returns the checkpoints of the copy, and whether none waits any more.
        """
        copies = self._read()
        local = [one for one in self.run.checkpoints.all() if _checksum(one) not in self._skipped]
        self._require_own(copies, local)
        waiting = checkpoints_to_upload(local, copies, self.saving)
        if waiting:
            newest = max([*copies, *waiting], key=lambda one: one.sort_key)
            # The best, with which the newest may end the run, then the newest, then the next.
            chosen = max(
                waiting, key=lambda one: (one.is_best_of(newest), one is newest, one.sort_key)
            )
            if self._upload_data(chosen):
                copies = self._upload_manifest(chosen, local)
        is_complete = len(waiting) <= 1
        if is_last and is_complete:
            self._write_small_files(with_weights=self.run.result.exists())
        return copies, is_complete

    def _upload_data(self, checkpoint: Checkpoint) -> bool:
        """Upload all but the manifest; return False if the checkpoint is deleted, or damaged."""
        contents = {}
        for name in checkpoint.manifest["files"]:
            with contextlib.suppress(FileNotFoundError):
                contents[name] = checkpoint.path.with_name(name).read_bytes()
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

    def _upload_manifest(
        self, checkpoint: Checkpoint, local: Sequence[Checkpoint]
    ) -> list[Checkpoint]:
        """Upload a manifest, and prune the copy; return its checkpoints. local: of the run."""
        copies = self._read()
        self._require_own(copies, local)
        self.remote.write(f"{CHECKPOINTS}/{checkpoint.path.name}", _encoded(checkpoint))
        copies = [one for one in copies if one.name != checkpoint.name] + [checkpoint]
        copies.sort(key=lambda one: one.sort_key)
        names = self.saving.kept(copies)
        kept = [one for one in copies if one.name in names]
        listed_files = {name for one in kept for name in (one.path.name, *one.manifest["files"])}
        for name in sorted(self._files - listed_files, key=_manifests_first):
            own = OWN_NAME.fullmatch(name)
            if own and own[1] not in self._damaged:  # pruned, or of an upload that was killed
                self.remote.remove(f"{CHECKPOINTS}/{name}")
        return kept

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

    def _require_own(self, copies: Sequence[Checkpoint], local: Sequence[Checkpoint]) -> None:
        """Raise RunLockedError if another process has uploaded the newest checkpoint of the copy.

        That is one that was not there at the start, nor is on the disk, nor is older than the
        newest of the same run on the disk. local: those on the disk.
        """
        own = {self._newest_at_start, *map(_checksum, local)}
        for one in copies[-1:]:
            run, key = one.manifest.get("run_id"), one.sort_key
            is_older = any(
                run == mine.manifest.get("run_id") and key < mine.sort_key for mine in local
            )
            if _checksum(one) not in own and not is_older:
                raise RunLockedError(
                    f"{self.remote.url}: holds {one.name}, which another process uploaded; stop "
                    "one of both, or give each a mirror of its own"
                )


def _checksum(checkpoint: Checkpoint) -> str:
    """Return what tells a checkpoint from all others, also from those of its name."""
    return str(checkpoint.manifest[CHECKSUM])


def _manifests_first(name: str) -> bool:
    """Sort the names of files to delete: without a manifest, the rest is no checkpoint."""
    return not name.endswith(".json")


def _wrong_file(checkpoint: Checkpoint, contents: Mapping[str, bytes]) -> Optional[str]:
    """Return the name of a file that is missing, or not the one that the manifest lists."""
    for name, entry in checkpoint.manifest["files"].items():
        if hashlib.sha256(contents.get(name, b"")).hexdigest() != entry["sha256"]:
            return str(name)
    return None


def _is_there(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is still on the disk, and not another of its name."""
    try:
        return _checksum(read_manifest(checkpoint.path)) == _checksum(checkpoint)
    except CheckpointError:
        return False


def _encoded(checkpoint: Checkpoint) -> bytes:
    return json.dumps(checkpoint.manifest, indent=1).encode()


# The process


class _ToTraining(logging.Handler):
    """Sends what is logged to the training, which logs it."""

    def __init__(self, connection: Connection):
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        self._connection.send(record)


def main() -> None:
    """Answer the requests of the training that started this process, until it ends.

    The argument is the descriptor of the connection.
    """
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        parent, stopping, arguments = connection.recv()
        for signum in stopping:  # the training says when to end
            signal.signal(signum, signal.SIG_IGN)
        heartbeat.die_with(parent)  # its forked workers may hold the connection longer
        log.addHandler(_ToTraining(connection))
        log.setLevel(logging.INFO)
        copy = MirrorCopy(*arguments)
        copy.remote.progress = lambda: connection.send(PROGRESS)
        with locked(copy.run.path / MIRROR_LOCK):  # until that of a killed training has ended
            while True:
                connection.send(_answer(copy, *connection.recv()))


def _answer(copy: MirrorCopy, method: str, *arguments: Any) -> Any:
    """Return what a method returns, an error of this package, or a failure, to be repeated."""
    is_upload = method == "push"  # which is repeated, whatever has failed
    try:
        return getattr(copy, method)(*arguments)
    except RunLockedError as error:
        return error
    except PaddleMnistError as error:  # such as a full disk
        return Failure(str(error)) if is_upload else error
    except ImportError as error:
        if is_upload:  # `look` has imported the driver
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

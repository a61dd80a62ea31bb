"""The manifest of a checkpoint: reading it, and verifying the files that it names.

A checkpoint consists of `{NAME}_epoch{E}.pdparams` (weights), `.pdopt` (optimizer), `.pdtrain` if
there is a moving average of the weights, `.pdstate` if training has state beside these, and
`.json`, the manifest. It exists if its manifest does, the manifest matches its own checksum, and
each file has the size and SHA-256 listed there.
"""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict, Union, cast

import msgspec

from paddle_mnist.checkpoint.safe_load import load_from
from paddle_mnist.errors import CheckpointError, listed
from paddle_mnist.options import CountOrZero
from paddle_mnist.system.regular_files import MAX_JSON, open_to_read, parse_json, read_bytes
from paddle_mnist.train_state import TrainState

# Of the manifest: 5 where version 1.0, which reads 4, would misread the extra state.
FORMAT, LATER_FORMAT = 4, 5
PARAMS, OPTIMIZER = ".pdparams", ".pdopt"
TRAINING = ".pdtrain"  # the weights in training, where .pdparams holds their average
EXTRA = ".pdstate"  # the state beside the weights and the optimizer's (`hidden_state`)
DATA_SUFFIXES = (PARAMS, OPTIMIZER, TRAINING, EXTRA)
BREAKPOINT = "_breakpoint"  # the end of a name
CHECKSUM = "checksum"  # the entry of a manifest that protects the others
_PIECE_BYTES = 2**20  # bytes that are read at once, to hash them


class DamagedError(CheckpointError):
    """A file that is missing, or is not the one that the manifest lists."""


class UnreadableError(CheckpointError):
    """A file that cannot be read, for example because of a disk; it may be intact."""


# The errors in reading a file that is missing or not a regular one; others do not mean damage.
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EEXIST, errno.EFBIG}


class FileEntry(TypedDict):
    size: CountOrZero
    sha256: str


class HashedFile:
    """Reads a file, and hashes what is read."""

    def __init__(self, file: Any):
        self._file, self._size, self._sha256 = file, 0, hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        return self._add(self._file.read(size))

    def readline(self) -> bytes:
        return self._add(self._file.readline())

    def entry(self) -> FileEntry:
        """Read the file to its end, and return its entry in a manifest."""
        while self.read(_PIECE_BYTES):
            pass
        return {"size": self._size, "sha256": self._sha256.hexdigest()}

    def _add(self, data: bytes) -> bytes:
        self._size += len(data)
        self._sha256.update(data)
        return data


class _RunningSums(msgspec.Struct, forbid_unknown_fields=True):
    samples: CountOrZero
    lr: float
    totals: dict[str, list[Optional[float]]]


class _State(msgspec.Struct, forbid_unknown_fields=True):
    """The entries that `TrainState.as_dict` returns."""

    epoch: CountOrZero
    position: CountOrZero
    step: CountOrZero
    samples: CountOrZero
    train_seconds: float
    running_sums: _RunningSums
    metrics: dict[str, Optional[float]]
    scores: list[tuple[int, Optional[float]]]
    monitor: str
    mode: Literal["max", "min"]


class Manifest(TypedDict, total=False):
    """All entries that this package writes. Callbacks may add others, which are kept.

    Each manifest has the first five, and all or none of the optimizer's. Older versions did not
    write all of the others, so a missing entry does not count as a difference.
    """

    format: int
    files: dict[str, FileEntry]
    state: Any  # see `_State`
    saved_at: Annotated[float, msgspec.Meta(ge=0, lt=2**37)]  # seconds since 1970
    checksum: str
    names: dict[str, str]  # of the parameters: Paddle's, by structured names
    optimizer: str  # its class
    optimizer_parameters: list[str]  # those that have state
    schedule: dict[str, Any]
    config: Optional[dict[str, Any]]  # what a resume compares
    metrics_lines: CountOrZero  # how many metrics.jsonl had
    not_saved: list[CountOrZero]  # evaluated steps whose checkpoint could not be written
    run_id: Optional[str]
    parent: Optional[str]  # the run that it started from
    seeding: int
    inputs: Optional[CountOrZero]  # how many the net takes
    device: str
    threads: Optional[str]
    world_size: int
    computed_by: dict[str, str]
    versions: Mapping[str, Optional[str]]
    data_hash: Optional[str]  # only of digits, like the next two
    replay_hash: Optional[str]
    dataset: Optional[str]


_ALWAYS = {"files", "state", "saved_at"}
_OF_OPTIMIZER = {"names", "optimizer", "optimizer_parameters", "schedule"}


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: the path and the contents of its manifest.

    loaded: the dictionaries in those of its files that have been loaded, by suffix.
    """

    path: Path
    manifest: Manifest
    loaded: Mapping[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def state(self) -> TrainState:
        return TrainState.from_dict(self.manifest["state"])

    @property
    def sort_key(self) -> tuple[int, int]:
        """(step, epoch): greater for later checkpoints, by training progress, not by name or time.

        At the same step, a checkpoint after an epoch sorts after one inside it.
        """
        return self.manifest["state"]["step"], self.manifest["state"]["epoch"]

    @property
    def step(self) -> int:
        return int(self.manifest["state"]["step"])

    @property
    def ends_epoch(self) -> bool:
        """Whether it was saved after an epoch, not inside one."""
        return self.manifest["state"]["position"] == 0 and self.step > 0

    @property
    def is_breakpoint(self) -> bool:
        """Whether it was saved because training was interrupted."""
        return self.name.endswith(BREAKPOINT)

    @property
    def score(self) -> Optional[float]:
        """The monitored metric, negated if the lowest is the best; None if it was not evaluated."""
        state = self.manifest["state"]
        value: Optional[float] = state["metrics"].get(state["monitor"])  # None: not finite
        return value if value is None or state["mode"] == "max" else -value

    @property
    def size(self) -> int:
        """Bytes on the disk, manifest included; files that are not there count as 0."""
        paths = [self.path, *map(self.path.with_name, self.manifest["files"])]
        total = 0
        for path in paths:
            with contextlib.suppress(OSError):  # missing, or a link that leads nowhere
                total += path.stat().st_size
        return total

    @property
    def is_pair(self) -> bool:
        """Whether it is a pair of files without a manifest (`checkpoint.names.find_pair`)."""
        return not self.manifest["files"]

    @property
    def label(self) -> Path:
        """The path, for messages; that of a pair has no suffix, since its manifest is missing."""
        return self.path.with_suffix("") if self.is_pair else self.path

    def has_file(self, suffix: str) -> bool:
        """Return whether the manifest lists a file with this suffix."""
        return self.name + suffix in self.manifest["files"]

    @contextlib.contextmanager
    def opened(self, suffix: str) -> Iterator[HashedFile]:
        """Open one of the files; verify all of it at the end of the context.

        Raises DamagedError if it is missing, or if its size or SHA-256 differs from the manifest's,
        even where its contents have already caused another error; UnreadableError if it cannot be
        read; CheckpointError if the manifest does not list it.
        """
        name = self.name + suffix
        expected = self.manifest["files"].get(name)
        if expected is None:
            raise CheckpointError(f"{self.path}: does not list {name}; use another checkpoint")
        path = self.path.with_name(name)
        try:
            with open_to_read(path) as opened:
                file, size = HashedFile(opened), os.fstat(opened.fileno()).st_size
                if size > expected["size"]:  # perhaps much larger: it is not read
                    raise DamagedError(
                        f"{path}: {size} bytes; {self.path.name} says {expected['size']}"
                    )
                try:
                    yield file
                except OSError:  # whatever could still be read would not match
                    raise
                except Exception:
                    _require_match(file, expected, path, self.path.name)
                    raise
                _require_match(file, expected, path, self.path.name)
        except OSError as error:
            raise _read_error(path, error, f"{self.path.name} lists it") from error

    def load_all(self) -> "Checkpoint":
        """Return a copy with all files loaded, each of which is read once.

        Raises DamagedError and UnreadableError as `opened` does, CheckpointError for other contents
        than `paddle.save` writes.
        """
        suffixes = [Path(name).suffix for name in self.manifest["files"]]
        return replace(self, loaded={suffix: self.load(suffix) for suffix in suffixes})

    def load(self, suffix: str) -> dict[str, Any]:
        """Load the dictionary in one of the files, tensors as NumPy arrays.

        Raises CheckpointError, as `load_all` does.
        """
        if suffix in self.loaded:
            return self.loaded[suffix]
        name = self.name + suffix
        with self.opened(suffix) as file:
            size = self.manifest["files"][name]["size"]
            return load_from(file, size, self.path.with_name(name))

    def verify(self) -> None:
        """Read every file. Raises DamagedError and UnreadableError as `opened` does."""
        for name in self.manifest["files"]:
            with self.opened(Path(name).suffix):
                pass


def _read_error(path: Path, error: OSError, expected: str) -> CheckpointError:
    """Return the DamagedError or UnreadableError for an error in reading a file."""
    if error.errno in _MISSING:
        return DamagedError(f"{path}: {error.strerror}; {expected}")
    return UnreadableError(
        f"{path}: cannot be read ({error.strerror}) but may be intact, so it stays where it is; "
        "make it readable, or move its checkpoint away"
    )


def _require_match(file: HashedFile, expected: FileEntry, path: Path, manifest: str) -> None:
    """Read a file to its end; raise DamagedError unless it is the one that a manifest lists."""
    actual = file.entry()
    if actual != expected:
        raise DamagedError(
            f"{path}: {actual['size']} bytes, SHA-256 {actual['sha256'][:12]}...; "
            f"{manifest} says {expected['size']} bytes, {expected['sha256'][:12]}..."
        )


def name_of_checkpoint(name: str, state: TrainState) -> str:
    """Return the name of a state's checkpoint: after an epoch, or inside one. name: its prefix."""
    is_after_epoch = state.step and not state.position
    end = f"epoch{state.epoch - 1}" if is_after_epoch else f"epoch{state.epoch}_step{state.step}"
    return f"{name}_{end}"


def checksum(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all other entries, as JSON: sorted keys, no white space and no NaN."""
    entries = {**manifest}
    entries.pop(CHECKSUM, None)
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: Union[str, Path]) -> Checkpoint:
    """Read the manifest at `path` and return its checkpoint; its files are not read.

    Raises CheckpointError for a manifest that is missing, damaged or of another format, and
    UnreadableError for one that cannot be read.
    """
    path = Path(path)
    try:
        data = read_bytes(path, MAX_JSON)
    except OSError as error:
        raise _read_error(path, error, "expected a manifest") from error
    return parse_manifest(path, data)


def parse_manifest(path: Path, data: bytes) -> Checkpoint:
    """Return the checkpoint of a manifest that was read already. Raises as `read_manifest` does."""
    try:
        manifest: dict[str, Any] = parse_json(data, dict)
        if manifest["format"] not in (FORMAT, LATER_FORMAT):
            raise CheckpointError(
                f"{path}: format {manifest['format']!r:.40}; this version reads formats "
                f"{FORMAT} and {LATER_FORMAT}; "
                "move it out of quarantine/, and use the version of paddle_mnist that wrote it"
            )
        if manifest.get(CHECKSUM) != checksum(manifest):
            raise CheckpointError(
                f"{path}: its checksum does not match its entries, so it is damaged or was edited; "
                "use another"
            )
        needed = _ALWAYS | (_OF_OPTIMIZER if _OF_OPTIMIZER & manifest.keys() else set())
        if missing := needed - manifest.keys():
            raise ValueError(f"lacks {listed(sorted(missing))}")
        msgspec.convert(manifest, Manifest)
        msgspec.convert(manifest["state"], _State)
    except (ValueError, msgspec.ValidationError, KeyError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path}: not a manifest ({reason}); use another") from error
    names = [path.stem + suffix for suffix in DATA_SUFFIXES]
    if not {*names[:2]} <= {*manifest["files"]} <= {*names}:
        raise CheckpointError(f"{path}: lists files other than {', '.join(names)}")
    return Checkpoint(path, cast(Manifest, manifest))

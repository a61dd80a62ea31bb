"""`RunDirectory`: everything one training writes, one writer at a time."""

import contextlib
import glob
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Optional, TypedDict, Union

import msgspec

from paddle_mnist.checkpoint.manifest import PARAMS, Checkpoint, FileEntry
from paddle_mnist.checkpoint.mirror import Mirror
from paddle_mnist.checkpoint.saving import KEEP_EPOCHS, Saving
from paddle_mnist.checkpoint.store import QUARANTINE, CheckpointStore, list_files, without_lock
from paddle_mnist.errors import ConfigError, OutputError, RunLockedError, spelled
from paddle_mnist.metrics.writers import JsonlWriter, cut_jsonl
from paddle_mnist.options import CountOrZero
from paddle_mnist.system.environment import printable
from paddle_mnist.system.files import (
    Journal,
    first_free,
    make_folder,
    remove,
    remove_temporary,
    sync_folder,
    write_atomically,
    writing,
)
from paddle_mnist.system.lock import LOCK, RECORD, FolderLock, locked_folder
from paddle_mnist.system.regular_files import MAX_JSON, open_own, parse_json, read_bytes
from paddle_mnist.system.scratch import find_plan
from paddle_mnist.system.yaml_reader import read_yaml

log = logging.getLogger("paddle_mnist")

RUNS = "work/output"  # where runs are, unless --output says otherwise
DEFAULT_OUTPUT = f"{RUNS}/default"
TRAINED_WITH = "trained_with"  # the entry of config.yaml that names the function that trained
MIRROR_LOCK = ".mirror.lock"  # held by the process that uploads
FIT = "paddle_mnist.fit"  # the function that trains any net, as `TRAINED_WITH`


_FileName = Annotated[str, msgspec.Meta(pattern=r"\A[^./\0][^/\0]*\Z")]


class Difference(TypedDict):
    """A value that a repeated step computed differently; None means not finite."""

    step: CountOrZero
    name: str
    before: Union[float, int, None]
    now: Union[float, int, None]


class Repeats(TypedDict):
    """How a resumed run's repeated steps compare with the first time (`training.witness`)."""

    interruptions: CountOrZero
    repeated: CountOrZero
    differing: list[Difference]
    compared: str
    not_compared: list[str]


class _Result(msgspec.Struct):
    """The entries of `result.json` that are read; the file may lack some and have others."""

    metrics: dict[str, Optional[float]] = {}
    weights: _FileName = "model.pdparams"
    weights_file: Optional[FileEntry] = None  # version 1.0 did not write it
    checkpoint: _FileName = "model_epoch0"
    epochs: CountOrZero = 0
    steps: CountOrZero = 0
    seconds: float = 0.0
    stopped: str = ""
    witness: Optional[Repeats] = None  # version 1.0 did not write it


class RunDirectory:
    """The directory of a run. Creating the object does not touch the disk.

    path: the directory. name: the name of the model and of its final weights; by default the one
        that is found in the directory.
    Raises ConfigError for a path whose `~user` does not exist.
    """

    def __init__(self, path: Union[str, Path], name: Optional[str] = None):
        try:
            self.path = Path(path).expanduser()
        except RuntimeError as error:  # ~nobody
            raise ConfigError(f"output is {path}; {error}; expected a folder") from error
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.result = self.path / "result.json"
        self.witness = self.path / "witness.bin"
        self.log = self.path / "train.log"
        self.visualdl = self.path / "vdl"
        self.figures = self.path / "figures"
        self.profile = self.path / "profile"
        self.checkpoints = CheckpointStore(self.path / "checkpoints")
        self.mirror: Optional[Mirror] = None
        self.weights_file: Optional[dict[str, Any]] = None  # size and SHA-256, for the result
        self._name = name

    @property
    def name(self) -> str:
        """The name of the model, and the prefix of its checkpoints' names."""
        return self._name or self._recorded_name()

    @property
    def weights(self) -> Path:
        """The file of the final weights, `{name}.pdparams`."""
        return self.path / f"{self.name}{PARAMS}"

    def _recorded_name(self) -> str:
        """Return the name of the model that was trained here, from its checkpoints or weights."""
        manifests = list_files(self.checkpoints.folder, "*_epoch*.json")
        prefixes = sorted({path.stem.rpartition("_epoch")[0] for path in manifests})
        if prefixes:  # of several, one whose final weights are there
            finished = (n for n in prefixes if (self.path / f"{n}{PARAMS}").exists())
            return next(finished, prefixes[0])
        names = sorted(
            path.stem
            for path in list_files(self.path, f"*{PARAMS}")
            if not path.with_suffix(".json").exists()  # a checkpoint's
        )
        is_unambiguous = len(names) == 1 or (names and self.config.exists())
        return names[0] if is_unambiguous else "model"

    def read_config(self) -> dict[str, Any]:
        """Return the contents of `config.yaml`, whatever trained the run; {} if there is none.

        Raises ConfigError if it is damaged.
        """
        return read_yaml(self.config) if self.config.exists() else {}

    @property
    def is_of_fit(self) -> bool:
        """Whether `fit` trained a net that only the code of its caller can build."""
        return self.read_config().get(TRAINED_WITH) == FIT

    def read_result(self) -> dict[str, Any]:
        """Return the contents of `result.json`; {} if it is missing or, with a warning, damaged."""
        try:
            values: dict[str, Any] = parse_json(read_bytes(self.result, MAX_JSON), dict)
            msgspec.convert(values, _Result)
            return values
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, msgspec.ValidationError) as error:
            log.warning("%s is damaged (%s), so the run counts as unfinished", self.result, error)
            return {}

    # Writing, one process at a time

    @contextlib.contextmanager
    def opened(
        self,
        fresh: bool = False,
        saving: Saving = KEEP_EPOCHS,
        earlier: Iterable[logging.LogRecord] = (),
    ) -> Iterator["RunDirectory"]:
        """Create the directory if it is missing, lock it, and copy the log to `train.log`.

        fresh: first move the current contents aside, to `<name>.1` or the next free number.
        earlier: records that were logged before, to be copied to `train.log`, too.
        Raises RunLockedError if another process holds the lock, OutputError if the directory
        cannot be written, and ConfigError for a fresh run with a mirror that has checkpoints.
        """
        if fresh:
            with self._locked(saving):
                self._require_movable()
                if saving.mirror:
                    with contextlib.closing(Mirror(saving.mirror, self, saving)) as mirror:
                        mirror.require_empty()
                self._move_aside()
        # After a move this is another directory, with another lock.
        with self._locked(saving) as lock:
            self.checkpoints.require_ownership = lock.require
            quarantine = self.checkpoints.folder / QUARANTINE
            for folder in (self.figures, self.profile, quarantine):
                self.require_inside(folder)
            own = self.config, self.metrics, self.result, self.witness, self.weights, lock.path
            for path in own:
                remove_temporary(self.path, glob.escape(path.name))
            remove_temporary(self.figures)
            handler = _LogFile(self.log)
            for record in earlier:
                handler.handle(record)
            log.addHandler(handler)
            for link in filter(Path.is_symlink, (self.checkpoints.folder, self.visualdl)):
                log.info("%s is a link: its files are written to %s", link, link.resolve())
            try:
                yield self
            finally:
                log.removeHandler(handler)
                handler.close()
                self.checkpoints.require_ownership = without_lock

    def require_inside(self, folder: Path) -> None:
        """Raise OutputError if a folder to write to is a link out of this directory, or no folder.

        Only `checkpoints` and `vdl` may lead to another disk.
        """
        place = Path(os.path.realpath(folder))
        top = self.checkpoints.folder if folder.name == QUARANTINE else self.path
        if os.path.lexists(folder) and not (place.is_dir() and place.is_relative_to(top.resolve())):
            raise OutputError(
                f"{folder}: not a folder in {top}; only checkpoints and vdl may be links out of a "
                "run; move it away"
            )

    @contextlib.contextmanager
    def mirrored(self, saving: Saving) -> Iterator[None]:
        """Keep the mirror up to date, if `saving` has one, and complete it at the end.

        Once another process has taken over the run or its mirror, nothing more is uploaded. Raises
        OutputError if the run succeeds but leaves its mirror incomplete.
        """
        if not saving.mirror:
            yield
            return
        lock = self.path / MIRROR_LOCK
        with writing(lock):  # here, where the user sees why it cannot be written
            os.close(open_own(lock, os.O_RDWR | os.O_CREAT))
        with contextlib.closing(Mirror(saving.mirror, self, saving)) as mirror:
            self.mirror = mirror
            try:
                yield
            except BaseException as error:
                if not isinstance(error, RunLockedError):
                    mirror.finish()
                raise
            if not mirror.finish():
                raise OutputError(
                    f"{mirror.url}: lacks the result of the run, which is complete in "
                    f"{self.path}; run again to upload the rest"
                )

    @contextlib.contextmanager
    def _locked(self, saving: Saving) -> Iterator[FolderLock]:
        make_folder(self.path)
        with contextlib.ExitStack() as stack:
            with writing(self.path):
                elsewhere = _elsewhere(bool(saving.mirror))
                lock = stack.enter_context(
                    locked_folder(self.path, saving.break_lock_after, elsewhere)
                )
            yield lock

    def _is_empty(self) -> bool:
        """Return whether no training has started here; one that was refused may have left a log."""
        others = (LOCK, RECORD, MIRROR_LOCK, self.log.name)
        return all(path.name in others for path in list_files(self.path, "*"))

    def _require_movable(self) -> None:
        """Raise ConfigError for a directory that cannot or must not be moved aside."""
        if self._is_empty():
            return
        if not (self.config.exists() or self.checkpoints.all()):
            raise ConfigError(
                f"{self.path}: holds files but no config.yaml, so it is not a run's directory, and "
                "it is not moved aside; choose another output"
            )
        if Path.cwd().is_relative_to(self.path.resolve()):
            raise ConfigError(
                f"{self.path}: is the current folder, which fresh cannot move aside; change to "
                "another folder"
            )

    def _move_aside(self) -> None:
        if self._is_empty():
            return
        resolved = self.path.resolve()
        # Behind a link, which stays, the folder moves on the disk it is on.
        parent = resolved.parent if self.path.is_symlink() else self.path.parent
        aside = first_free(parent / resolved.name)
        with writing(aside):
            os.rename(resolved, aside)
            remove(aside / RECORD)  # nobody trains there
        log.info("moved %s to %s", self.path, aside)
        self._repeat_links(aside)

    def _repeat_links(self, former: Path) -> None:
        """Link folders that were links in a former run to new folders, beside the former ones."""
        for folder in (self.checkpoints.folder, self.visualdl):
            link = former / folder.name
            if link.is_symlink():
                target = first_free(link.resolve())
                make_folder(target)
                make_folder(self.path)
                with writing(folder):
                    os.symlink(target, folder)
                log.info("%s links to %s now", folder, target)

    def elsewhere(self) -> str:
        """Return, for messages, the options to change for another run."""
        return _elsewhere(self.mirror is not None)

    def to_start_over(self) -> list[str]:
        """Return, for messages, the ways to start over; a mirror that holds a run refuses fresh."""
        if self.mirror:
            return [f"choose {self.elsewhere()} to start over"]
        start_over = f"use {spelled('fresh')} to start over (moves it aside)"
        return [start_over, f"choose {self.elsewhere()}"]

    def owns(self, checkpoint: Optional[Checkpoint]) -> bool:
        """Return whether there is a checkpoint and it is in this run's directory."""
        folder = self.checkpoints.folder.resolve()
        return checkpoint is not None and checkpoint.path.resolve().parent == folder

    def write_config(self, config: str) -> None:
        """Write `config.yaml`, and delete the result of an earlier end of this run.

        config: the YAML. A result that is there covers fewer epochs than the run that continues.
        """
        remove(self.result)
        write_atomically(self.config, config.encode())

    def start_history(self, checkpoint: Optional[Checkpoint]) -> None:
        """Cut `metrics.jsonl` at a checkpoint; remove it without one.

        If the checkpoint is another run's, so is the history.
        """
        if not checkpoint:
            remove(self.metrics)
            return
        former = self.of(checkpoint)
        lines = checkpoint.manifest["metrics_lines"]
        cut_jsonl(former.metrics, self.metrics, checkpoint.state, lines)

    def open_history(self) -> JsonlWriter:
        """Open `metrics.jsonl` to append to it."""
        history = JsonlWriter(self.metrics)
        sync_folder(self.path)
        return history

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json`, after forcing the weights to the disk. Raises OutputError.

        Deletes the records of the witness, since no step of a finished run is repeated; `prove`
        compares them.
        """
        self.checkpoints.require_ownership()
        result = {**result, "weights_file": self.weights_file}
        text = json.dumps(result, indent=1, allow_nan=False) + "\n"
        sync_folder(self.path)
        write_atomically(self.result, text.encode())
        sync_folder(self.path)
        if not find_plan():
            with contextlib.suppress(OutputError):  # a folder of this name, for example
                remove(self.witness)

    def of(self, checkpoint: Checkpoint) -> "RunDirectory":
        """Return the run of a checkpoint, perhaps this one."""
        return self if self.owns(checkpoint) else RunDirectory(checkpoint.path.parent.parent)


def _elsewhere(is_mirrored: bool) -> str:
    """Return the options to change for another run; one with the same mirror would resume."""
    return "another output and another mirror" if is_mirrored else "another output"


class _LogFile(logging.Handler):
    """Writes `train.log`. Lines for which a full disk has no room are written later."""

    def __init__(self, path: Path):
        super().__init__()
        self.journal = Journal(path)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.journal.append(f"{printable(self.format(record))}\n")

    def close(self) -> None:
        super().close()
        self.journal.close()

"""The run directory: everything one training writes, one writer at a time."""

import contextlib
import dataclasses
import difflib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from filelock import FileLock, Timeout

from paddle_mnist.checkpoint.manifest import (
    BREAKPOINT,
    DATA_SUFFIXES,
    PARAMS,
    Checkpoint,
    read_manifest,
)
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import CheckpointError, ConfigError, RunLockedError
from paddle_mnist.metrics.jsonl import JsonlWriter, cut_jsonl
from paddle_mnist.mnist import pretrained
from paddle_mnist.mnist.config import TrainConfig, read_yaml
from paddle_mnist.state import TrainState
from paddle_mnist.system.files import (
    Journal,
    make_folder,
    remove,
    remove_temporary,
    sync_folder,
    write_atomically,
    writing,
)

log = logging.getLogger("paddle_mnist")

RUNS = "work/output"  # where runs are, unless --output says otherwise
DEFAULT_OUTPUT = f"{RUNS}/default"
IN_A_RUN = ("latest", "best")  # what names a checkpoint of a run
METRICS_LINES = "metrics_lines"  # of a manifest: how many lines metrics.jsonl had when it was saved

FIGURES = (  # that a run draws, each as .png and .svg
    *("curves", "learning_rate", "confusion_matrix", "per_class", "kernels", "feature_maps"),
    *("mistakes", "health"),
)
FIGURE_FILES = tuple(f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg"))
COMPARED_FILES = ("compare.png", "compare.svg")  # several runs, one over another


class RunDirectory:
    """Names and rules of a run directory. Making one touches nothing on the disk."""

    def __init__(self, path: Union[str, Path], name: Optional[str] = None):
        """name: of the model, which the weights are called after; by default found on the disk."""
        try:
            self.path = Path(path).expanduser()
        except RuntimeError as error:  # ~nobody
            raise ConfigError(f"output is {path}; {error}; expected a folder") from error
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.result = self.path / "result.json"
        self.log = self.path / "train.log"
        self.visualdl = self.path / "vdl"
        self.figures = self.path / "figures"
        self.profile = self.path / "profile"
        self.checkpoints = CheckpointStore(self.path / "checkpoints")
        self._name = name

    @property
    def weights(self) -> Path:
        """The file of the final weights, `{NAME}.pdparams`."""
        return self.path / f"{self._name or self._found_name()}{PARAMS}"

    def _found_name(self) -> str:
        """The name of the model that was trained here, from its checkpoints or its weights."""
        names = sorted(path.stem for path in self.path.glob(f"*{PARAMS}"))
        checkpoints = [path.stem for path in self.checkpoints.folder.glob("*_epoch*.json")]
        for name in names:
            if any(stem.startswith(f"{name}_epoch") for stem in checkpoints):
                return name
        return names[0] if names else "model"

    @contextlib.contextmanager
    def opened(self, fresh: bool = False) -> Iterator["RunDirectory"]:
        """Hold the directory, made if need be, and copy the log to `train.log`.

        fresh: first move what is there aside, to `<name>.1` or the next free number.
        Raises RunLockedError if another process holds it, OutputError if it cannot be written.
        """
        if fresh:
            with self._locked():
                self._move_aside()
        with self._locked():  # after a move it is another directory, with another lock
            for path in (self.config, self.metrics, self.result, self.weights):
                remove_temporary(self.path, path.name)
            remove_temporary(self.figures)
            handler = _LogFile(self.log)
            log.addHandler(handler)
            try:
                yield self
            finally:
                log.removeHandler(handler)
                handler.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        make_folder(self.path)
        lock = FileLock(self.path / ".lock")  # the system drops it when its holder dies
        with writing(self.path):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise RunLockedError(
                    f"{self.path}: another process is training there; wait for it, or choose "
                    "another --output"
                ) from None
        try:
            yield
        finally:
            lock.release()

    def _move_aside(self) -> None:
        if not any(path.name not in (".lock", "train.log") for path in self.path.iterdir()):
            return  # no run: one that was refused before it began
        if not self.config.exists():
            raise ConfigError(
                f"{self.path}: holds files but no config.yaml, so it is not a run's directory, and "
                "--fresh leaves it alone; choose another --output"
            )
        here = self.path.resolve()
        if Path.cwd().is_relative_to(here):
            raise ConfigError(f"{self.path}: is the current folder; --fresh cannot move it aside")
        number = 1
        while (aside := self.path.parent / f"{here.name}.{number}").exists():
            number += 1
        with writing(aside):
            os.rename(self.path, aside)
        log.info("moved %s to %s", self.path, aside)

    def owns(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is this run's."""
        return checkpoint.path.resolve().parent == self.checkpoints.folder.resolve()

    def resume_point(
        self, config: TrainConfig, hashes: Mapping[str, Optional[str]]
    ) -> Optional[Checkpoint]:
        """The checkpoint to go on from; None to start at step 0.

        hashes: of the images, as manifests have them, `data_hash` and `replay_hash`.

        Raises ConfigError, with a diff, if the configuration or the data would give another
        result than the run's so far, and CheckpointError if its checkpoints are all damaged.
        """
        self.checkpoints.remove_temporary_files()
        newest = self.checkpoints.newest(quarantine_damaged=True)
        if not newest:
            self._nothing_lost()
        checkpoint = newest
        if config.resume == "off" and newest:
            raise ConfigError(
                f"resume is off, but {self.path} holds {newest.name}; start over with --fresh, "
                "which moves it aside, or choose another --output"
            )
        if config.resume not in ("auto", "off"):
            named = find_checkpoint(config.resume, self)
            named.verify()
            if newest and self.owns(named) and named.step < newest.step:
                raise ConfigError(
                    f"resume names {named.path}, step {named.step}, but {self.path} holds "
                    f"{newest.name}, step {newest.step}; choose another --output"
                )
            checkpoint = newest or named  # the same command again goes on where it was stopped
        if checkpoint:
            _check_unchanged(checkpoint, config, hashes, self.path, self.owns(checkpoint))
        return checkpoint

    def _nothing_lost(self) -> None:
        """Without a checkpoint: raises CheckpointError if there must have been one."""
        strays = self.checkpoints.orphaned_files()
        if self.result.exists() or len({path.stem for path in strays if path.suffix == PARAMS}) > 1:
            raise CheckpointError(
                f"{self.checkpoints.folder}: a run was trained here, but no manifest is there; put "
                "its checkpoints back, or start over with --fresh"
            )
        for path in strays:
            log.warning("%s: no manifest names it, so it was never committed; starting anew", path)

    def write_config(self, config: TrainConfig, data: str, replay_data: Optional[str]) -> None:
        """Write the configuration: data where they were found, and nothing of this one start.

        A result of fewer epochs, which a run that goes on had, is no longer its result.
        """
        remove(self.result)
        lasting = dataclasses.replace(
            config, data=data, replay_data=replay_data, resume="auto", override=()
        )
        write_atomically(self.config, lasting.as_yaml().encode())

    def read_config(self) -> TrainConfig:
        """The configuration of the run. Raises ConfigError."""
        return TrainConfig.from_mapping(read_yaml(self.config), origin=str(self.config))

    def start_history(self, checkpoint: Optional[Checkpoint]) -> None:
        """Cut `metrics.jsonl` at the checkpoint, having taken it over if that is another run's."""
        if checkpoint and not self.owns(checkpoint):
            theirs = RunDirectory(checkpoint.path.parent.parent).metrics
            if theirs.exists():
                write_atomically(self.metrics, theirs.read_bytes())
        if checkpoint:
            cut_jsonl(self.metrics, checkpoint.state, checkpoint.manifest.get(METRICS_LINES))
        else:
            cut_jsonl(self.metrics, TrainState(), 0)

    def open_history(self) -> JsonlWriter:
        """Open `metrics.jsonl` to append to it."""
        self._history = JsonlWriter(self.metrics)
        return self._history

    def manifest_entries(self) -> dict[str, Any]:
        """What a manifest binds of the run's other files, at the time of the save."""
        return {METRICS_LINES: self._history.lines}

    def write_result(self, result: Mapping[str, Any]) -> None:
        text = json.dumps(result, indent=1, allow_nan=False) + "\n"
        sync_folder(self.path)  # the weights are there for good before a result says so
        write_atomically(self.result, text.encode())
        sync_folder(self.path)

    def read_result(self, checkpoint: Checkpoint) -> Optional[dict[str, Any]]:
        """The result of the run if it ended with this checkpoint."""
        if not self.result.exists():
            return None
        try:
            result = json.loads(self.result.read_text(encoding="utf-8"))
            return result if result["steps"] == checkpoint.step else None
        except (ValueError, TypeError, KeyError) as error:
            log.warning("%s is damaged (%r); evaluating again", self.result, error)
            return None

    def ended_with(self) -> Optional[str]:
        """The name of the checkpoint whose weights the run ended with; None if it is unfinished.

        A training that continues a finished run deletes its result first.
        """
        if not self.result.exists():
            return None
        try:
            return str(json.loads(self.result.read_text(encoding="utf-8"))["checkpoint"])
        except (ValueError, TypeError, KeyError) as error:
            log.warning("%s is damaged (%r), so the run counts as unfinished", self.result, error)
            return None

    def new_visualdl_folder(self) -> Path:
        """A folder for this process alone: VisualDL reads only one file of each."""
        number = 1
        while (folder := self.visualdl / f"{number:03}").exists():
            number += 1
        make_folder(folder)
        return folder


class NoRunDirectory(RunDirectory):
    """For a process that trains with others and writes nothing: rank 0 has the run directory."""

    @contextlib.contextmanager
    def opened(self, fresh: bool = False) -> Iterator[RunDirectory]:
        yield self

    def write_config(self, config: TrainConfig, data: str, replay_data: Optional[str]) -> None:
        """Nothing to do."""

    def start_history(self, checkpoint: Optional[Checkpoint]) -> None:
        """Nothing to do."""

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Nothing to do."""


def newest_run(folder: Union[str, Path] = RUNS) -> Optional[RunDirectory]:
    """The run at or below a folder that was trained last; None where there is none.

    By the time at which its newest checkpoint was saved, or its weights where it has none.
    """
    trained = []
    for config in Path(folder).rglob("config.yaml"):
        run = RunDirectory(config.parent)
        times = [float(checkpoint.info.time) for checkpoint in run.checkpoints.all()]
        if not times and run.weights.exists():
            times = [run.weights.stat().st_mtime]
        if times:
            trained.append((max(times), str(run.path)))
    return RunDirectory(max(trained)[1]) if trained else None


def default_run() -> RunDirectory:
    """The run of a command that names none: the newest. Raises CheckpointError where none is."""
    run = newest_run()
    if not run:
        raise CheckpointError(f"{RUNS}: no run there; train one, or name the directory of another")
    log.info("newest run: %s", run.path)
    return run


def find_checkpoint(name: str, run: Optional[RunDirectory] = None) -> Checkpoint:
    """The checkpoint that "latest" or "best" names in a run, or a path anywhere.

    name: "latest", "best", the path of a checkpoint with any suffix or none, or of a run
        directory, which means its newest, from which an unfinished training continues.
    run: of "latest" and "best"; by default the newest in work/output.
    Raises CheckpointError if there is none.
    """
    if name not in ("", *IN_A_RUN) and os.path.isdir(name):
        name, run = "latest", RunDirectory(name)
    if name in IN_A_RUN:
        run = run or default_run()
        store = run.checkpoints
        checkpoint = store.newest() if name == "latest" else store.best()
        if not checkpoint:
            raise CheckpointError(_no_run(run))
        return checkpoint
    if not Path(name).name:
        raise CheckpointError(f"checkpoint is {name!r}; {_expected(IN_A_RUN)}")
    manifest = _manifest_path(name)
    if not os.path.exists(manifest):
        raise CheckpointError(_no_checkpoint(name, IN_A_RUN))
    return read_manifest(manifest)


@dataclasses.dataclass(frozen=True)
class SavedWeights:
    """The weights in a file, and what is known of their training.

    path: of the file. values: `{"conv1.weight": float32 [20, 1, 5, 5], ...}`, NumPy arrays; of a
    run with a moving average, that average. run: the directory they are in.
    checkpoint: the one with these weights and the optimizer's state; None where there is none.
    manifest: of that checkpoint, else of the run's newest; empty for weights of no run.
    """

    path: Path
    values: Mapping[str, Any]
    run: RunDirectory
    checkpoint: Optional[Checkpoint] = None
    manifest: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def find_weights(name: Optional[str] = None, run: Optional[str] = None) -> SavedWeights:
    """The weights that a name stands for: the one answer for all commands.

    name: the path of a run directory, which means the weights the run ended with, or those of its
        newest checkpoint while it is unfinished (the log says so); "latest" or "best", for the
        newest and the best checkpoint of `run`; the path of a checkpoint, with any suffix or none,
        or of a bare `.pdparams`, such as the tutorial writes; "pretrained", for the weights that
        come with the package. By default `run`.
    run: a run directory; by default the newest in work/output.
    Raises CheckpointError if there are none, or they are damaged.
    """
    if name == "pretrained":
        path = pretrained.WEIGHTS
        return SavedWeights(path, pretrained.weights(), RunDirectory(path.parent))
    if name is None or name in IN_A_RUN:
        owner = RunDirectory(run) if run else default_run()
        return _weights_of(owner) if name is None else _weights_in(find_checkpoint(name, owner))
    if name and os.path.isdir(name):
        return _weights_of(RunDirectory(name))
    path = Path(name)
    if path.name and not os.path.exists(_manifest_path(name)):
        if path.suffix != PARAMS or not os.path.exists(path):
            raise CheckpointError(_no_checkpoint(name, (*IN_A_RUN, "pretrained")))
        owner = RunDirectory(path.parent)
        return SavedWeights(path, safe_load(path), owner, manifest=_newest_manifest(owner))
    return _weights_in(find_checkpoint(name))


def _weights_of(run: RunDirectory) -> SavedWeights:
    """The weights that a run ended with, or of its newest checkpoint while it is unfinished.

    Taken from a checkpoint, whose checksum is known; from `mnist.pdparams` where that is gone.
    """
    ended_with = run.ended_with()
    if not ended_with:
        newest = run.checkpoints.newest()
        if newest:
            log.info("%s is not finished; its newest checkpoint is %s", run.path, newest.name)
            return _weights_in(newest)
    for checkpoint in run.checkpoints.all():
        # An epoch's end has the other name where the training broke off just there.
        if checkpoint.name in (ended_with, f"{ended_with}{BREAKPOINT}"):
            try:
                return _weights_in(checkpoint)
            except CheckpointError as error:
                log.warning("damaged checkpoint: %s", error)
    if not run.weights.exists():
        raise CheckpointError(_no_run(run))
    return SavedWeights(run.weights, safe_load(run.weights), run, manifest=_newest_manifest(run))


def _weights_in(checkpoint: Checkpoint) -> SavedWeights:
    return SavedWeights(
        path=checkpoint.path.with_suffix(PARAMS),
        values=checkpoint.load(PARAMS),
        run=RunDirectory(checkpoint.path.parent.parent),
        checkpoint=checkpoint,
        manifest=checkpoint.manifest,
    )


def _newest_manifest(run: RunDirectory) -> Mapping[str, Any]:
    checkpoints = run.checkpoints.all()
    return checkpoints[-1].manifest if checkpoints else {}


def _stem(path: Path) -> str:
    """The name of a checkpoint, whichever of its files is named."""
    return path.stem if path.suffix in (*DATA_SUFFIXES, ".json") else path.name


def _manifest_path(name: str) -> Path:
    return Path(name).with_name(f"{_stem(Path(name))}.json")


def _expected(words: Sequence[str]) -> str:
    return f"expected {', '.join(words)}, or a path: of a run, a checkpoint or a .pdparams"


def _no_run(run: RunDirectory) -> str:
    """What to say of a folder that has neither a run's checkpoints nor its weights."""
    if (run.path / "about.json").exists():
        return (
            f"{run.path}: an exported model, from which no weights are read; expected the run or "
            "checkpoint it was made of; only tools/infer.py --model and tools/demo.py take it"
        )
    checkpoints = CheckpointStore(run.path).all()
    if checkpoints:
        named = checkpoints[-1].path.with_suffix("")
        return f"{run.path}: a folder of checkpoints, not a run; expected one of them, as {named}"
    return f"{run.path}: no checkpoint there; expected a run directory"


def _no_checkpoint(name: str, words: Sequence[str]) -> str:
    """What to say of a path that is no checkpoint, with the nearest name that is one."""
    path = Path(name)
    try:
        path.stat()
        named = path.suffix in DATA_SUFFIXES
        reason = f"its manifest {_stem(path)}.json is missing" if named else "not a checkpoint"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    known = {word: word for word in words}
    for pattern in ("*.json", f"*{PARAMS}"):
        known.update({other.stem: str(other) for other in path.parent.glob(pattern)})
    for config in path.parent.glob("*/config.yaml"):
        known[config.parent.name] = str(config.parent)
    near = difflib.get_close_matches(_stem(path), known, n=1)
    hint = f"; did you mean {known[near[0]]!r}?" if near and known[near[0]] != name else ""
    return f"{name}: {reason}; {_expected(words)}{hint}"


def _check_unchanged(
    checkpoint: Checkpoint,
    config: TrainConfig,
    hashes: Mapping[str, Optional[str]],
    path: Path,
    own: bool,
) -> None:
    """own: whether the run goes on in its own directory; else where it began is its own affair."""
    stored = checkpoint.manifest.get("config")
    if stored is None:
        raise CheckpointError(
            f"{checkpoint.path}: holds no configuration, so it is not a run's; start from its "
            "weights in your own code, as the tutorial does"
        )
    # A field that is younger than the run had its default, or what there was before it.
    before = TrainConfig(fast_conv="off").binding()
    stored = {**before, **stored, **_contents(checkpoint.manifest)}
    given = {**config.binding(), **_contents(hashes)}
    allowed = config.override if own else (*config.override, "init_from", "incremental_from")
    changed = [
        f"  {name}: {stored.get(name)!r} in the run, {value!r} now"
        for name, value in given.items()
        if stored.get(name) != value and name not in allowed
    ]
    if changed:
        names = ",".join(line.split(":")[0].strip() for line in changed)
        raise ConfigError(
            f"{path} holds a run with other values:\n"
            + "\n".join(changed)
            + "\nStart over with --fresh (moves it aside), choose another --output, or change the "
            f"run on purpose with --override {names}"
        )
    begun = checkpoint.state.epoch + (checkpoint.state.position > 0)
    if config.epochs < begun:
        raise ConfigError(
            f"epochs is {config.epochs}, but {path} has {begun} begun or done; expected at least "
            "as many"
        )


def _contents(hashes: Mapping[str, Any]) -> dict[str, Optional[str]]:
    """The images by the fields that name them: what is in them binds, not where they are."""
    fields = {"data": "data_hash", "replay_data": "replay_hash"}
    return {name: (hashes.get(key) or "")[:12] or None for name, key in fields.items()}


class _LogFile(logging.Handler):
    """`train.log`. Lines that a full disk does not take are written later."""

    def __init__(self, path: Path):
        super().__init__()
        self.journal = Journal(path)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.journal.append(f"{self.format(record)}\n")

    def close(self) -> None:
        super().close()
        self.journal.close()

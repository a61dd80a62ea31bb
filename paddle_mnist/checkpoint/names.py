"""Names of checkpoints and weights: how they are made, and what the names that users give mean."""

import contextlib
import difflib
import importlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

import paddle_mnist
from paddle_mnist.checkpoint.manifest import (
    BREAKPOINT,
    DATA_SUFFIXES,
    PARAMS,
    Checkpoint,
    read_manifest,
)
from paddle_mnist.checkpoint.run import RUNS, RunDirectory
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.progress import TrainState
from paddle_mnist.system.program import as_option, weights_alone
from paddle_mnist.system.remote import without_credentials

log = logging.getLogger("paddle_mnist")

CHECKPOINT_WORDS = ("latest", "best")  # stand for a checkpoint of a run
PACKAGED = paddle_mnist.PACKAGED_WEIGHTS  # words that stand for weights of no run
WORDS = (*CHECKPOINT_WORDS, *PACKAGED)
# Suffixes of files that hold no weights, or an exported model. Those of weights may have any other.
EXPORTED = (".onnx", ".pdiparams", ".pdmodel")
EXPECTED = (
    f"expected {', '.join(WORDS)}, or a path: of a run, a checkpoint or a .pdparams; infer, demo "
    "and DigitPredictor also take the folder of an exported model"
)
NO_WEIGHTS = (*sorted({*DATA_SUFFIXES} - {PARAMS}), *EXPORTED, ".json", ".yaml", "")

MAX_NAME_BYTES = 180  # of 255; epoch, step, suffixes and those of temporary files follow

Name = Union[str, Path]


def name_of_checkpoint(name: str, state: TrainState) -> str:
    """Return the name of the checkpoint of a state: after an epoch, or inside one. name: NAME."""
    is_after_epoch = state.step and not state.position
    end = f"epoch{state.epoch - 1}" if is_after_epoch else f"epoch{state.epoch}_step{state.step}"
    return f"{name}_{end}"


def checkpoint_name(model: Any) -> str:
    """Return the prefix of a model's checkpoint names: its `checkpoint_name`, or "model".

    Raises ConfigError as `usable_name` does.
    """
    return usable_name(getattr(model, "checkpoint_name", "model"))


def usable_name(name: object) -> str:
    """Return a prefix of checkpoint names. Raises ConfigError unless file names can begin so."""
    with contextlib.suppress(UnicodeEncodeError):  # no Unicode
        if (
            isinstance(name, str)
            and os.path.basename(name) == name
            and not name.startswith(".")
            and "\0" not in name
            and 0 < len(name.encode()) <= MAX_NAME_BYTES
        ):
            return name
    raise ConfigError(
        f"name is {name!r}; expected the first part of a file's name: without a slash, not "
        f"beginning with a dot, and of at most {MAX_NAME_BYTES} bytes"
    )


@dataclass(frozen=True)
class SavedWeights:
    """The weights in a file, and what is known about their training.

    path: the file. values: `{"conv1.weight": float32 [20, 1, 5, 5], ...}` as NumPy arrays; the
    moving average, for a run that keeps one. run: the directory that holds them.
    checkpoint: the checkpoint with these weights and the optimizer's state, or None.
    manifest: that checkpoint's, or that of the run's newest one; empty for weights of no run.
    """

    path: Path
    values: Mapping[str, Any]
    run: RunDirectory
    checkpoint: Optional[Checkpoint] = None
    manifest: Mapping[str, Any] = field(default_factory=dict)


def newest_run(folder: Union[str, Path] = RUNS) -> Optional[RunDirectory]:
    """Return the most recently trained run at or below a folder, or None.

    A run is dated by its newest checkpoint, or by its weights if it has no checkpoints.
    """
    trained = []
    for config in Path(folder).rglob("config.yaml"):
        run = RunDirectory(config.parent)
        times = [checkpoint.saved_at for checkpoint in run.checkpoints.all()]
        if not times and run.weights.exists():
            times = [run.weights.stat().st_mtime]
        if times:
            trained.append((max(times), str(run.path)))
    return RunDirectory(max(trained)[1]) if trained else None


def default_run() -> RunDirectory:
    """Return the newest run, for a command that names none. Raises CheckpointError without one."""
    run = newest_run()
    if not run:
        raise CheckpointError(f"{RUNS}: no run found; train one, or give the directory of another")
    log.info("newest run: %s", run.path)
    return run


def exists(name: str) -> bool:
    """Return whether a path is there, or the checkpoint that it is the stem of."""
    return os.path.exists(name) or bool(Path(name).name and os.path.exists(_manifest_path(name)))


def _refuse_url(name: Name) -> None:
    """Raise CheckpointError for the URL of a mirror, from which only a training reads."""
    if "://" in str(name):
        url = without_credentials(str(name))
        given = as_option("mirror", url, f"saving=Saving(mirror={url!r})")
        raise CheckpointError(
            f"{url}: is a URL; expected a path on this machine; to bring a run back from its "
            f"mirror, train as it was trained, with {given}: what is there is not trained again"
        )


def find_run(name: Optional[Name] = None) -> RunDirectory:
    """Return the run that a name stands for or belongs to, for what shows runs.

    name: a run directory; one of its checkpoints or files, or the folder of its checkpoints;
        "latest" or "best", for the newest run in work/output, which is also the default. Any other
        path is returned as if it were a run's, for the caller to judge.
    Raises CheckpointError for a word without a run.
    """
    if name is None or str(name) in CHECKPOINT_WORDS:
        return default_run()
    if str(name) in PACKAGED:
        raise CheckpointError(f"{name}: weights of no run; expected a run, or a checkpoint of one")
    _refuse_url(name)
    path = Path(os.path.expanduser(name))  # of ~nobody, RunDirectory says it
    is_inside = path.name == "checkpoints" if path.is_dir() else exists(str(path))
    above = (path.parent, Path(os.path.normpath(path.parent / os.pardir))) if is_inside else ()
    return next(
        (run for run in map(RunDirectory, above) if run.config.exists()), RunDirectory(path)
    )


def find_checkpoint(name: Name, run: Optional[RunDirectory] = None) -> Checkpoint:
    """Return the checkpoint that a name or a path stands for.

    name: "latest" or "best", which is looked up in `run`; the name of a checkpoint of `run`; the
        path of a checkpoint, with any suffix or none; or the path of a run directory, for its
        newest checkpoint.
    run: by default the newest in work/output for a word, and none for a name.
    Raises CheckpointError if there is none.
    """
    _refuse_url(name)
    name = os.path.expanduser(name)
    if name in PACKAGED:
        raise CheckpointError(
            f"{name}: holds weights alone; expected a checkpoint, which has its optimizer's state, "
            f"or a run; to start from weights alone: {weights_alone(name)}"
        )
    if name not in ("", *CHECKPOINT_WORDS) and os.path.isdir(name):
        name, run = "latest", RunDirectory(name)
    if name in CHECKPOINT_WORDS:
        run = run or default_run()
        store = run.checkpoints
        checkpoint = store.newest() if name == "latest" else store.best()
        if not checkpoint:
            raise CheckpointError(_missing_from_run(run))
        return checkpoint
    if not Path(name).name:
        raise CheckpointError(f"checkpoint is {name!r}; {EXPECTED}")
    if run and exists(own := str(run.checkpoints.folder / name)):
        name = own
    manifest = _manifest_path(name)
    if not os.path.exists(manifest):
        raise CheckpointError(_not_a_checkpoint(name))
    return read_manifest(manifest)


def find_weights(name: Optional[Name] = None, run: Optional[Name] = None) -> SavedWeights:
    """Return the weights that a name or a path stands for; whatever reads weights finds them here.

    name: the path of a run directory, for the weights with which the run ended, or those of its
        newest checkpoint while it is unfinished (which is logged); "latest" or "best", for that
        checkpoint of `run`; the path of a checkpoint, with any suffix or none, or its name in
        `run`; the path of a bare `.pdparams`, such as the tutorial writes; or "pretrained", for
        the weights that come with the package. By default `run`.
    run: a run directory; for "latest" and "best", and without a name, by default the newest in
        work/output.
    Raises CheckpointError if there are none, or they are damaged; ConfigError if a run is given and
    a path that is not in it.
    """
    if name is not None and str(name) in PACKAGED:
        if run is not None:
            raise ConfigError(f"{name} and the run {run} are given; expected one of them")
        module, _, function = PACKAGED[str(name)].partition(":")
        packaged: SavedWeights = getattr(importlib.import_module(module), function)()
        return packaged
    for one in (name, run):
        _refuse_url(one or "")
    directory = None if run is None else RunDirectory(run)
    if name is None:
        return _final_weights(directory or default_run())
    name = os.path.expanduser(name)
    if name in CHECKPOINT_WORDS:
        return _checkpoint_weights(find_checkpoint(name, directory))
    if directory:
        name = _path_in(directory, name)
    if name and os.path.isdir(name):
        return _final_weights(RunDirectory(name))
    path = Path(name)
    if path.name and not os.path.exists(_manifest_path(name)):
        if path.suffix in NO_WEIGHTS or not os.path.isfile(path):
            raise CheckpointError(_not_a_checkpoint(name))
        directory = RunDirectory(path.parent)
        return SavedWeights(path, safe_load(path), directory, manifest=_newest_manifest(directory))
    return _checkpoint_weights(find_checkpoint(name))


def _path_in(run: RunDirectory, name: str) -> str:
    """Return the path of what a name means in a run.

    name: of a checkpoint or file of the run, or its path. Raises ConfigError for the path of
    something else, CheckpointError if there is nothing of this name.
    """
    inside = [str(folder / name) for folder in (run.checkpoints.folder, run.path)]
    for own in inside:
        if name and exists(own):
            return own
    if not exists(name):
        raise CheckpointError(_not_a_checkpoint(name if os.path.dirname(name) else inside[0]))
    path, top = Path(name).resolve(), run.path.resolve()
    if path != top and path.parent not in (top, run.checkpoints.folder.resolve()):
        raise ConfigError(
            f"{name} is not of the run {run.path}; expected one of them, or that run and the name "
            f"of one of its checkpoints: {', '.join(CHECKPOINT_WORDS)}, or as its files are called"
        )
    return name


def _final_weights(run: RunDirectory) -> SavedWeights:
    """Return the weights with which a run ended, or its newest ones while it is unfinished.

    They are read from a checkpoint, whose checksum is known, or from the file of the final weights
    if that checkpoint is gone.
    """
    final_name = run.final_checkpoint()
    if not final_name:
        newest = run.checkpoints.newest()
        if newest:
            log.info("%s is not finished; its newest checkpoint is %s", run.path, newest.name)
            return _checkpoint_weights(newest)
    for checkpoint in run.checkpoints.all():
        # An epoch's end has the second name if the training was interrupted right there.
        if checkpoint.name in (final_name, f"{final_name}{BREAKPOINT}"):
            try:
                return _checkpoint_weights(checkpoint)
            except CheckpointError as error:
                log.warning("damaged checkpoint: %s", error)
    if not run.weights.exists():
        raise CheckpointError(_missing_from_run(run))
    return SavedWeights(run.weights, safe_load(run.weights), run, manifest=_newest_manifest(run))


def _checkpoint_weights(checkpoint: Checkpoint) -> SavedWeights:
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
    """Return the name of a checkpoint, given the path of any of its files."""
    return path.stem if path.suffix in (*DATA_SUFFIXES, ".json") else path.name


def _manifest_path(name: str) -> Path:
    return Path(name).with_name(f"{_stem(Path(name))}.json")


def _missing_from_run(run: RunDirectory) -> str:
    """Return the message for a folder that has neither a run's checkpoints nor its weights."""
    if (run.path / "about.json").exists():
        reason = "an exported model, from which no weights are read"
    elif run.checkpoints.all():
        reason = "no evaluation has chosen a best checkpoint"
    elif checkpoints := CheckpointStore(run.path).all():
        newest = checkpoints[-1].path.with_suffix("")
        reason = f"a folder of checkpoints, not a run; name one, as {newest}"
    else:
        reason = "no checkpoint there"
    return f"{run.path}: {reason}; {EXPECTED}"


def _not_a_checkpoint(name: str) -> str:
    """Return the message for a path that is no checkpoint, with the nearest name that is one."""
    path = Path(name)
    try:
        path.stat()
        is_data = path.suffix in DATA_SUFFIXES
        reason = f"its manifest {_stem(path)}.json is missing" if is_data else "not a checkpoint"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    known = {word: word for word in WORDS}
    for pattern in ("*.json", f"*{PARAMS}"):
        known.update({other.stem: str(other) for other in path.parent.glob(pattern)})
    for config in path.parent.glob("*/config.yaml"):
        known[config.parent.name] = str(config.parent)
    near = difflib.get_close_matches(_stem(path), known, n=1)
    hint = f"; did you mean {known[near[0]]!r}?" if near and known[near[0]] != name else ""
    return f"{name}: {reason}; {EXPECTED}{hint}"

"""Find weights and checkpoints by the names that users give them."""

import difflib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

from paddle_mnist.checkpoint.manifest import (
    BREAKPOINT,
    DATA_SUFFIXES,
    PARAMS,
    Checkpoint,
    read_manifest,
)
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import CheckpointError
from paddle_mnist.training.run_directory import RUNS, RunDirectory

log = logging.getLogger("paddle_mnist")

CHECKPOINT_WORDS = ("latest", "best")  # stand for a checkpoint of a run


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
        times = [float(checkpoint.info.time) for checkpoint in run.checkpoints.all()]
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


def find_checkpoint(name: str, run: Optional[RunDirectory] = None) -> Checkpoint:
    """Return the checkpoint that a name or a path stands for.

    name: "latest" or "best", which is looked up in `run`; the path of a checkpoint, with any suffix
        or none; or the path of a run directory, for its newest checkpoint.
    run: by default the newest in work/output.
    Raises CheckpointError if there is none.
    """
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
        raise CheckpointError(f"checkpoint is {name!r}; {_expected(CHECKPOINT_WORDS)}")
    manifest = _manifest_path(name)
    if not os.path.exists(manifest):
        raise CheckpointError(_not_a_checkpoint(name, CHECKPOINT_WORDS))
    return read_manifest(manifest)


def find_weights(
    name: Optional[str] = None,
    run: Optional[str] = None,
    packaged: Mapping[str, Callable[[], SavedWeights]] = {},
) -> SavedWeights:
    """Return the weights that a name or a path stands for; every command looks them up here.

    name: the path of a run directory, for the weights with which the run ended, or those of its
        newest checkpoint while it is unfinished (which is logged); "latest" or "best", for that
        checkpoint of `run`; the path of a checkpoint, with any suffix or none, or of a bare
        `.pdparams`, such as the tutorial writes; or one of the names in `packaged`. By default
        `run`.
    run: a run directory; by default the newest in work/output.
    packaged: for each further name, a function that returns its weights.
    Raises CheckpointError if there are none, or they are damaged.
    """
    if name in packaged:
        return packaged[name]()
    if name is None or name in CHECKPOINT_WORDS:
        directory = RunDirectory(run) if run else default_run()
        if name is None:
            return _final_weights(directory)
        return _checkpoint_weights(find_checkpoint(name, directory))
    if name and os.path.isdir(name):
        return _final_weights(RunDirectory(name))
    path = Path(name)
    if path.name and not os.path.exists(_manifest_path(name)):
        if path.suffix != PARAMS or not os.path.exists(path):
            raise CheckpointError(_not_a_checkpoint(name, (*CHECKPOINT_WORDS, *packaged)))
        directory = RunDirectory(path.parent)
        return SavedWeights(path, safe_load(path), directory, manifest=_newest_manifest(directory))
    return _checkpoint_weights(find_checkpoint(name))


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


def _expected(words: Sequence[str]) -> str:
    return f"expected {', '.join(words)}, or a path: of a run, a checkpoint or a .pdparams"


def _missing_from_run(run: RunDirectory) -> str:
    """Return the message for a folder that has neither a run's checkpoints nor its weights."""
    if (run.path / "about.json").exists():
        return (
            f"{run.path}: an exported model, from which no weights are read; expected the run or "
            "checkpoint it was made of; only the commands infer and demo take it, as --model"
        )
    checkpoints = CheckpointStore(run.path).all()
    if checkpoints:
        newest = checkpoints[-1].path.with_suffix("")
        return f"{run.path}: a folder of checkpoints, not a run; expected one of them, as {newest}"
    return f"{run.path}: no checkpoint there; expected a run directory"


def _not_a_checkpoint(name: str, words: Sequence[str]) -> str:
    """Return the message for a path that is no checkpoint, with the nearest name that is one."""
    path = Path(name)
    try:
        path.stat()
        is_data = path.suffix in DATA_SUFFIXES
        reason = f"its manifest {_stem(path)}.json is missing" if is_data else "not a checkpoint"
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

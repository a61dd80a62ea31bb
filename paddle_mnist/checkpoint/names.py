"""Name checkpoints, and find the run, the checkpoint or the weights that a name stands for."""

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
    OPTIMIZER,
    PARAMS,
    Checkpoint,
    DamagedError,
    Manifest,
    read_manifest,
)
from paddle_mnist.checkpoint.run import RUNS, RunDirectory
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.store import SPARE_SUFFIX, CheckpointStore, list_files
from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError, ConfigError, spelled
from paddle_mnist.system.remote import without_credentials
from paddle_mnist.system.scratch import diverted_to_read

log = logging.getLogger("paddle_mnist")

CHECKPOINT_WORDS = ("latest", "best")  # stand for a checkpoint of a run
PACKAGED = paddle_mnist.PACKAGED_WEIGHTS  # words that stand for weights of no run
WEIGHTS_WORDS = (*CHECKPOINT_WORDS, *PACKAGED)
EXPECTED = f"expected {', '.join(WEIGHTS_WORDS)}, or the path of a run, a checkpoint or a .pdparams"
TO_RESUME = f"expected {', '.join(CHECKPOINT_WORDS)}, or the path of a run or a checkpoint"
TO_PREDICT = f"{EXPECTED}, or the folder of an exported model"
# Suffixes of files without weights or of exported models; a file of weights may have any other.
NO_WEIGHTS = {*DATA_SUFFIXES, ".onnx", ".pdiparams", ".pdmodel", ".json", ".yaml", ""} - {PARAMS}

MAX_NAME_BYTES = 180  # of 255; epoch, step, suffixes and those of temporary files follow

Name = Union[str, Path]


def checkpoint_name(model: Any) -> str:
    """Return the prefix of a model's checkpoint names: its `checkpoint_name`, or "model".

    Raises ConfigError as `usable_name` does.
    """
    return usable_name(getattr(model, "checkpoint_name", "model"))


def usable_name(name: object) -> str:
    """Return a prefix of checkpoint names. Raises ConfigError if no file name can begin with it."""
    with contextlib.suppress(UnicodeEncodeError):  # not valid Unicode
        if (
            isinstance(name, str)
            and os.path.basename(name) == name
            and not name.startswith(".")
            and "\0" not in name
            and 0 < len(name.encode()) <= MAX_NAME_BYTES
        ):
            return name
    raise ConfigError(
        f"name is {name!r}; expected the first part of a file name: without any slash, without a "
        f"dot at its beginning, and at most {MAX_NAME_BYTES} bytes long"
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
    manifest: Manifest = field(default_factory=Manifest)


def newest_run() -> Optional[RunDirectory]:
    """Return the most recently trained run in work/output, or None.

    A run is dated by its newest checkpoint, or by its weights if it has no checkpoints.
    """
    trained = []
    for config in Path(diverted_to_read(RUNS)).rglob("config.yaml"):
        run = RunDirectory(config.parent)
        times = [checkpoint.manifest["saved_at"] for checkpoint in run.checkpoints.all()]
        if not times and run.weights.exists():
            times = [run.weights.stat().st_mtime]
        if times:
            trained.append((max(times), str(run.path)))
    return RunDirectory(max(trained)[1]) if trained else None


def exists(name: str) -> bool:
    """Return whether a path exists, or is the stem of a checkpoint that does."""
    return os.path.exists(name) or os.path.exists(_manifest_path(name))


def find_run(name: Optional[Name] = None) -> RunDirectory:
    """Return the run that a name stands for or belongs to, for commands that show runs.

    name: a run directory; one of its checkpoints or files, or the folder of its checkpoints;
        "latest" or "best", for the newest run in work/output, which is also the default. Any other
        path is returned as if it were a run's, for the caller to judge.
    Raises CheckpointError for a word without a run.
    """
    if name is None or str(name) in CHECKPOINT_WORDS:
        return _default_run()
    path = Path(_local(name))
    is_inside = path.name == "checkpoints" if path.is_dir() else exists(str(path))
    above = (path.parent, Path(os.path.normpath(path.parent / os.pardir))) if is_inside else ()
    runs = [run for run in map(RunDirectory, above) if run.config.exists()]
    return runs[0] if runs else RunDirectory(path)


def find_checkpoint(name: Name, run: RunDirectory) -> Checkpoint:
    """Return the checkpoint that a name or a path stands for, in order to resume from it.

    name: "latest" or "best", or the name of a checkpoint, of `run`; the path of a checkpoint, with
        any suffix or none; or the path of another run, for its newest checkpoint.
    Raises CheckpointError if there is none.
    """
    if str(name) in CHECKPOINT_WORDS:
        return _latest_or_best(str(name), run, TO_RESUME)
    path = _path_of(_local(name), run)
    if os.path.isdir(path):
        return _latest_or_best("latest", RunDirectory(path), TO_RESUME)
    return _at(path, TO_RESUME)


def find_weights(
    name: Optional[Name] = None, run: Optional[Name] = None, expected: str = EXPECTED
) -> SavedWeights:
    """Return the weights that a name or a path stands for, for all code that reads weights.

    name: the path of a run directory, for the weights with which the run ended, or those of its
        newest checkpoint while it is unfinished (which is logged); "latest" or "best", for that
        checkpoint of `run`; the path of a checkpoint, with any suffix or none, or its name in
        `run`; the path of a bare `.pdparams`, such as the tutorial writes; or "pretrained", for
        the weights that come with the package. By default `run`.
    run: a run directory; for "latest" and "best", and without a name, by default the newest in
        work/output.
    expected: what else the caller takes, for the error.
    Raises CheckpointError if there are none, or they are damaged; ConfigError if a run is given and
    a path that is not in it.
    """
    if str(name) in PACKAGED:
        if run is not None:
            raise ConfigError(f"{name} and the run {run} are given; expected one of them")
        module, _, function = PACKAGED[str(name)].partition(":")
        packaged: SavedWeights = getattr(importlib.import_module(module), function)()
        return packaged
    directory = None if run is None else RunDirectory(_local(run))
    if name is None:
        return _final_weights(directory or _default_run(), expected)
    if str(name) in CHECKPOINT_WORDS:
        return _of_checkpoint(_latest_or_best(str(name), directory or _default_run(), expected))
    path = _path_of(_local(name), directory)
    if directory and exists(path):
        _require_inside(directory, path)
    if os.path.isdir(path):
        return _final_weights(RunDirectory(path), expected)
    file = Path(path)
    if _is_of_exported(file):
        raise CheckpointError(
            f"{path}: a file of an exported model, from which no weights are read; {expected}"
        )
    is_bare = file.suffix not in NO_WEIGHTS and not os.path.exists(_manifest_path(path))
    if is_bare and os.path.isfile(path):
        return _of_no_checkpoint(file, RunDirectory(file.parent))
    return _of_checkpoint(_at(path, expected))


def _local(name: Name) -> str:
    """Return the path of a run or of something in it, with `~` expanded.

    Raises CheckpointError for weights of no run, and for the URL of a mirror, which only training
    reads.
    """
    if str(name) in PACKAGED:
        raise CheckpointError(
            f"{name}: holds only weights; expected a run, or a checkpoint of one; {WEIGHTS_ALONE}"
        )
    if "://" in str(name):
        url = without_credentials(str(name))
        raise CheckpointError(
            f"{url}: is a URL; expected a path on this machine; to bring a run back from its "
            "mirror, start its training again with this mirror, which repeats no step that is "
            "saved there; to list or verify a mirror, give its folder, or download it first"
        )
    return diverted_to_read(os.path.expanduser(name))


def find_pair(name: Name) -> Optional[Path]:
    """Return the stem of a `.pdparams` and a `.pdopt` that no manifest lists, at a path.

    `paddle.save` writes them in many programs, as `net_epoch0`. None unless both are there.
    """
    path = Path(diverted_to_read(os.path.expanduser(name)))
    stem = path.parent / (path.stem if path.suffix in DATA_SUFFIXES else path.name)
    is_pair = all(os.path.isfile(f"{stem}{suffix}") for suffix in (PARAMS, OPTIMIZER))
    return stem if is_pair and not os.path.exists(f"{stem}.json") else None


def newest_pair(folder: Path) -> Optional[Path]:
    """Return the stem of the pair in a folder that was written last; see `find_pair`."""
    pairs = filter(None, map(find_pair, list_files(folder, f"*{OPTIMIZER}")))
    return max(pairs, key=lambda stem: os.path.getmtime(f"{stem}{OPTIMIZER}"), default=None)


def _default_run() -> RunDirectory:
    """Return the newest run. Raises CheckpointError without one."""
    run = newest_run()
    if not run:
        raise CheckpointError(
            f"{RUNS}: no run found; train one, or give the path of a run elsewhere"
        )
    log.info("newest run: %s", run.path)
    return run


def _path_of(name: str, run: Optional[RunDirectory]) -> str:
    """Return the path that a name stands for: of a checkpoint or a file of `run`, or itself."""
    inside = [str(folder / name) for folder in (run.checkpoints.folder, run.path)] if run else []
    for path in (*inside, name):
        if name and exists(path):
            return path
    return inside[0] if inside and not os.path.dirname(name) else name


def _require_inside(run: RunDirectory, name: str) -> None:
    """Raise ConfigError for a path that does not belong to the run."""
    path, top = Path(name).resolve(), run.path.resolve()
    if path != top and path.parent not in (top, run.checkpoints.folder.resolve()):
        raise ConfigError(
            f"{name} does not belong to the run {run.path}; give only one of the two, or a "
            f"checkpoint of that run: {', '.join(CHECKPOINT_WORDS)}, or a name of its files"
        )


def _latest_or_best(word: str, run: RunDirectory, expected: str) -> Checkpoint:
    store = run.checkpoints
    checkpoint = store.newest() if word == "latest" else store.best()
    if not checkpoint:
        raise _nothing_at(str(run.path), expected)
    return checkpoint


def _at(path: str, expected: str) -> Checkpoint:
    """Return the checkpoint at a path, with any suffix or none."""
    manifest = _manifest_path(path)
    if not os.path.exists(manifest):
        raise _nothing_at(path, expected)
    return read_manifest(manifest)


def _final_weights(run: RunDirectory, expected: str = EXPECTED) -> SavedWeights:
    """Return the weights with which a run ended, or its newest ones while it is unfinished.

    They are read from a checkpoint, whose checksum is known, or from the file of the final weights
    if that checkpoint is missing or damaged.
    """
    # Training that continues a finished run deletes its result first.
    final_name = run.read_result().get("checkpoint")
    if not final_name:
        newest = run.checkpoints.newest()
        if newest:
            log.info("%s is not finished; its newest checkpoint is %s", run.path, newest.name)
            return _of_checkpoint(newest)
    for checkpoint in run.checkpoints.all():
        # The end of an epoch has another name if training was interrupted or killed right there.
        if checkpoint.name in [f"{final_name}{end}" for end in ("", BREAKPOINT, SPARE_SUFFIX)]:
            try:
                return _of_checkpoint(checkpoint)
            except CheckpointError as error:
                log.warning("not used: %s", error)
    if not run.weights.exists():
        raise _nothing_at(str(run.path), expected)
    return _of_no_checkpoint(run.weights, run)


def _of_checkpoint(checkpoint: Checkpoint) -> SavedWeights:
    return SavedWeights(
        path=checkpoint.path.with_suffix(PARAMS),
        values=checkpoint.load(PARAMS),
        run=RunDirectory(checkpoint.path.parent.parent),
        checkpoint=checkpoint,
        manifest=checkpoint.manifest,
    )


def _of_no_checkpoint(file: Path, run: RunDirectory) -> SavedWeights:
    checkpoints = run.checkpoints.all()
    manifest = checkpoints[-1].manifest if checkpoints else Manifest()
    return SavedWeights(file, _load_bare(file, run), run, manifest=manifest)


def final_values(run: RunDirectory) -> Mapping[str, Any]:
    """Return the weights in the final file of a finished run, verified. Raises CheckpointError."""
    if run.read_result().get("weights_file"):
        return _load_bare(run.weights, run)
    return _final_weights(run).values  # version 1.0 recorded no SHA-256: from the checkpoint


def _load_bare(file: Path, run: RunDirectory) -> dict[str, Any]:
    """Load a file that no manifest lists; verify it if the result of the run lists it."""
    result = run.read_result()
    entry = result.get("weights_file")
    if not entry or result.get("weights") != file.name:
        return safe_load(file)
    listed = Checkpoint(file.with_suffix(".json"), {"files": {file.name: entry}})
    try:
        return listed.load(file.suffix)
    except DamagedError as error:
        raise CheckpointError(
            f"{file}: damaged: its SHA-256 differs from that in {run.result}; move it away, and "
            "run the same training again, which rewrites it from the checkpoint"
        ) from error


def _stem(path: Path) -> str:
    """Return the name of a checkpoint, given the path of any of its files."""
    return path.stem if path.suffix in (*DATA_SUFFIXES, ".json") else path.name


def _is_of_exported(path: Path) -> bool:
    """Return whether `paddle.jit.save` wrote the file at a path, or the files with this stem."""
    stem = path.stem if path.suffix in (".json", ".pdiparams", ".pdmodel") else path.name
    is_data = path.suffix in DATA_SUFFIXES
    return not is_data and os.path.exists(path.parent / f"{stem}.pdiparams")


def _manifest_path(name: str) -> Path:
    return Path(name).parent / f"{_stem(Path(name))}.json"


def _nothing_at(name: str, expected: str) -> CheckpointError:
    """Return the error for a path without weights; it suggests the nearest name with some."""
    path = Path(name)
    known = {word: word for word in WEIGHTS_WORDS if word in expected}
    for pattern in ("*.json", f"*{PARAMS}"):
        known.update({other.stem: str(other) for other in path.parent.glob(pattern)})
    for config in path.parent.glob("*/config.yaml"):
        known[config.parent.name] = str(config.parent)
    near = [known[other] for other in difflib.get_close_matches(_stem(path), known, n=1)]
    hint = f"; did you mean {near[0]!r}?" if near and Path(near[0]) != path else ""
    return CheckpointError(f"{name}: {_why_nothing(path)}; {expected}{hint}")


def _why_nothing(path: Path) -> str:
    """Return the reason why no weights can be read at a path."""
    try:
        path.stat()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    if not path.is_dir():
        is_data = path.suffix in DATA_SUFFIXES
        return f"its manifest {_stem(path)}.json is missing" if is_data else "not a checkpoint"
    if (path / "about.json").exists():
        return "an exported model, from which no weights are read"
    if RunDirectory(path).checkpoints.all():
        return "no evaluation has chosen a best checkpoint"
    if checkpoints := CheckpointStore(path).all():
        newest = checkpoints[-1].path.with_suffix("")
        return f"a folder of checkpoints, not a run; name one, as {newest}"
    if pair := newest_pair(path):
        return (
            f"no checkpoint there, but a pair of paddle.save: give {pair} for its weights, "
            f"or {spelled('resume', str(pair))} to continue its training"
        )
    return "no checkpoint there"

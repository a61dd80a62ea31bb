"""Resume or start a run: find a checkpoint, compare it, and load it.

`resume_or_start` reads from top to bottom; the functions that it calls follow.
"""

import logging
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Optional

from paddle_mnist.checkpoint.contents import load_weights_and_average, saved_optimizer
from paddle_mnist.checkpoint.manifest import (
    EXTRA,
    OPTIMIZER,
    PARAMS,
    Checkpoint,
    Manifest,
    UnreadableError,
)
from paddle_mnist.checkpoint.mirror import UnreachableError
from paddle_mnist.checkpoint.names import final_values, find_checkpoint, find_pair, newest_pair
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.data.seeding import SEEDING
from paddle_mnist.errors import CheckpointError, ConfigError, spelled
from paddle_mnist.hidden_state.extra_state import ExtraState, SavedExtra
from paddle_mnist.hidden_state.object_graph import ObjectPath
from paddle_mnist.hidden_state.optimizer_state import load_optimizer
from paddle_mnist.hidden_state.plain_data import digest_of
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.training.arguments import StartFrom
from paddle_mnist.training.callbacks import FitResult, Training
from paddle_mnist.training.compare import (
    check_config_unchanged,
    has_other_schedule,
    has_other_steps,
)
from paddle_mnist.training.initialize import find_start, load_what_fits, pair_explained, read_pair
from paddle_mnist.training.results import finished_result

log = logging.getLogger("paddle_mnist")


def resume_or_start(training: Training) -> Optional[FitResult]:
    """Restore a run from its newest checkpoint, or prepare the start of a new run.

    Callbacks are called before a checkpoint is loaded, so that weights that they set, such as
    pretrained ones, do not replace trained ones.

    Returns None, or if the run is finished, its result, and loads its final weights into the model.
    Raises in every process: ConfigError, with a diff, if the configuration or the data has changed
    in a way that affects the result; CheckpointError if there are checkpoints but none is intact,
    or if it does not fit; DataError if processes differ.
    """
    world, run, start = training.world, training.run, training.arguments.start
    # Loaded: the other processes may not share this disk. The mirror has its own time limit.
    checkpoint = world.run_on_main(lambda: _find_checkpoint(training), has_time_limit=True)
    if run.mirror:
        run.mirror.request_upload()  # it may lack what this run has
    if checkpoint:
        training.resumed_from, training.state = checkpoint, checkpoint.state
        training.origin = checkpoint.manifest
        if result := world.run_on_main(lambda: finished_result(training)):
            _load_result(training, checkpoint, result)
            return result
    elif start:
        training.origin = load_start(training, start)
    for callback in training.callbacks:
        callback.before_training(training)
    training.extra.begin(saves=start is not None and not checkpoint)
    if checkpoint:
        _require_same_steps(training, checkpoint)
        moves = has_other_schedule(training, checkpoint)
        with pair_explained(training, checkpoint):
            load_training(training, checkpoint, schedule=not moves, is_own=not checkpoint.is_pair)
        if moves:
            training.schedule.move_to(training.state.step, training.state.epoch)
        training.resumed_from = replace(checkpoint, loaded={})  # frees the memory
        log.info("resuming after step %d, from %s", checkpoint.step, checkpoint.label)
    else:
        training.average.load(training.model.state_dict())
    if checkpoint and checkpoint.is_pair:  # of no run: this one is new, and is rehearsed
        training.resumed_from, training.origin = None, Manifest()
    _require_same_state(training)
    world.run_on_main(lambda: _begin_files(training))
    return None


def load_training(
    training: Training,
    checkpoint: Checkpoint,
    schedule: bool = True,
    is_own: bool = True,
    left_out: Collection[ObjectPath] = (),
) -> None:
    """Load a checkpoint into everything that training changes.

    schedule: whether to load the learning-rate schedule, too; otherwise it stays as it is.
    is_own: whether the checkpoint belongs to the same run; from another run's extra state, only the
        part that belongs to the optimizer is loaded. left_out: values of the extra state to skip.

    Raises CheckpointError unless everything matches exactly. Do not use the objects after that,
    since some may have been loaded.
    """
    optimizer, extra = training.optimizer, training.extra
    path = checkpoint.path.with_suffix(OPTIMIZER)
    # Optimizers first, since this changes the weights.
    load_optimizer(optimizer, saved_optimizer(checkpoint), extra.parameters, path, not schedule)
    saved = read_extra(checkpoint, extra)
    for other, contents, origin, keeps in extra.saved_optimizers(saved, schedule, is_own):
        load_optimizer(other, contents, extra.parameters, origin, keeps_schedule=keeps)
    load_weights_and_average(checkpoint, training.model, training.average)
    extra.load_values(saved.without(lambda path: path in left_out), schedule, is_own)


def read_extra(checkpoint: Checkpoint, extra: ExtraState) -> SavedExtra:
    """Return the extra state in a checkpoint. Raises CheckpointError."""
    packed = checkpoint.load(EXTRA) if checkpoint.has_file(EXTRA) else {}
    return extra.unpacked(packed, checkpoint.path.with_suffix(EXTRA))


def _find_checkpoint(training: Training) -> Optional[Checkpoint]:
    """Return the checkpoint from which a run resumes, verified and loaded; None to start at step 0.

    Raises ConfigError if its configuration or its data are not those of the run.
    """
    run, resume = training.run, training.arguments.resume
    run.checkpoints.remove_temporary_files()
    checkpoint = newest = _fetch_newest(training) if run.mirror else run.checkpoints.load_newest()
    if not newest:
        _check_nothing_is_lost(run)
        if resume in ("auto", "off") and (pair := newest_pair(run.path)):
            log.warning(
                "%s holds %s%s and %s, which no manifest lists, so they are not used; to continue "
                "from them, start with %s and %s",
                run.path,
                pair.name,
                PARAMS,
                OPTIMIZER,
                spelled("resume", str(pair)),
                run.elsewhere(),
            )
    if resume == "off" and newest:
        raise ConfigError(
            f"resume is off, but {run.path} holds {newest.name}; {' or '.join(run.to_start_over())}"
        )
    if resume not in ("auto", "off"):
        if newest:  # the same command, repeated, resumes its own run
            _require_not_older(run, newest, resume)
        elif pair := find_pair(resume):
            checkpoint = read_pair(training, pair)
        else:
            checkpoint = find_checkpoint(resume, run).load_all()
            if training.arguments.start_epoch is not None:
                raise ConfigError(
                    f"start_epoch is given, but the manifest of {checkpoint.path} names its epoch; "
                    "expected a .pdparams and .pdopt without a manifest"
                )
    if checkpoint:
        changed_arrays = training.extra.changed_arrays(read_extra(checkpoint, training.extra))
        check_config_unchanged(training, checkpoint, changed_arrays)
    return checkpoint


def _fetch_newest(training: Training) -> Optional[Checkpoint]:
    """Return the newest checkpoint, loaded, of the run or of its mirror.

    Raises ConfigError if the mirror holds another run or another configuration; CheckpointError if
    the mirror cannot be reached and the run is not on this machine, or if nothing in the mirror is
    intact.
    """
    run, mirror = training.run, training.run.mirror
    assert mirror  # otherwise the caller only asks the run
    local = None
    try:
        local = run.checkpoints.load_newest()
    except UnreadableError:  # it may be newer than the mirror
        raise
    except CheckpointError as error:  # there may be a good one in the mirror
        log.warning("%s", error)
    try:
        newest = next(reversed(mirror.list_copies(is_needed=local is None)), None)
    except UnreachableError as error:
        if not local:
            raise CheckpointError(
                f"{error}, since the run is not on this machine and may be in the mirror; or train "
                "without the mirror"
            ) from None
        log.warning("mirror: %s; resuming from this machine's checkpoints", error)
        return local
    if newest:
        if training.arguments.resume == "off" and not local:
            raise ConfigError(
                f"resume is off, but {mirror.url} holds {newest.name}; choose another mirror to "
                "start over"
            )
        check_config_unchanged(training, newest, where=mirror.url)
        if local and local.manifest.get("run_id") != newest.manifest.get("run_id"):
            raise ConfigError(
                f"{mirror.url} holds run {newest.manifest.get('run_id')}, but {run.path} is run "
                f"{local.manifest.get('run_id')}; choose another mirror"
            )
    if local and not (newest and newest.sort_key > local.sort_key):
        return local
    mirror.pull(newer_than=local)
    return run.checkpoints.load_newest()


def _require_not_older(run: RunDirectory, newest: Checkpoint, resume: str) -> None:
    """Raise ConfigError if `resume` names an older checkpoint of the run than its newest."""
    if os.path.isdir(os.path.expanduser(resume)) or find_pair(resume):
        return
    try:
        requested = find_checkpoint(resume, run)
    except CheckpointError as error:  # perhaps another run's, which is no longer needed
        log.info("%s; the run resumes from its own checkpoint", error)
        return
    if run.owns(requested) and requested.step < newest.step:
        raise ConfigError(
            f"resume names {requested.path}, step {requested.step}, but {run.path} holds "
            f"{newest.name}, step {newest.step}; choose {run.elsewhere()}"
        )


def _check_nothing_is_lost(run: RunDirectory) -> None:
    """Raise CheckpointError if the run has lost its checkpoints."""
    folder = run.checkpoints.folder
    if run.config.exists() and folder.is_symlink() and not folder.exists():
        raise CheckpointError(
            f"{folder}: links to {os.readlink(folder)}, which is not there; mount its disk, or "
            f"use {spelled('fresh')} to start over"
        )
    orphans = run.checkpoints.orphaned_files()
    if run.result.exists() or len({path.stem for path in orphans if path.suffix == PARAMS}) > 1:
        raise CheckpointError(
            f"{run.checkpoints.folder}: a run was trained here, but its manifests are missing; put "
            f"its checkpoints back, or use {spelled('fresh')} to start over"
        )
    for path in orphans:
        log.warning(
            "%s: no manifest lists it, so it was never committed; starting from step 0", path
        )


def _load_result(training: Training, checkpoint: Checkpoint, result: FitResult) -> None:
    """Restore the caller's model and other objects to the end of the run."""
    model, run, extra = training.model, training.run, training.extra
    training.world.run_on_main(lambda: load_weights(model, final_values(run), result.weights))
    training.world.broadcast(model.state_dict().values())
    try:
        saved = read_extra(checkpoint, extra).without(lambda path: path[0][1] == "callbacks")
        extra.load_values(saved, is_complete=False)
    except CheckpointError as error:  # the program has changed, but the result is still valid
        log.warning("could not restore objects other than the model: %s", error)


def load_start(training: Training, start: StartFrom) -> Manifest:
    """Load the weights of another run; return its manifest, {} if it has none.

    The main process reads and broadcasts them. Raises CheckpointError if they are missing or do not
    fit.
    """
    weights = training.world.run_on_main(lambda: find_start(start))
    if weights.checkpoint and not start.weights_only:
        # Without the learning rate: the schedule starts from its beginning.
        load_training(training, weights.checkpoint, schedule=False, is_own=False)
        stem = weights.checkpoint.path.with_suffix("")
        log.info("starting from the weights and optimizer of %s", stem)
        return weights.manifest
    if start.partial:
        load_what_fits(training.model, weights)
    else:
        load_weights(training.model, weights.values, weights.path)
    log.info("starting from the weights in %s", weights.path)
    return weights.manifest


def _require_same_steps(training: Training, checkpoint: Checkpoint) -> None:
    """Raise ConfigError if an epoch has another number of steps than in the checkpoint's run."""
    if has_other_steps(training, checkpoint):
        state = checkpoint.state
        raise ConfigError(
            f"{checkpoint.path}: step {state.step} is number {state.position} of epoch "
            f"{state.epoch + 1}, but an epoch now has {training.loader.steps_per_epoch} steps; "
            "expected the same number as in the run: the batch size and the number of samples "
            f"cannot be overridden; choose {training.run.elsewhere()}"
        )


def _require_same_state(training: Training) -> None:
    """Raise DataError if several processes do not start from the same state."""
    if training.world.size == 1:
        return
    digest = digest_of(
        [
            training.state.as_dict(),
            training.model.state_dict(),
            dict(sorted(training.optimizer.state_dict().items())),
            training.average.weights(training.model),
            training.extra.digests(),
        ]
    )
    what = "the weights, the optimizer's state or the position in the data"
    training.world.require_same(digest, what)
    log.info("%d processes start from the same state: SHA-256 %s", training.world.size, digest)


def _begin_files(training: Training) -> None:
    """Cut `metrics.jsonl` at the checkpoint, and write `config.yaml`."""
    run, checkpoint = training.run, training.resumed_from
    run.start_history(checkpoint)
    run.write_config(training.config)
    if checkpoint and checkpoint.manifest.get("seeding") != SEEDING:
        log.warning(
            "the run began with a version that seeds the random numbers of samples differently; "
            "random augmentation, for example, draws other numbers from here on"
        )

"""Find the checkpoint from which a run resumes, here or in its mirror, and load it."""

import logging
import os
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Optional

from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, Checkpoint, UnreadableError
from paddle_mnist.checkpoint.mirror import UnreachableError
from paddle_mnist.checkpoint.names import find_checkpoint, find_pair, newest_pair
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.data.seeding import SEEDING
from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError, ConfigError, listed, spelled
from paddle_mnist.hidden_state.optimizer_state import structured_state
from paddle_mnist.nn.state_dict import NAME_TABLE, compare_entries, without_name_table
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.compare import (
    check_config_unchanged,
    has_other_schedule,
    has_other_steps,
)

log = logging.getLogger("paddle_mnist")


def find_resume_point(training: Training) -> None:
    """Set the checkpoint from which the run resumes, and its state, if there is one.

    Raises in every process: ConfigError, with a diff, if the configuration or the data has changed
    such that the result would, too; CheckpointError if there are checkpoints but none is intact.
    """

    def find() -> Optional[Checkpoint]:
        store = training.run.checkpoints
        store.remove_temporary_files()
        newest = _fetch_newest(training) if training.run.mirror else store.load_newest()
        return _resume_point(training, newest)

    # Loaded: the other processes may not share this disk.
    checkpoint = training.world.run_on_main(find, has_time_limit=True)  # that of the mirror
    if checkpoint:
        training.resumed_from, training.state = checkpoint, checkpoint.state


def _fetch_newest(training: Training) -> Optional[Checkpoint]:
    """Return the newest checkpoint of the run, loaded, or of its mirror if that is newer.

    Raises ConfigError if the mirror holds another run, or one of another configuration;
    CheckpointError if the mirror cannot be reached and the run is not on this machine, or if
    nothing in the mirror is intact.
    """
    run, mirror = training.run, training.run.mirror
    assert mirror  # else the caller asks the run alone
    local = _newest_on_disk(run)
    try:
        newest = next(reversed(mirror.list_copies(is_needed=local is None)), None)
    except UnreachableError as error:
        if not local:
            raise CheckpointError(
                f"{error}, since the run is not on this machine and may be there, or train without "
                "the mirror"
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


def _newest_on_disk(run: RunDirectory) -> Optional[Checkpoint]:
    """Return the newest checkpoint on this machine that is intact, loaded, if there is any."""
    try:
        return run.checkpoints.load_newest()
    except UnreadableError:  # it may be newer than the mirror
        raise
    except CheckpointError as error:  # there may be a good one in the mirror
        log.warning("%s", error)
        return None


def _resume_point(training: Training, newest: Optional[Checkpoint]) -> Optional[Checkpoint]:
    """Return the checkpoint from which a run resumes, loaded; None to start at step 0.

    newest: the newest checkpoint of the run directory, loaded.
    """
    run, resume = training.run, training.arguments.resume
    checkpoint = newest
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
            checkpoint = _read_pair(training, pair)
        else:
            checkpoint = find_checkpoint(resume, run).load_all()
            if training.arguments.start_epoch is not None:
                raise ConfigError(
                    f"start_epoch is given, but the manifest of {checkpoint.path} says after which "
                    "epoch it was saved; expected a .pdparams and .pdopt without a manifest"
                )
    if checkpoint:
        where = None if run.owns(checkpoint) else str(checkpoint.label)
        check_config_unchanged(training, checkpoint, where)
    return checkpoint


def _read_pair(training: Training, stem: Path) -> Checkpoint:
    """Return a pair of files that `paddle.save` wrote as a checkpoint after an epoch, loaded.

    Raises ConfigError for an epoch that is unknown or beyond the end, CheckpointError for files
    that do not fit the net.
    """
    epochs, steps = training.arguments.start_epoch, training.loader.steps_per_epoch
    if epochs is None and (number := re.search(r"epoch_?(\d{1,9})$", stem.name)):
        epochs = int(number[1]) + 1
    if epochs is None or steps is None:
        what = "after which epoch its files were saved; expected start_epoch, such as 1"
        if epochs is not None:
            what = "how many steps an epoch has; expected steps_per_epoch (of Loading)"
        raise ConfigError(f"{stem}: no manifest says {what}")
    params, optimizer = safe_load(f"{stem}{PARAMS}"), safe_load(f"{stem}{OPTIMIZER}")
    names = params.get(NAME_TABLE, {})
    differing = [*chain(*compare_entries(without_name_table(params), training.model.state_dict()))]
    are_names = isinstance(names, dict) and all(isinstance(name, str) for name in names.values())
    if not (names and are_names):
        differing.append(NAME_TABLE)
    if differing:
        raise CheckpointError(
            f"{stem}{PARAMS}: not the weights of this net: {listed(differing)} differ; "
            "expected what paddle.save wrote of its state_dict()"
        )
    entries = structured_state(optimizer, {name: key for key, name in names.items()})
    log.warning(
        "%s: no manifest lists these files, so nothing says whether they are whole, of one moment "
        "and of the same data and settings; taken as the end of epoch %d, with the optimizer and "
        "the schedule of %s; the order of the data and all random numbers are those of this run",
        stem,
        epochs,
        OPTIMIZER,
    )
    return Checkpoint(
        Path(f"{stem}.json"),
        {
            "files": {},
            "state": TrainState(epoch=epochs, step=epochs * steps).as_dict(),
            "names": names,
            "optimizer": type(training.optimizer).__name__,
            "optimizer_parameters": [
                name for name in names if any(key.startswith(f"{name} ") for key in entries)
            ],
            "schedule": {},
            "config": dict(training.compared),
            "seeding": SEEDING,
            "metrics_lines": 0,
        },
        {PARAMS: params, OPTIMIZER: optimizer},
    )


def _require_not_older(run: RunDirectory, newest: Checkpoint, resume: str) -> None:
    """Raise ConfigError if `resume` names an older checkpoint of the run than its newest."""
    if os.path.isdir(os.path.expanduser(resume)) or find_pair(resume):
        return
    try:
        requested = find_checkpoint(resume, run)
    except CheckpointError as error:  # perhaps another run's, which is no longer needed
        log.info("%s; the run resumes from a checkpoint of its own", error)
        return
    if run.owns(requested) and requested.step < newest.step:
        raise ConfigError(
            f"resume names {requested.path}, step {requested.step}, but {run.path} holds "
            f"{newest.name}, step {newest.step}; choose {run.elsewhere()}"
        )


def _check_nothing_is_lost(run: RunDirectory) -> None:
    """Raise CheckpointError if the run has no checkpoint, but must have had one."""
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


def restore(training: Training, checkpoint: Checkpoint) -> None:
    """Load a checkpoint into everything that training changes.

    A schedule that an override has changed, such as a cosine over all steps by more epochs, is
    moved to the checkpoint's step, unless it follows a metric; any other continues as it was saved.

    Raises CheckpointError if it does not fit, ConfigError if an epoch has another length now.
    """
    state, schedule = checkpoint.state, training.schedule
    if has_other_steps(training, checkpoint):
        raise ConfigError(
            f"{checkpoint.path}: step {state.step} is number {state.position} of epoch "
            f"{state.epoch + 1}, but an epoch now has {training.loader.steps_per_epoch} steps; "
            "expected the same number as in the run: the batch size and the number of samples "
            "cannot be overridden; "
            f"choose {training.run.elsewhere()}"
        )
    moves = (
        bool(training.arguments.override)
        and not schedule.needs_metric
        and has_other_schedule(training, checkpoint)
    )
    try:
        load_checkpoint(
            checkpoint,
            training.model,
            training.optimizer,
            training.average,
            schedule=not moves,
            extra=training.extra,
            is_own=not checkpoint.is_pair,
        )
    except CheckpointError as error:
        if not checkpoint.is_pair:
            raise
        first = str(error).splitlines()[1:2] or [str(error)]
        raise CheckpointError(
            f"{checkpoint.path.with_suffix(OPTIMIZER)}: not of this net's "
            f"{type(training.optimizer).__name__} and schedule: {' '.join(first[0].split())}; "
            f"expected the optimizer and schedule of that training, or {WEIGHTS_ALONE}"
        ) from error
    if moves:
        schedule.move_to(state.step, state.epoch)
    training.resumed_from = replace(checkpoint, loaded={})  # frees the memory
    log.info("resuming after step %d, from %s", state.step, checkpoint.label)
    if checkpoint.manifest.get("seeding") != SEEDING:
        log.warning(
            "the run began with a version that seeds random numbers of samples differently; if "
            "samples draw any, such as random augmentation, they draw other numbers from here on"
        )

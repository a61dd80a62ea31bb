"""Decide where a training resumes, and refuse one whose configuration has changed."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from paddle_mnist.checkpoint.manifest import PARAMS, Checkpoint
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.training.run_directory import RunDirectory
from paddle_mnist.training.saved_weights import find_checkpoint

log = logging.getLogger("paddle_mnist")

# How a training was started: its own affair, so a run that continues it elsewhere may differ.
START_FIELDS = ("init_from", "incremental_from")
# The fields that name data, and the entries of a manifest that hold the hash of their contents.
DATA_HASHES = {"data": "data_hash", "replay_data": "replay_hash"}


@dataclass(frozen=True)
class ResumeRequest:
    """What a training asks of the run directory, and what must not have changed since.

    resume: "auto", "off" (start at step 0), or the path of a checkpoint or run.
    epochs: how many the training is to have in all.
    config: the fields that decide the result, by name. hashes: SHA-256 of the data, by the entries
        of a manifest, `data_hash` and `replay_hash`.
    override: names of fields that may differ from the run's.
    defaults: values for fields that checkpoints of earlier versions do not have.
    """

    resume: str
    epochs: int
    config: Mapping[str, Any]
    hashes: Mapping[str, Optional[str]]
    override: tuple[str, ...] = ()
    defaults: Optional[Mapping[str, Any]] = None


def find_resume_point(run: RunDirectory, request: ResumeRequest) -> Optional[Checkpoint]:
    """Return the checkpoint from which a training resumes, or None to start at step 0.

    Raises ConfigError, with a diff, if the configuration or the data differs from the run's in
    what decides the result; CheckpointError if there are checkpoints but none is intact.
    """
    run.checkpoints.remove_temporary_files()
    newest = run.checkpoints.newest(quarantine_damaged=True)
    if not newest:
        _check_nothing_is_lost(run)
    checkpoint = newest
    if request.resume == "off" and newest:
        raise ConfigError(
            f"resume is off, but {run.path} holds {newest.name}; start over with --fresh, "
            "which moves it aside, or choose another --output"
        )
    if request.resume not in ("auto", "off"):
        requested = find_checkpoint(request.resume, run)
        requested.verify()
        if newest and run.owns(requested) and requested.step < newest.step:
            raise ConfigError(
                f"resume names {requested.path}, step {requested.step}, but {run.path} holds "
                f"{newest.name}, step {newest.step}; choose another --output"
            )
        checkpoint = newest or requested  # the same command, repeated, resumes its own run
    if checkpoint:
        check_config_unchanged(checkpoint, request, run)
    return checkpoint


def _check_nothing_is_lost(run: RunDirectory) -> None:
    """Raise CheckpointError if a run without a checkpoint must have had one."""
    orphans = run.checkpoints.orphaned_files()
    if run.result.exists() or len({path.stem for path in orphans if path.suffix == PARAMS}) > 1:
        raise CheckpointError(
            f"{run.checkpoints.folder}: a run was trained here, but no manifest is there; put its "
            "checkpoints back, or start over with --fresh"
        )
    for path in orphans:
        log.warning("%s: no manifest names it, so it was never committed; starting anew", path)


def check_config_unchanged(
    checkpoint: Checkpoint, request: ResumeRequest, run: RunDirectory
) -> None:
    """Raise ConfigError, with a diff, unless the training goes on as the checkpoint's began."""
    if checkpoint.manifest.get("config") is None:
        raise CheckpointError(
            f"{checkpoint.path}: holds no configuration, so it is not a run's; start from its "
            "weights in your own code, as the tutorial does"
        )
    changes = config_changes(checkpoint.manifest, request, is_own=run.owns(checkpoint))
    if changes:
        lines = [f"  {name}: {old!r} in the run, {new!r} now" for name, old, new in changes]
        raise ConfigError(
            f"{run.path} holds a run with other values:\n"
            + "\n".join(lines)
            + "\nStart over with --fresh (moves it aside), choose another --output, or change the "
            f"run on purpose with --override {','.join(name for name, _, _ in changes)}"
        )
    begun = checkpoint.state.epoch + (checkpoint.state.position > 0)
    if request.epochs < begun:
        raise ConfigError(
            f"epochs is {request.epochs}, but {run.path} has {begun} begun or done; expected at "
            "least as many"
        )


def config_changes(
    manifest: Mapping[str, Any], request: ResumeRequest, is_own: bool
) -> list[tuple[str, Any, Any]]:
    """Return (field, value in the run, value now) for each difference that is not overridden.

    is_own: whether the checkpoint is in the directory of the run that resumes.
    """
    stored = {**(request.defaults or {}), **manifest["config"], **_data_contents(manifest)}
    current = {**request.config, **_data_contents(request.hashes)}
    allowed = request.override if is_own else (*request.override, *START_FIELDS)
    return [
        (name, stored.get(name), value)
        for name, value in current.items()
        if stored.get(name) != value and name not in allowed
    ]


def _data_contents(hashes: Mapping[str, Any]) -> dict[str, Optional[str]]:
    """Return short hashes of the data by field: their contents count, not where they are."""
    return {name: (hashes.get(key) or "")[:12] or None for name, key in DATA_HASHES.items()}

"""Fetch at the start what the mirror has and the run directory lacks."""

import logging
from typing import Optional

from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.checkpoint.mirror import UnreachableError
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.resume import check_config_unchanged

log = logging.getLogger("paddle_mnist")


def fetch_newest(training: Training) -> Optional[Checkpoint]:
    """Return the newest checkpoint of the run, loaded, or of its mirror if that is newer.

    Raises ConfigError if the mirror holds another run, or one of another configuration;
    CheckpointError if the mirror cannot be reached and the run is not on this machine, or if
    nothing in the mirror is intact.
    """
    run, mirror = training.run, training.run.mirror
    assert mirror  # else the caller asks the run alone
    local = _newest_on_disk(run)
    try:
        newest = next(reversed(mirror.look(is_needed=local is None)), None)
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
    except CheckpointError as error:  # there may be a good one in the mirror
        log.warning("%s", error)
        return None

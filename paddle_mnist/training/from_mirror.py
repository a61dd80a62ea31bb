"""At the start of a training: what its mirror has and its run directory lacks."""

import logging
from typing import Optional

from paddle_mnist.checkpoint.manifest import CHECKSUM, Checkpoint
from paddle_mnist.checkpoint.mirror import Contents, UnreachableError
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.resume import check_config_unchanged

log = logging.getLogger("paddle_mnist")


def fetch_newest(training: Training) -> Optional[Checkpoint]:
    """Return the newest checkpoint of the run, loaded, or of its mirror if that is newer.

    Raises ConfigError if the mirror holds another run, or one of another configuration, or if both
    went on; CheckpointError if the mirror cannot be reached and the run is not on this machine, or
    if nothing in the mirror is intact.
    """
    run, mirror, arguments = training.run, training.run.mirror, training.arguments
    assert mirror  # else the caller asks the run alone
    local = _newest_on_disk(run)
    try:
        contents = mirror.look(is_needed=local is None)
    except UnreachableError as error:
        if not local:
            raise CheckpointError(
                f"{error}, since the run is not on this machine and may be there, or train without "
                "the mirror"
            ) from None
        log.warning("mirror: %s; resuming from this machine's checkpoints", error)
        return local
    if contents.checkpoints:
        newest = contents.checkpoints[-1]
        if arguments.resume == "off" and not local:
            raise ConfigError(
                f"resume is off, but {mirror.url} holds {newest.name}; set fresh to start over, "
                "which moves it aside, or choose another mirror"
            )
        check_config_unchanged(training, newest, where=mirror.url)
        if local and not _is_behind(run, local, mirror.url, contents):
            return local
        mirror.pull(local, arguments.ends_with_best)
    elif local:
        return local
    elif contents.damaged:
        mirror.pull(None, arguments.ends_with_best)
    found = run.checkpoints.load_newest()
    if not found and (contents.checkpoints or contents.damaged):
        raise CheckpointError(
            f"{mirror.url}: no valid checkpoint there, and none in {run.path}; put a good one "
            "back, or set fresh to start over"
        )
    return found


def _newest_on_disk(run: RunDirectory) -> Optional[Checkpoint]:
    """Return the newest checkpoint on this machine that is intact, loaded, if there is any."""
    try:
        return run.checkpoints.load_newest()
    except CheckpointError as error:  # there may be a good one in the mirror
        log.warning("%s", error)
        return None


def _is_behind(run: RunDirectory, local: Checkpoint, url: str, contents: Contents) -> bool:
    """Return whether the mirror continued the run that is here.

    Raises ConfigError if it holds another run, or if both went on.
    """
    newest = contents.checkpoints[-1]
    ids = [checkpoint.manifest.get("run_id") for checkpoint in (local, newest)]
    if ids[0] != ids[1]:
        raise ConfigError(
            f"{url} holds run {ids[1]}, but {run.path} is run {ids[0]}; choose "
            "another mirror, or set fresh to start over, which moves both aside"
        )
    in_mirror = {checkpoint.manifest[CHECKSUM] for checkpoint in contents.checkpoints}
    on_disk = {checkpoint.manifest[CHECKSUM] for checkpoint in run.checkpoints.all()}
    if newest.manifest[CHECKSUM] in {*on_disk, *contents.uploaded}:  # nobody else has continued it
        return local.sort_key < newest.sort_key
    # Of several, the newest may never have arrived.
    if local.manifest[CHECKSUM] in in_mirror or [local.manifest[CHECKSUM]] == contents.uploaded:
        return True
    raise ConfigError(
        f"{run.path} is at step {local.step} and {url} at step {newest.step}, and both "
        f"went on from an earlier one; keep one of them: for the mirror's, move {run.path} away; "
        "for this one, choose another mirror"
    )

"""At the start of a training: what its mirror has and its run directory lacks."""

import logging
from typing import Optional

from paddle_mnist.checkpoint.manifest import CHECKSUM, Checkpoint
from paddle_mnist.checkpoint.mirror import Copy
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.checkpoint.saving import best_first
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.training.arguments import FitArguments
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.resume import check_config_unchanged

log = logging.getLogger("paddle_mnist")


def fetch_newest(training: Training) -> Optional[Checkpoint]:
    """Return the newest checkpoint of the run, loaded, or of its mirror if that is newer.

    Raises ConfigError if the mirror holds another run, or one of another configuration, or if both
    went on; CheckpointError if the mirror cannot be reached and the run is not on this machine, or
    if nothing in the mirror is intact.
    """
    run, arguments = training.run, training.arguments
    assert run.mirror  # else the caller asks the run alone
    local = _newest(run)
    copy = run.mirror.look(needed=local is None)
    if copy is None:
        return local or run.checkpoints.load_newest()
    newest = copy.checkpoints[-1] if copy.checkpoints else None
    if newest and arguments.resume == "off" and not local:
        raise ConfigError(
            f"resume is off, but {run.mirror.url} holds {newest.name}; set fresh to start over, "
            "which moves it aside, or choose another mirror"
        )
    if newest:
        check_config_unchanged(training, newest, where=run.mirror.url)
    if newest and local:
        _check_same_run(run, local, copy)
        if not _is_older(run, local, copy):
            return local
    if newest or (copy.damaged and not local):
        _download(run, copy, local, arguments)
        return run.checkpoints.load_newest()
    return local or run.checkpoints.load_newest()


def _newest(run: RunDirectory) -> Optional[Checkpoint]:
    """Return the newest checkpoint on this machine that is intact, loaded, if there is any."""
    try:
        return run.checkpoints.load_newest()
    except CheckpointError as error:  # there may be a good one in the mirror
        log.warning("%s", error)
        return None


def _check_same_run(run: RunDirectory, local: Checkpoint, copy: Copy) -> None:
    ids = [checkpoint.manifest.get("run_id") for checkpoint in (local, copy.checkpoints[-1])]
    if ids[0] != ids[1]:
        raise ConfigError(
            f"{copy.mirror.url} holds run {ids[1]}, but {run.path} is run {ids[0]}; choose "
            "another mirror, or set fresh to start over, which moves both aside"
        )


def _is_older(run: RunDirectory, local: Checkpoint, copy: Copy) -> bool:
    """Return whether the mirror went on from the run. Raises ConfigError if both went on."""
    newest = copy.checkpoints[-1]
    of_copy = {checkpoint.manifest[CHECKSUM] for checkpoint in copy.checkpoints}
    of_run = {*copy.uploaded, *(one.manifest[CHECKSUM] for one in run.checkpoints.all())}
    if newest.manifest[CHECKSUM] in of_run:  # nobody else has gone on
        return local.sort_key < newest.sort_key
    # Of several, the newest may never have arrived.
    if local.manifest[CHECKSUM] in of_copy or [local.manifest[CHECKSUM]] == copy.uploaded:
        return True
    raise ConfigError(
        f"{run.path} is at step {local.step} and {copy.mirror.url} at step {newest.step}, and both "
        f"went on from an earlier one; keep one of them: for the mirror's, move {run.path} away; "
        "for this one, choose another mirror"
    )


def _download(
    run: RunDirectory, copy: Copy, local: Optional[Checkpoint], arguments: FitArguments
) -> None:
    """Download the newest checkpoint that is intact, and the best ones, which are kept.

    If the run ends with its best, one whose best is there, too, comes before a newer one.
    Raises CheckpointError if none is intact, and the run is not on this machine.
    """
    damaged = [*copy.damaged]
    known = [*copy.checkpoints, *run.checkpoints.all()]
    newer = [one for one in copy.checkpoints if not local or one.sort_key > local.sort_key]
    if arguments.ends_with_best:
        newer.sort(
            key=lambda one: not one.state.best or any(best.is_best_of(one) for best in known)
        )
    for checkpoint in reversed(newer):
        damage = copy.mirror.download(checkpoint, with_log=local is None)
        if not damage:
            log.info("downloaded %s from %s", checkpoint.name, copy.mirror.url)
            _download_best(copy, checkpoint, arguments.saving.keep_best)
            break
        damaged.append(damage)
    for reason in damaged:
        log.warning("damaged copy: %s", reason)
    if not run.checkpoints.all():
        raise CheckpointError(
            f"{copy.mirror.url}: no valid checkpoint there, and none in {run.path}; put a good one "
            "back, or set fresh to start over"
        )


def _download_best(copy: Copy, newest: Checkpoint, count: int) -> None:
    """Download the best checkpoints up to a newer one, as many as are kept."""
    before = [one for one in copy.checkpoints if one.sort_key <= newest.sort_key]
    for checkpoint in best_first(before)[:count]:
        if not checkpoint.path.exists():
            damage = copy.mirror.download(checkpoint, with_log=False)
            if damage:
                log.warning("damaged copy: %s", damage)

"""Decide where a training resumes, and refuse one whose configuration has changed."""

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from paddle_mnist.checkpoint.manifest import PARAMS, Checkpoint
from paddle_mnist.checkpoint.saved_weights import find_checkpoint
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.training.binding import SAMPLES
from paddle_mnist.training.run_directory import RunDirectory

log = logging.getLogger("paddle_mnist")

# How a training was started: its own affair, so a run that continues it elsewhere may differ.
START_FIELDS = ("init_from", "incremental_from")
MAX_LINES = 20  # of a diff
# The fields that name data, and the entries of a manifest that hold the hash of their contents.
DATA_HASHES = {"data": "data_hash", "replay_data": "replay_hash"}


@dataclass(frozen=True)
class ResumeRequest:
    """What a training asks of the run directory, and what must not have changed since.

    resume: "auto", "off" (start at step 0), or the path of a checkpoint or run.
    epochs: how many the training is to have in all.
    config: the fields that decide the result, by name; those of a group have names such as
        "optimizer.beta1". hashes: SHA-256 of the data, by the entries of a manifest, `data_hash`
        and `replay_hash`.
    override: names of fields, or groups, that may differ from the run's.
    defaults: values for fields that checkpoints of earlier versions do not have.
    loose: groups of which only the fields are compared that both have: those of Paddle's objects,
        which have others in other versions.
    in_code: whether errors name the arguments of a function, not the options of a command.
    """

    resume: str
    epochs: int
    config: Mapping[str, Any]
    hashes: Mapping[str, Optional[str]]
    override: tuple[str, ...] = ()
    defaults: Optional[Mapping[str, Any]] = None
    loose: tuple[str, ...] = ()
    in_code: bool = False

    def option(self, name: str, value: str = "") -> str:
        """Return an option as the user writes it: `--fresh`, or `fresh=True`."""
        if self.in_code:
            return f"{name}={value!r}" if value else f"{name}=True"
        return f"--{name} {value}".rstrip()

    @property
    def another_output(self) -> str:
        return "another output" if self.in_code else "another --output"


def find_resume_point(run: RunDirectory, request: ResumeRequest) -> Optional[Checkpoint]:
    """Return the checkpoint from which a training resumes, or None to start at step 0.

    Raises ConfigError, with a diff, if the configuration or the data differs from the run's in
    what decides the result; CheckpointError if there are checkpoints but none is intact.
    """
    run.checkpoints.remove_temporary_files()
    newest = run.checkpoints.newest(quarantine_damaged=True)
    if not newest:
        _check_nothing_is_lost(run, request)
    checkpoint = newest
    if request.resume == "off" and newest:
        raise ConfigError(
            f"resume is off, but {run.path} holds {newest.name}; start over with "
            f"{request.option('fresh')}, which moves it aside, or choose {request.another_output}"
        )
    if request.resume not in ("auto", "off"):
        requested = find_checkpoint(request.resume, run)
        requested.verify()
        if newest and run.owns(requested) and requested.step < newest.step:
            raise ConfigError(
                f"resume names {requested.path}, step {requested.step}, but {run.path} holds "
                f"{newest.name}, step {newest.step}; choose {request.another_output}"
            )
        checkpoint = newest or requested  # the same command, repeated, resumes its own run
    if checkpoint:
        check_config_unchanged(checkpoint, request, run)
    return checkpoint


def _check_nothing_is_lost(run: RunDirectory, request: ResumeRequest) -> None:
    """Raise CheckpointError if a run without a checkpoint must have had one."""
    folder = run.checkpoints.folder
    if run.config.exists() and folder.is_symlink() and not folder.exists():
        raise CheckpointError(
            f"{folder}: links to {os.readlink(folder)}, which is not there; mount its disk, or "
            f"start over with {request.option('fresh')}"
        )
    orphans = run.checkpoints.orphaned_files()
    if run.result.exists() or len({path.stem for path in orphans if path.suffix == PARAMS}) > 1:
        raise CheckpointError(
            f"{run.checkpoints.folder}: a run was trained here, but no manifest is there; put its "
            f"checkpoints back, or start over with {request.option('fresh')}"
        )
    for path in orphans:
        log.warning(
            "%s: no manifest lists it, so it was never committed; starting from step 0", path
        )


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
        if len(lines) > MAX_LINES:
            lines[MAX_LINES:] = [f"  and {len(lines) - MAX_LINES} more"]
        if all(_is_hash_of_samples(name) for name, _, _ in changes):
            lines.append(
                "Only samples differ, so the data are probably drawn at random: seed them first, "
                "as with paddle.seed(0), and every call has the same"
            )
        names = ",".join(dict.fromkeys(_overridable(name) for name, _, _ in changes))
        raise ConfigError(
            f"{run.path} holds a run with other values:\n"
            + "\n".join(lines)
            + f"\nStart over with {request.option('fresh')} (moves it aside), choose "
            f"{request.another_output}, or change the run on purpose with "
            f"{request.option('override', names)}"
        )
    begun = checkpoint.state.epoch + (checkpoint.state.position > 0)
    if request.epochs < begun:
        raise ConfigError(
            f"epochs is {request.epochs}, but {run.path} has {begun} begun or done; expected at "
            "least as many"
        )


def warn_of_other_convolution(manifest: Mapping[str, Any], convolution: str) -> None:
    """Say so if other code than before computes the convolutions, which rounds differently.

    convolution: what computes them now (`nn.conv_blocks.implementation`).
    """
    before = manifest.get("convolution")
    if before is None:  # the first manifests of format 4
        fast = (manifest["config"] or {}).get("fast_conv", "off") != "off"
        before = "NumPy's products" if fast and manifest.get("device") == "cpu" else convolution
    if before != convolution:
        log.warning(
            "convolutions were computed by %s up to step %d, and are by %s now, which rounds "
            "differently: the run continues, but its result differs from that of an unbroken one",
            before,
            manifest["state"]["step"],
            convolution,
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
    # What only the run has counts in a group: a parameter that the net no longer has, say.
    names = [*current, *(name for name in stored if "." in name and name not in current)]
    return [
        (name, stored.get(name), current.get(name))
        for name in names
        if stored.get(name) != current.get(name)
        and not _is_among(name, allowed)
        and not (_is_among(name, request.loose) and not (name in stored and name in current))
    ]


def _is_among(name: str, names: Collection[str]) -> bool:
    """Return whether a field, or a group that it belongs to, is among some names."""
    parts = name.split(".")
    return any(".".join(parts[:length]) in names for length in range(1, len(parts) + 1))


def _is_hash_of_samples(name: str) -> bool:
    """Return whether a field is the hash that `describe_data` makes of a dataset's samples."""
    return name.rpartition(".")[2] == SAMPLES


def _overridable(name: str) -> str:
    """Return what `override` names: a field, or of a group the group."""
    return name.partition(".")[0]


def _data_contents(hashes: Mapping[str, Any]) -> dict[str, Optional[str]]:
    """Return short hashes of the data by field: their contents count, not where they are."""
    return {name: (hashes.get(key) or "")[:12] or None for name, key in DATA_HASHES.items()}

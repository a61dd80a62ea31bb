"""The result of a training: made at its end, kept in `result.json`, and read from there."""

import logging
import math
from collections.abc import Mapping
from typing import Any, Optional

from paddle_mnist._arguments import plain
from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.interfaces import as_number
from paddle_mnist.progress import HIGHEST_IS_BEST, TrainState
from paddle_mnist.training.callbacks import FitResult, Training
from paddle_mnist.training.initialize import BEFORE

log = logging.getLogger("paddle_mnist")

EARLY = "early"  # how a training ended that a callback stopped
LOST = "lost"  # of result.json: how much of an accuracy a continued training has lost, by tag
TOLERANCE = 0.01  # a smaller loss is not reported: chance alone moves an accuracy as much


def make_result(training: Training, state: TrainState, checkpoint_name: str) -> FitResult:
    """Return the result; the evaluation that the training ended with is not repeated."""
    job, run = training.job, training.run
    is_evaluated = state.metrics and set(job.tags) <= set(state.metrics)
    metrics = dict(state.metrics if is_evaluated else job.evaluator.metrics(job.parts.model))
    for callback in job.callbacks:
        name = f"{type(callback).__name__}.final_metrics"
        more = callback.final_metrics(training) or {}
        metrics.update({tag: as_number(value, tag, name) for tag, value in more.items()})
    return FitResult(
        metrics=metrics,
        weights=run.weights,
        checkpoint=run.checkpoints.folder / checkpoint_name,
        epochs=state.epoch,
        steps=state.step,
        seconds=round(state.train_seconds, 3),
        stopped="finished" if job.is_over(state) else EARLY,
    )


def result_entries(training: Training, result: FitResult) -> dict[str, Any]:
    """Return what `result.json` is to hold; JSON has no NaN."""
    entries = result.as_dict()
    entries["metrics"] = {
        tag: value if math.isfinite(value) else None for tag, value in result.metrics.items()
    }
    if before := training.run.checkpoints.context.get(BEFORE):
        entries |= {BEFORE: before, LOST: _lost(before, result.metrics)}
    for callback in training.job.callbacks:
        entries.update(plain(callback.result_entries(training, result) or {}))
    return entries


def _lost(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return by how much each accuracy has fallen, by tag; small losses are left out."""
    losses = {
        tag: value - after[tag]
        for tag, value in before.items()
        if tag in after and tag.rpartition("/")[2] in HIGHEST_IS_BEST
    }
    return {tag: loss for tag, loss in losses.items() if loss > TOLERANCE}


def warn_of_losses(entries: Mapping[str, Any]) -> None:
    """Say what a training that continued another has lost, by the entries of `result.json`."""
    for tag in entries.get(LOST, ()):
        log.warning(
            "%s has fallen from %.4f before this training to %.4f: the net has forgotten; replay "
            "more of the old data, or lower the learning rate",
            tag,
            entries[BEFORE][tag],
            entries["metrics"][tag],
        )


def result_so_far(training: Training, checkpoint: Optional[Checkpoint]) -> Optional[FitResult]:
    """Return the result of a run that is finished; None if something is left to do."""
    job, run = training.job, training.run
    if not checkpoint:
        return None

    def find() -> Optional[FitResult]:
        values = run.read_result()
        if values.get("steps") != checkpoint.step or not run.weights.exists():
            return None
        state = checkpoint.state
        # With other values, a callback may no longer ask to stop there.
        is_early = values.get("stopped") == EARLY and not job.arguments.override
        if not job.is_over(state) and not is_early:
            return None
        older = {
            "metrics": state.metrics,
            "epochs": state.epoch,
            "seconds": state.train_seconds,
            "weights": run.weights.name,
        }
        values = {**older, **values, "stopped": "already finished"}
        if "checkpoint" not in values or not all(
            callback.has_result(values) for callback in job.callbacks
        ):
            log.warning("%s lacks entries; evaluating again", run.result)
            return None
        if not set(job.tags) <= set(values["metrics"]):
            log.info("the result lacks some of the requested metrics; evaluating again")
            return None
        return as_fit_result(run, values)

    return job.world.run_on_main(find)


def as_fit_result(run: RunDirectory, values: Mapping[str, Any]) -> FitResult:
    """Return the result that `result.json` holds."""
    return FitResult(
        metrics={
            tag: math.nan if value is None else value for tag, value in values["metrics"].items()
        },
        weights=run.path / values["weights"],
        checkpoint=run.checkpoints.folder / values["checkpoint"],
        epochs=values["epochs"],
        steps=values["steps"],
        seconds=values["seconds"],
        stopped=values["stopped"],
    )


def describe_training(training: Training) -> str:
    """Return in one line what is trained, and from which step on."""
    job = training.job
    parts, world = job.parts, job.world
    parameters = sum(parameter.size for parameter in parts.model.parameters())
    steps = "" if job.steps is None else f", {job.steps:,} steps"
    devices = job.device if world.size == 1 else f"{world.size} processes, {job.device}"
    step = training.state.step if training.state else 0
    resumed = f"; resumed after step {step:,}" if step else ""
    return (
        f"{type(parts.model).__name__}, {parameters:,} parameters; {job.arguments.epochs} epochs"
        f"{steps}; {type(parts.optimizer).__name__}, seed {job.arguments.seed}; {devices}{resumed}"
    )


def describe_result(training: Training, result: FitResult) -> str:
    """Return in one line the metrics of a result, and how long they took."""
    callbacks = training.job.callbacks
    summaries = [text for callback in callbacks if (text := callback.summary(training, result))]
    metrics = ", ".join(f"{tag} {value:.4g}" for tag, value in result.metrics.items())
    words = "; ".join(summaries) or metrics or "not evaluated"
    return f"{words}; trained {result.epochs} epochs in {result.seconds:.1f} s"


def log_result(training: Training, result: FitResult) -> None:
    """Log a result, and where everything was written."""
    log.info("%s", describe_result(training, result))
    log.info("weights: %s   everything else: %s", result.weights, training.run.path)

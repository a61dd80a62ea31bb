"""Make the result of a run, and convert it to and from the entries of `result.json`."""

import logging
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Optional

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.interfaces import as_number
from paddle_mnist.options import plain
from paddle_mnist.training.callbacks import FitResult, Training
from paddle_mnist.training.witness import describe_witness

log = logging.getLogger("paddle_mnist")

STOPPED_EARLY = "early"  # `stopped` of a run that a callback has stopped


def make_result(training: Training, checkpoint_name: str) -> FitResult:
    """Return the result, without repeating the last evaluation."""
    run, state = training.run, training.state
    is_evaluated = state.metrics and set(training.tags) <= set(state.metrics)
    metrics = dict(state.metrics if is_evaluated else training.evaluator.metrics(training.model))
    for callback in training.callbacks:
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
        stopped="finished" if training.is_over(state) else STOPPED_EARLY,
        witness=training.witness,
    )


def result_entries(training: Training, result: FitResult) -> dict[str, Any]:
    """Return the entries of `result.json`, with None for NaN, which JSON lacks."""
    entries = result.as_dict()
    entries["metrics"] = {
        tag: value if math.isfinite(value) else None for tag, value in result.metrics.items()
    }
    for callback in training.callbacks:
        entries.update(plain(callback.result_entries(training, result) or {}))
    return entries


def finished_result(training: Training) -> Optional[FitResult]:
    """Return the result of the run if it ended with the checkpoint from which it resumes."""
    run, state = training.run, training.state
    values = run.read_result()
    if values.get("steps") != state.step or not run.weights.is_file():
        return None
    # With an override, a callback may no longer ask to stop there.
    is_early = values.get("stopped") == STOPPED_EARLY and not training.arguments.override
    if not training.is_over(state) and not is_early:
        return None
    has_all = {field.name for field in fields(FitResult)} - {"witness"} <= values.keys()
    if not has_all or not all(callback.has_result(values) for callback in training.callbacks):
        log.warning("%s lacks entries; evaluating again", run.result)
        return None
    if not set(training.tags) <= set(values["metrics"]):
        log.info("the result lacks some of the requested metrics; evaluating again")
        return None
    return as_fit_result(run, {**values, "stopped": "already finished"})


def as_fit_result(run: RunDirectory, values: Mapping[str, Any]) -> FitResult:
    """Return the result that `result.json` holds."""
    known = {field.name: values[field.name] for field in fields(FitResult) if field.name in values}
    metrics = values["metrics"].items()
    known["metrics"] = {tag: math.nan if value is None else value for tag, value in metrics}
    known["witness"] = values.get("witness") or {}
    known["weights"] = run.path / values["weights"]
    known["checkpoint"] = run.checkpoints.folder / values["checkpoint"]
    return FitResult(**known)


def describe_training(training: Training) -> str:
    """Describe in one line the run and the step at which it starts."""
    model, world, arguments = training.model, training.world, training.arguments
    parameters = sum(parameter.size for parameter in model.parameters())
    steps = "" if training.steps is None else f", {training.steps:,} steps"
    devices = training.device if world.size == 1 else f"{world.size} processes, {training.device}"
    step = training.state.step
    resumed = f"; resumed after step {step:,}" if step else ""
    return (
        f"{type(model).__name__}, {parameters:,} parameters; {arguments.epochs} epochs"
        f"{steps}; {type(training.optimizer).__name__}, seed {arguments.seed}; {devices}{resumed}"
    )


def describe_result(training: Training, result: FitResult) -> str:
    """Describe in one line the metrics of a result, and the time of training."""
    callbacks = training.callbacks
    summaries = [text for callback in callbacks if (text := callback.summary(training, result))]
    metrics = ", ".join(f"{tag} {value:.4g}" for tag, value in result.metrics.items())
    words = "; ".join(summaries) or metrics or "not evaluated"
    epochs = f"{result.epochs} epoch{'' if result.epochs == 1 else 's'}"
    return f"{words}; trained {epochs} in {result.seconds:.1f} s"


def log_result(training: Training, result: FitResult) -> None:
    """Log a result and the paths of the files."""
    log.info("%s", describe_result(training, result))
    log.info("weights: %s   everything else: %s", result.weights, training.run.path)
    if comparison := describe_witness(result.witness):
        log.info("%s", comparison)

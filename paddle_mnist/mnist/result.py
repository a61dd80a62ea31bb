"""`Result`: what a training on digits came to, in `result.json` and in the log."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Optional

from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.mnist.program import shell_command
from paddle_mnist.training.run_directory import RunDirectory

log = logging.getLogger("paddle_mnist")

DATASET_NAMES = {"mnist": "MNIST", "digits": "scikit-learn's digits, not MNIST"}


@dataclass(frozen=True)
class Result:
    """The result of a training, as `result.json` holds it.

    dataset: "mnist", "digits", or the name of the files. Accuracies are shares, losses in nats.
    epochs, steps: how many were trained. params: the number of parameters.
    train_seconds: the time spent in steps, over all starts of the run; data_seconds: the time until
    the images were there, in the process that ended it. checkpoint: the one with these weights.
    replay_eval_acc, replay_eval_loss: on the eval split of `replay_data`, if there is one.
    """

    dataset: str
    eval_acc: float
    eval_loss: float
    valid_acc: float
    valid_loss: float
    epochs: int
    steps: int
    params: int
    seed: int
    world_size: int
    device: str
    train_seconds: float
    data_seconds: float
    samples_per_second: float
    checkpoint: str
    paddle: str
    numpy: str
    package: str
    replay_eval_acc: Optional[float] = None
    replay_eval_loss: Optional[float] = None

    def as_dict(self) -> dict[str, Any]:
        """Return what `result.json` holds: every field that has a value."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def read_result(run: RunDirectory) -> Result:
    """Return the result of a run that has just been trained, by other processes say."""
    return Result(**json.loads(run.result.read_text(encoding="utf-8")))


def finished_result(run: RunDirectory, checkpoint: Checkpoint) -> Optional[Result]:
    """Return the result of a run that ended with a checkpoint, if it and the weights are there."""
    values: Optional[Mapping[str, Any]] = run.read_result(checkpoint)
    if not values or not run.weights.exists():
        return None
    try:
        return Result(**values)
    except TypeError as error:  # damaged, or of another version of this package
        log.warning("%s is not a result (%s); evaluating again", run.result, error)
        return None


def log_result(result: Result, run: RunDirectory, has_visualdl: bool) -> None:
    """Log a result, and where everything was written. has_visualdl: pages for the dashboard too."""
    log.info(
        "eval accuracy %.4f, loss %.4f (%s); trained %d epochs in %.1f s",
        result.eval_acc,
        result.eval_loss,
        DATASET_NAMES.get(result.dataset, result.dataset),
        result.epochs,
        result.train_seconds,
    )
    if result.replay_eval_acc is not None:
        log.info("on the replayed data's eval split: accuracy %.4f", result.replay_eval_acc)
    log.info("weights: %s   everything else: %s", run.weights, run.path)
    dashboard = shell_command("dashboard", str(run.path)) if has_visualdl else None
    if dashboard:
        log.info("dashboard: %s", dashboard)

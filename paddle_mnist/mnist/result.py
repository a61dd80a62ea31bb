"""`Result`: what a training on digits came to, in `result.json`."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Optional

from paddle_mnist.training.run_directory import RunDirectory

DATASET_NAMES = {"mnist": "MNIST", "digits": "scikit-learn's digits, not MNIST"}


@dataclass(frozen=True)
class Result:
    """The result of a training, as `result.json` holds it.

    dataset: "mnist", "digits", or the name of the files. Accuracies are shares, losses in nats.
    eval_acc, eval_loss: None if the eval split was left unscored (`final_split`).
    epochs, steps: how many were trained. params: the number of parameters.
    train_seconds: the time spent in steps, over all starts of the run; data_seconds: the time until
    the images were there, in the process that ended it. checkpoint: the one with these weights.
    images_used, images_available: by split, how many images the figures are of, and how many there
    are. They differ where `train_limit` or `eval_limit` leaves some out; None in older results.
    replay_eval_acc, replay_eval_loss: on the eval split of `replay_data`, if there is one.
    """

    dataset: str
    eval_acc: Optional[float]
    eval_loss: Optional[float]
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
    images_used: Optional[Mapping[str, int]] = None
    images_available: Optional[Mapping[str, int]] = None
    replay_eval_acc: Optional[float] = None
    replay_eval_loss: Optional[float] = None

    def as_dict(self) -> dict[str, Any]:
        """Return what `result.json` holds: every field that has a value."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def has_result(entries: Mapping[str, Any], split: str = "eval") -> bool:
    """Return whether the entries of a `result.json` hold a `Result` with the scores of a split."""
    required = {entry.name for entry in fields(Result) if entry.default is MISSING}
    if split != "eval":
        required -= {"eval_acc", "eval_loss"}
    return required <= {*entries}


def read_result(run: RunDirectory) -> Result:
    """Return the result of a run that is finished."""
    entries = json.loads(run.result.read_text(encoding="utf-8"))
    return Result(**{entry.name: entries.get(entry.name) for entry in fields(Result)})

"""Evaluate the weights of a run, or any others, on a split of a dataset."""

import logging
from dataclasses import dataclass
from typing import Any, Optional

from paddle import nn

from paddle_mnist.checkpoint.names import SavedWeights, find_weights
from paddle_mnist.errors import DataError
from paddle_mnist.mnist.config import read_config
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.evaluation import Evaluation, evaluate
from paddle_mnist.mnist.export import DigitNet, is_tutorials
from paddle_mnist.mnist.images import Images, open_data
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.options import NetOptions
from paddle_mnist.mnist.own_nets import OwnNet, load_net
from paddle_mnist.system.devices import select_device

log = logging.getLogger("paddle_mnist")


@dataclass(frozen=True)
class EvaluatedModel:
    """A saved model and its evaluation on a dataset. path: of the weights' file."""

    path: str
    model: nn.Layer
    dataset: MnistDataset
    evaluation: Evaluation


def load_and_evaluate(
    checkpoint: Optional[str] = None,
    output: Optional[str] = None,
    data: Optional[str] = None,
    split: str = "eval",
    device: str = "auto",
    limit: Optional[int] = None,
    net: Optional[OwnNet] = None,
) -> EvaluatedModel:
    """Load the weights that a name stands for, and evaluate them on a split.

    checkpoint, output: the name of weights, and their run, as `find_weights` takes them; by default
        the weights with which the newest run in work/output ended.
    data: by default the run's; "auto" for weights that belong to no run on digits.
    limit: evaluate on the first so many images only.
    net: of weights that are not the tutorial's; see `paddle_mnist.mnist.own_nets.load_net`.
    Raises CheckpointError if the weights are missing or damaged, do not fit the net, or are those
    of a run of `fit` and no net is given; DataError if the images are missing or damaged, or are
    not the run's.
    """
    weights = find_weights(checkpoint, output)
    device = select_device(device)
    model = load_net(weights, net)
    if not is_tutorials(model):
        model = DigitNet(model)
    elif isinstance(model, MNIST):
        fast_conv = (weights.manifest.get("config") or {}).get("fast_conv", "auto")  # as in its run
        model.fast_conv = NetOptions(fast_conv=fast_conv).conv_threads()
    dataset = MnistDataset(split, _open_data_of(weights, data), limit)
    _log_limit_of_run(weights, dataset)
    return EvaluatedModel(str(weights.path), model, dataset, evaluate(model, dataset))


def _open_data_of(weights: SavedWeights, data: Optional[str]) -> Images:
    """Open `data`, or without it the images of the weights' run, which must be the same still."""
    if data:
        return open_data(data)
    is_from_run = "config" in weights.manifest or weights.run.config.exists()
    is_from_run = is_from_run and not weights.run.is_of_fit
    images = open_data(read_config(weights.run.config).images.data if is_from_run else "auto")
    if weights.manifest.get("data_hash") not in (None, images.hash):
        raise DataError(
            f"{images.source}: other images than {weights.path} was trained with; name the ones to "
            "evaluate on with --data"
        )
    return images


def _log_limit_of_run(weights: SavedWeights, dataset: MnistDataset) -> None:
    """Log that the run's own figures are of fewer images of the split, if they are."""
    option = "train_limit" if dataset.mode == "train" else "eval_limit"
    limit = (weights.manifest.get("config") or {}).get(option)
    if limit and limit < len(dataset) and weights.manifest.get("data_hash") == dataset.data.hash:
        used = MnistDataset(dataset.mode, dataset.data, limit).extent
        log.info(
            "the run's own figures are of %s (--%s %d); these are of %s",
            used,
            option,
            limit,
            dataset.extent or "all",
        )


def evaluate_checkpoint(
    checkpoint: Optional[str] = None,
    output: Optional[str] = None,
    data: Optional[str] = None,
    split: str = "eval",
    device: str = "auto",
    net: Optional[OwnNet] = None,
) -> dict[str, Any]:
    """Return `Evaluation.report`, with what was evaluated; arguments as of `load_and_evaluate`.

    Additional entries: `checkpoint`, `dataset`, `split`; and `classes`, their ten names, if there
    is a `classes.txt` beside the data.
    """
    evaluated = load_and_evaluate(checkpoint, output, data, split, device, net=net)
    images = evaluated.dataset.data
    return {
        "checkpoint": evaluated.path,
        "dataset": images.name,
        "split": split,
        **({"classes": list(images.class_names)} if images.class_names else {}),
        **evaluated.evaluation.report(),
    }

"""What a saved model makes of a split."""

from dataclasses import dataclass
from typing import Any, Optional

from paddle_mnist.checkpoint.contents import load_weights
from paddle_mnist.errors import DataError
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.config import TrainConfig, read_config
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.pretrained import find_weights
from paddle_mnist.parallel.process_count import fast_conv_threads
from paddle_mnist.system.devices import select_device
from paddle_mnist.training.evaluator import Evaluation, evaluate


@dataclass(frozen=True)
class EvaluatedModel:
    """A saved model, and what it made of a split. name: of the weights' file."""

    name: str
    model: MNIST
    dataset: MnistDataset
    found: Evaluation


def score_checkpoint(
    checkpoint: Optional[str] = None,
    output: Optional[str] = None,
    data: Optional[str] = None,
    split: str = "eval",
    device: str = "auto",
    limit: Optional[int] = None,
) -> EvaluatedModel:
    """Evaluate a checkpoint on a split.

    checkpoint, output: a name of weights and the run it is of, as `find_weights` takes them; by
        default the weights that the newest run in work/output ended with.
    data: by default the run's; "auto" for weights that are not a run's.
    limit: on so many images only.
    Raises CheckpointError if it is missing, damaged or does not fit the net; DataError, also when
    the run's images are no longer found.
    """
    weights = find_weights(checkpoint, output)
    name, manifest = str(weights.path), weights.manifest
    device = select_device(device)
    model = MNIST()
    way = (manifest.get("config") or {}).get("fast_conv", "auto")  # as its run evaluated
    model.fast_conv = fast_conv_threads(TrainConfig(fast_conv=way))
    load_weights(model, weights.values, name)
    of_a_run = "config" in manifest or weights.run.config.exists()
    wanted = data or (read_config(weights.run.config).data if of_a_run else "auto")
    images = open_data(wanted)
    if not data and manifest.get("data_hash") not in (None, images.hash):
        raise DataError(
            f"{images.source}: other images than {name} was trained with; name the ones to "
            "evaluate on with --data"
        )
    dataset = MnistDataset(split, images, limit)
    return EvaluatedModel(name, model, dataset, evaluate(model, dataset))


def evaluate_checkpoint(
    checkpoint: Optional[str] = None,
    output: Optional[str] = None,
    data: Optional[str] = None,
    split: str = "eval",
    device: str = "auto",
) -> dict[str, Any]:
    """`Evaluation.report`, and what was evaluated on what; arguments as for `score_checkpoint`.

    classes: their ten names, where a `classes.txt` beside the data gives them.
    """
    scored = score_checkpoint(checkpoint, output, data, split, device)
    images = scored.dataset.data
    return {
        "checkpoint": scored.name,
        "dataset": images.name,
        "split": split,
        **({"classes": list(images.class_names)} if images.class_names else {}),
        **scored.found.report(),
    }

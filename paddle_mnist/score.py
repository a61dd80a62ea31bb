"""What a saved model makes of a split."""

from typing import Any, Optional

from paddle_mnist.checkpoint.contents import load_weights
from paddle_mnist.data import open_data
from paddle_mnist.data.dataset import MnistDataset
from paddle_mnist.device import select_device
from paddle_mnist.errors import DataError
from paddle_mnist.evaluator import evaluate
from paddle_mnist.model import MNIST
from paddle_mnist.rundir import find_weights


def evaluate_checkpoint(
    checkpoint: str,
    output: Optional[str] = None,
    data: Optional[str] = None,
    split: str = "eval",
    device: str = "auto",
) -> dict[str, Any]:
    """What a checkpoint makes of a split: `Evaluation.report`, and what was evaluated on what.

    checkpoint: "latest" or "best" of the run at `output`, or the path of a checkpoint or of a bare
        `.pdparams`, such as the tutorial writes.
    output: by default `work/output/default`, or `work/output/digits` where only that is.
    data: by default the run's; "auto" for weights that are not a run's.
    Raises CheckpointError if it is missing, damaged or does not fit the net; DataError, also when
    the run's images are no longer found.
    """
    name, weights, manifest, owner = find_weights(checkpoint, output)
    device = select_device(device)
    model = MNIST()
    load_weights(model, weights, name)
    wanted = data or (owner.read_config().data if "config" in manifest else "auto")
    images = open_data(wanted)
    if not data and manifest.get("data_hash") not in (None, images.hash):
        raise DataError(
            f"{images.source}: other images than {name} was trained with; name the ones to "
            "evaluate on with --data"
        )
    report = evaluate(model, MnistDataset(split, images)).report()
    return {"checkpoint": name, "dataset": images.name, "split": split, **report}

"""The trained weights that come with the package, and a picture for them to read.

The recipe `best` trained them; the last layer then learned the digit one with a long upstroke, as
in German handwriting. `about.json` records the command and the data that made them, and their
accuracy. `python tools/reproduce.py --only pretrained --data MNIST` trains the same weights, and
then the last layer on more forms of digits (docs/en/deployment.md).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from paddle_mnist.checkpoint.names import SavedWeights
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.checkpoint.safe_load import safe_loads
from paddle_mnist.errors import CheckpointError

WEIGHTS = Path(__file__).with_name("mnist.pdparams")
RECORD = Path(__file__).with_name("about.json")
EXAMPLE = Path(__file__).with_name("example.jpg")


def about() -> dict[str, Any]:
    """Return the record of the weights: command, dataset, eval_acc, sha256, versions, ..."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def weights() -> dict[str, Any]:
    """Return `{"conv1.weight": float32 [20, 1, 5, 5], ...}`, NumPy arrays.

    Raises CheckpointError if the file does not match the record.
    """
    data = WEIGHTS.read_bytes()
    actual, expected = hashlib.sha256(data).hexdigest(), about()["sha256"]
    if actual != expected:
        raise CheckpointError(
            f"{WEIGHTS}: SHA-256 {actual[:12]}...; {RECORD.name} says {expected[:12]}...; install "
            "the package again"
        )
    return safe_loads(data, WEIGHTS)


def pretrained_weights() -> SavedWeights:
    """Return the weights, as `find_weights` returns those of a run. Raises CheckpointError."""
    return SavedWeights(WEIGHTS, weights(), RunDirectory(WEIGHTS.parent))

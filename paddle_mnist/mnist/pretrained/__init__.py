"""The trained weights that come with the package.

`about.json` says what they were made by, on which images, and how good they are.
`python tools/reproduce.py --only pretrained --data MNIST` makes them anew.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from paddle_mnist.checkpoint.safe_load import safe_loads
from paddle_mnist.errors import CheckpointError

WEIGHTS = Path(__file__).with_name("mnist.pdparams")
ABOUT = Path(__file__).with_name("about.json")


def about() -> dict[str, Any]:
    """What is known of the weights: `command`, `dataset`, `eval_acc`, `sha256`, versions, ..."""
    return json.loads(ABOUT.read_text(encoding="utf-8"))


def weights() -> dict[str, Any]:
    """`{"conv1.weight": float32 [20, 1, 5, 5], ...}`, NumPy arrays. Raises CheckpointError."""
    data = WEIGHTS.read_bytes()
    found, expected = hashlib.sha256(data).hexdigest(), about()["sha256"]
    if found != expected:
        raise CheckpointError(
            f"{WEIGHTS}: SHA-256 {found[:12]}...; {ABOUT.name} says {expected[:12]}...; install "
            "the package again"
        )
    return safe_loads(data, WEIGHTS)

"""The weights that come with the package."""

import argparse
import hashlib
import json
from pathlib import Path

from paddle_mnist.mnist.arrays import Data
from reproduction.trainings import Training

RECIPE = "best"


def measure(data: Data, args: argparse.Namespace) -> dict:
    """Train RECIPE, or resume it; write and return the package's about.json.

    A training that the table of RECIPE made with this seed is used again.
    """
    from paddle_mnist import TrainConfig, train_and_evaluate
    from paddle_mnist.mnist import pretrained
    from paddle_mnist.mnist.config import read_recipe
    from paddle_mnist.system.files import write_atomically

    folder = Path(args.output) / Training(RECIPE, args.seed).folder
    options = {"seed": args.seed, "data": data.location, "output": str(folder)}
    quiet = {"visualdl": False, "figures": False}
    config = TrainConfig.from_mapping({**read_recipe(RECIPE), **options, **quiet})
    train_and_evaluate(config)
    result = json.loads((folder / "result.json").read_text("utf-8"))
    weights = (folder / "mnist.pdparams").read_bytes()
    scores = ("dataset", "eval_acc", "eval_loss", "valid_acc", "valid_loss", "steps")
    about = {
        "sha256": hashlib.sha256(weights).hexdigest(),
        "command": "python tools/reproduce.py --only pretrained --data MNIST",
        "recipe": RECIPE,
        "seed": args.seed,
        **{name: result[name] for name in (*scores, "paddle", "numpy", "package")},
    }
    write_atomically(pretrained.WEIGHTS, weights)
    write_atomically(pretrained.ABOUT, (json.dumps(about, indent=1) + "\n").encode())
    return about


def tabulate(about: dict) -> str:
    return (
        f"accuracy on the eval split {about['eval_acc']:.2%}, loss {about['eval_loss']:.4f}; "
        f"SHA-256 {about['sha256'][:12]}..."
    )

"""The PaddlePaddle handwritten-digit tutorial as a package.

Importing it does not import paddle; the first use of a name that needs it does.
"""

import warnings
from importlib import import_module

# Paddle looks for this compiler cache on every import, and warns where there is none; nothing here
# compiles. Set before anything in the package imports Paddle, in each of its processes.
warnings.filterwarnings("ignore", message="No ccache found")

_PUBLIC = {
    "BatchLoader": "paddle_mnist.data.dataset",
    "MNIST": "paddle_mnist.model",
    "MnistDataset": "paddle_mnist.data.dataset",
    "Predictor": "paddle_mnist.predictor",
    "TrainConfig": "paddle_mnist.config",
    "Observer": "paddle_mnist.state",
    "Trainer": "paddle_mnist.trainer",
    "evaluate": "paddle_mnist.evaluator",
    "load_data": "paddle_mnist.data.dataset",
    "train_and_evaluate": "paddle_mnist.run",
    "watch": "paddle_mnist.watching",
}

__all__ = sorted(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "TrainConfig":
        from paddle_mnist.device import require_paddle

        require_paddle()
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__():
    return [*globals(), *__all__]

"""Train any Paddle net, resume it to the same bits; and the handwritten-digit tutorial.

Importing it does not import paddle; the first use of a name that needs it does.
"""

import warnings
from importlib import import_module

# Paddle looks for this compiler cache on every import, and warns where there is none; nothing here
# compiles. Set before anything in the package imports Paddle, in each of its processes.
warnings.filterwarnings("ignore", message="No ccache found")
# Its BatchNorm announces a change of Paddle 2 in each process that trains; there is nothing to do.
warnings.filterwarnings("ignore", message="When training, we now always track global mean")

_PUBLIC = {
    "BatchLoader": "paddle_mnist.data.loader",
    "Callback": "paddle_mnist.training.callbacks",
    "ConvBlocks": "paddle_mnist.nn.conv_blocks",
    "DigitPredictor": "paddle_mnist.mnist.predictor",
    "FitResult": "paddle_mnist.training.callbacks",
    "Gathered": "paddle_mnist.metrics.paddle_metrics",
    "MNIST": "paddle_mnist.mnist.model",
    "Mean": "paddle_mnist.metrics.sums",
    "MnistDataset": "paddle_mnist.mnist.dataset",
    "ResumableBatchSampler": "paddle_mnist.data.external",
    "Sums": "paddle_mnist.metrics.sums",
    "TrainConfig": "paddle_mnist.mnist.config",
    "Observer": "paddle_mnist.interfaces",
    "Trainer": "paddle_mnist.training.trainer",
    "evaluate": "paddle_mnist.training.evaluator",
    "evaluate_run": "paddle_mnist.training.trained_model",
    "export_run": "paddle_mnist.inference.export_run",
    "fit": "paddle_mnist.training.fit",
    "is_rehearsal": "paddle_mnist.training.rehearsing",
    "load_data": "paddle_mnist.mnist.dataset",
    "load_model": "paddle_mnist.training.trained_model",
    "predict_run": "paddle_mnist.inference.predict_run",
    "train_and_evaluate": "paddle_mnist.mnist.run",
    "watch": "paddle_mnist.monitor.watch",
}

# Weights that come with the package: the word that stands for them, and what returns them.
PACKAGED_WEIGHTS = {"pretrained": "paddle_mnist.mnist.pretrained:pretrained_weights"}

__all__ = sorted(_PUBLIC)
__version__ = "0.2.0"


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "TrainConfig":
        from paddle_mnist.system.devices import require_paddle

        require_paddle()
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__():
    return [*globals(), *__all__]

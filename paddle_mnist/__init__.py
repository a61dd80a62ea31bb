"""Train any Paddle net, resume it to the same bits; and the handwritten-digit tutorial.

Importing it does not import paddle; the first use of a name that needs it does.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Paddle looks for this compiler cache on every import, and warns where there is none; nothing here
# compiles. Set before anything in the package imports Paddle, in each of its processes.
warnings.filterwarnings("ignore", message="No ccache found")
# Its BatchNorm announces a change of Paddle 2 in each process that trains; there is nothing to do.
warnings.filterwarnings("ignore", message="When training, we now always track global mean")

_PUBLIC = {
    "BatchLoader": "paddle_mnist.data.loader",
    "Callback": "paddle_mnist.training.callbacks",
    "Console": "paddle_mnist.training.reporting",
    "ConvBlocks": "paddle_mnist.nn.conv_blocks",
    "DigitPredictor": "paddle_mnist.mnist.predictor",
    "EarlyStopping": "paddle_mnist.training.early_stopping",
    "Evaluating": "paddle_mnist.training.evaluating",
    "Figures": "paddle_mnist.training.reporting",
    "FitResult": "paddle_mnist.training.callbacks",
    "Gathered": "paddle_mnist.metrics.paddle_metrics",
    "Loading": "paddle_mnist.data.loading",
    "MNIST": "paddle_mnist.mnist.model",
    "Mean": "paddle_mnist.metrics.sums",
    "MnistDataset": "paddle_mnist.mnist.dataset",
    "Numerics": "paddle_mnist.nn.numerics",
    "Observer": "paddle_mnist.interfaces",
    "PrintLayers": "paddle_mnist.training.looking_inside",
    "Processes": "paddle_mnist.parallel.processes",
    "Profile": "paddle_mnist.training.looking_inside",
    "ResumableBatchSampler": "paddle_mnist.data.external",
    "Saving": "paddle_mnist.checkpoint.policy",
    "StartFrom": "paddle_mnist.training.start",
    "Sums": "paddle_mnist.metrics.sums",
    "TrainConfig": "paddle_mnist.mnist.config",
    "Trainer": "paddle_mnist.training.trainer",
    "VisualDL": "paddle_mnist.training.reporting",
    "Watch": "paddle_mnist.training.looking_inside",
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

# What is in _PUBLIC, for checkers of types and for editors: they do not run `__getattr__`, and by
# its mere presence would take any other name for one that is there.
if TYPE_CHECKING:
    from paddle_mnist.checkpoint.policy import Saving as Saving
    from paddle_mnist.data.external import ResumableBatchSampler as ResumableBatchSampler
    from paddle_mnist.data.loader import BatchLoader as BatchLoader
    from paddle_mnist.data.loading import Loading as Loading
    from paddle_mnist.inference.export_run import export_run as export_run
    from paddle_mnist.inference.predict_run import predict_run as predict_run
    from paddle_mnist.interfaces import Observer as Observer
    from paddle_mnist.metrics.paddle_metrics import Gathered as Gathered
    from paddle_mnist.metrics.sums import Mean as Mean
    from paddle_mnist.metrics.sums import Sums as Sums
    from paddle_mnist.mnist.config import TrainConfig as TrainConfig
    from paddle_mnist.mnist.dataset import MnistDataset as MnistDataset
    from paddle_mnist.mnist.dataset import load_data as load_data
    from paddle_mnist.mnist.model import MNIST as MNIST
    from paddle_mnist.mnist.predictor import DigitPredictor as DigitPredictor
    from paddle_mnist.mnist.run import train_and_evaluate as train_and_evaluate
    from paddle_mnist.monitor.watch import watch as watch
    from paddle_mnist.nn.conv_blocks import ConvBlocks as ConvBlocks
    from paddle_mnist.nn.numerics import Numerics as Numerics
    from paddle_mnist.parallel.processes import Processes as Processes
    from paddle_mnist.training.callbacks import Callback as Callback
    from paddle_mnist.training.callbacks import FitResult as FitResult
    from paddle_mnist.training.early_stopping import EarlyStopping as EarlyStopping
    from paddle_mnist.training.evaluating import Evaluating as Evaluating
    from paddle_mnist.training.evaluator import evaluate as evaluate
    from paddle_mnist.training.fit import fit as fit
    from paddle_mnist.training.looking_inside import PrintLayers as PrintLayers
    from paddle_mnist.training.looking_inside import Profile as Profile
    from paddle_mnist.training.looking_inside import Watch as Watch
    from paddle_mnist.training.rehearsing import is_rehearsal as is_rehearsal
    from paddle_mnist.training.reporting import Console as Console
    from paddle_mnist.training.reporting import Figures as Figures
    from paddle_mnist.training.reporting import VisualDL as VisualDL
    from paddle_mnist.training.start import StartFrom as StartFrom
    from paddle_mnist.training.trained_model import evaluate_run as evaluate_run
    from paddle_mnist.training.trained_model import load_model as load_model
    from paddle_mnist.training.trainer import Trainer as Trainer

# Weights that come with the package: the word that stands for them, and what returns them.
PACKAGED_WEIGHTS = {"pretrained": "paddle_mnist.mnist.pretrained:pretrained_weights"}

__all__ = sorted(_PUBLIC)
__version__ = "0.3.0"


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name != "TrainConfig":
            from paddle_mnist.system.devices import require_paddle

            require_paddle()
        return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

# The public names, each once: checkers of types and editors read them here, and `__init__.py` finds
# here which module each is in.
from paddle_mnist.checkpoint.saving import Saving as Saving
from paddle_mnist.data.external import ResumableBatchSampler as ResumableBatchSampler
from paddle_mnist.data.loader import BatchLoader as BatchLoader
from paddle_mnist.data.loading import Loading as Loading
from paddle_mnist.inference.export import export_run as export_run
from paddle_mnist.inference.predict_run import predict_run as predict_run
from paddle_mnist.interfaces import Observer as Observer
from paddle_mnist.interfaces import View as View
from paddle_mnist.metrics.paddle_metrics import Gathered as Gathered
from paddle_mnist.metrics.sums import Mean as Mean
from paddle_mnist.metrics.sums import Sums as Sums
from paddle_mnist.mnist.config import TrainConfig as TrainConfig
from paddle_mnist.mnist.dataset import MnistDataset as MnistDataset
from paddle_mnist.mnist.dataset import load_data as load_data
from paddle_mnist.mnist.evaluation import evaluate as evaluate
from paddle_mnist.mnist.model import MNIST as MNIST
from paddle_mnist.mnist.predictor import DigitPredictor as DigitPredictor
from paddle_mnist.mnist.print_layers import PrintLayers as PrintLayers
from paddle_mnist.mnist.setup import train_and_evaluate as train_and_evaluate
from paddle_mnist.monitor.watch import watch as watch
from paddle_mnist.nn.conv_blocks import ConvBlocks as ConvBlocks
from paddle_mnist.nn.numerics import Numerics as Numerics
from paddle_mnist.parallel.processes import Processes as Processes
from paddle_mnist.proof.prove import prove as prove
from paddle_mnist.training.arguments import Evaluating as Evaluating
from paddle_mnist.training.arguments import StartFrom as StartFrom
from paddle_mnist.training.bundled import Console as Console
from paddle_mnist.training.bundled import EarlyStopping as EarlyStopping
from paddle_mnist.training.bundled import Figures as Figures
from paddle_mnist.training.bundled import Profile as Profile
from paddle_mnist.training.bundled import VisualDL as VisualDL
from paddle_mnist.training.bundled import Watch as Watch
from paddle_mnist.training.callbacks import Callback as Callback
from paddle_mnist.training.callbacks import FitResult as FitResult
from paddle_mnist.training.callbacks import Training as Training
from paddle_mnist.training.callbacks import is_rehearsal as is_rehearsal
from paddle_mnist.training.fit import fit as fit
from paddle_mnist.training.range_test import RangeTest as RangeTest
from paddle_mnist.training.range_test import find_learning_rate as find_learning_rate
from paddle_mnist.training.tensorboard import TensorBoard as TensorBoard
from paddle_mnist.training.trained_model import evaluate_run as evaluate_run
from paddle_mnist.training.trained_model import load_model as load_model
from paddle_mnist.training.trainer import Trainer as Trainer
from paddle_mnist.training.unfreeze import Unfreeze as Unfreeze

PACKAGED_WEIGHTS: dict[str, str]
__all__: list[str]
__version__: str

"""The net as a file that needs none of this package: pixels in, chosen outputs out."""

import hashlib
import importlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

import paddle_mnist
from paddle_mnist.checkpoint.contents import optimizer_state
from paddle_mnist.checkpoint.manifest import TRAINING, Checkpoint
from paddle_mnist.checkpoint.safe_load import NAME_TABLE
from paddle_mnist.errors import CheckpointError, ConfigError, DeviceError
from paddle_mnist.inference.predictor import ABOUT, INPUT, ONNX, OUTPUTS, PROGRAMS, Predictor
from paddle_mnist.mnist.arrays import SIZE
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.monitor.watch import evaluation_mode
from paddle_mnist.system.files import make_folder, remove, sync_folder, write_atomically

DIVISOR = 256  # the pixel scale of every MNIST source here
OPSET = 14  # of ONNX, 2021: old enough for every runtime
CHECKED = 100  # images
TOLERANCE = 1e-4  # of an output, as a share of its largest value, or of 1


class ExportedModel(nn.Layer):
    """The net as it is exported: uint8 [B, 28, 28], 0 to 255, white on black, to chosen outputs.

    outputs: names of `OUTPUTS`; layers give what comes out of them, [B, channels, height, width].
    """

    def __init__(self, model: MNIST, outputs: Sequence[str]):
        super().__init__()
        self.model = model
        self.outputs = tuple(outputs)

    def forward(self, images: paddle.Tensor) -> list[paddle.Tensor]:
        pixels = paddle.reshape(images, [-1, 1, SIZE, SIZE]).astype("float32") / DIVISOR
        seen = {}
        hooks = [
            layer.register_forward_post_hook(
                lambda layer, given, output, name=name: seen.__setitem__(name, output)
            )
            for name, layer in self.model.named_children()
        ]
        seen["logits"] = self.model.logits(pixels)
        for hook in hooks:
            hook.remove()
        seen["probabilities"] = F.softmax(seen["logits"])
        return [seen[name] for name in self.outputs]


def export_model(
    model: MNIST,
    folder: Path,
    outputs: Sequence[str] = ("logits", "probabilities"),
    form: str = "paddle",
    about: Mapping[str, Any] = (),
) -> dict[str, Any]:
    """Write a model for inference into a folder, and prove that it computes the same.

    form: "paddle": `inference.json`, or `.pdmodel` where Paddle writes that, with
        `inference.pdiparams`; "onnx": `model.onnx`.
    about: more for `about.json`, which names the files, inputs and outputs, and commits them.

    Gives what is in `about.json`; `difference`: the largest, over 100 images and all outputs.
    Raises ConfigError for an unknown output, DeviceError where a package is missing, OutputError,
    and CheckpointError if the exported form gives other outputs than the model; then what was in
    the folder stays.
    """
    unknown = [name for name in outputs if name not in OUTPUTS]
    if unknown or not outputs or len(set(outputs)) < len(outputs):
        raise ConfigError(
            f"outputs are {','.join(outputs) or 'none'}; expected some of {', '.join(OUTPUTS)}, "
            "each once"
        )
    if form not in FORMS or not isinstance(model, MNIST):
        raise ConfigError(
            f"form is {form!r} and the model {type(model).__name__}; expected "
            f"{' or '.join(FORMS)}, and MNIST"
        )
    served = ExportedModel(model, outputs)
    with evaluation_mode(served), tempfile.TemporaryDirectory() as made:
        files = FORMS[form](served, Path(made))
        told = {
            **dict(about),
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            "input": {"name": INPUT, "dtype": "uint8", "shape": [-1, SIZE, SIZE]},
            "outputs": list(outputs),
            "paddle": paddle.__version__,
            "package": paddle_mnist.__version__,
        }
        Path(made, ABOUT).write_text(json.dumps(told))
        told["difference"] = _difference(served, Path(made))
    folder = Path(folder)
    make_folder(folder)
    for name in (ABOUT, *PROGRAMS, ONNX):  # while files change, nothing is exported there
        remove(folder / name)
    for name, data in files.items():
        write_atomically(folder / name, data)
    sync_folder(folder)
    write_atomically(folder / ABOUT, json.dumps(told, indent=1).encode())
    sync_folder(folder)
    return told


def _write(served: ExportedModel, folder: Path) -> dict[str, bytes]:
    spec = paddle.static.InputSpec([None, SIZE, SIZE], "uint8", INPUT)
    paddle.jit.save(served, str(folder / "inference"), input_spec=[spec])
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _write_onnx(served: ExportedModel, folder: Path) -> dict[str, bytes]:
    try:
        convert = importlib.import_module("paddle2onnx").export
        importlib.import_module("onnxruntime")
    except ImportError as error:
        raise DeviceError(
            f"{error.name} cannot be imported ({error}); expected paddle2onnx and onnxruntime; "
            "install them with pip install 'paddle_mnist[onnx]'"
        ) from error
    _write(served, folder)
    (program,) = (folder / name for name in PROGRAMS if (folder / name).exists())
    path = folder / ONNX
    # No tool of its own: it would install packages while it runs, and ONNX Runtime folds as well.
    files = (str(program), str(program.with_suffix(".pdiparams")), str(path))
    convert(*files, OPSET, verbose=False, optimize_tool="None")
    return {ONNX: path.read_bytes()}


def _difference(served: ExportedModel, folder: Path) -> float:
    """Raises CheckpointError if it is more than rounding."""
    images = open_data("digits")["eval"].images[:CHECKED]
    found = Predictor(folder, device="cpu").run(images)
    with paddle.no_grad():
        expected = [value.numpy() for value in served(paddle.to_tensor(np.asarray(images)))]
    largest = 0.0
    for name, value in zip(served.outputs, expected):
        difference = np.abs(found[name] - value).max()
        scale = max(1.0, np.abs(value).max())  # large values are rounded more
        largest = max(largest, float(difference))
        if not difference <= TOLERANCE * scale:
            raise CheckpointError(
                f"{name} of the exported model differs by {difference:.3g} from the net's; "
                f"expected at most {TOLERANCE * scale:.3g}; nothing is exported; report this"
            )
    return largest


FORMS = {"paddle": _write, "onnx": _write_onnx}


def variables(
    model: MNIST, checkpoint: Optional[Checkpoint] = None
) -> dict[str, list[tuple[str, list[int]]]]:
    """Fluid's three kinds of variable, for this net: names and shapes; of a plain number, [].

    parameters: what is trained. persistables: what is kept, parameters included: the net has
    nothing beside them; a checkpoint has its optimizer's moments and learning-rate schedule, and
    where it holds a moving average of the weights, the weights in training too. temporaries: what a
    training step on one image makes, and no file holds: layers' outputs and gradients.

    checkpoint: of these weights; None for weights alone. Raises CheckpointError if it is damaged.
    """
    parameters = [(name, list(value.shape)) for name, value in model.named_parameters()]
    persistables = [(name, list(value.shape)) for name, value in model.state_dict().items()]
    if checkpoint:
        if checkpoint.has_file(TRAINING):
            weights = checkpoint.load(TRAINING)
            persistables += [
                (f"{name} in training", list(value.shape))
                for name, value in weights.items()
                if name != NAME_TABLE
            ]
        persistables += [
            (name, list(np.shape(value))) for name, value in optimizer_state(checkpoint).items()
        ]
    served = ExportedModel(model, OUTPUTS)
    with paddle.no_grad():
        made = served(paddle.zeros([1, SIZE, SIZE], "uint8"))
    temporaries = [(name, list(value.shape)) for name, value in zip(OUTPUTS, made)]
    temporaries += [(f"{name} gradient", shape) for name, shape in parameters]
    return {"parameters": parameters, "persistables": persistables, "temporaries": temporaries}

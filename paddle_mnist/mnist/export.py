"""Export the net: pixels in, chosen outputs out."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.checkpoint.contents import optimizer_state
from paddle_mnist.checkpoint.manifest import TRAINING, Checkpoint
from paddle_mnist.errors import ConfigError
from paddle_mnist.inference.export import export_layer
from paddle_mnist.inference.predictor import Input, Signature
from paddle_mnist.mnist.images import open_data
from paddle_mnist.mnist.own_nets import DigitNet, is_tutorials
from paddle_mnist.mnist.splits import SIZE
from paddle_mnist.nn.state_dict import NAME_TABLE

DIVISOR = 256  # the pixel scale of every MNIST source here
CHECKED_IMAGES = 100
WARM_UP_IMAGES = 64  # for which Paddle's layers are done before the compiled net is loaded
INPUT = "images"
USUAL_OUTPUTS = ("logits", "probabilities")  # of any net
OUTPUTS = {  # of the tutorial's, and the shape of each for one image
    "logits": (10,),
    "probabilities": (10,),
    "conv1": (20, 28, 28),
    "relu1": (20, 28, 28),
    "max_pool1": (20, 14, 14),
    "conv2": (20, 14, 14),
    "relu2": (20, 14, 14),
    "max_pool2": (20, 7, 7),
}


def signature(outputs: tuple[str, ...]) -> Signature:
    """Return the signature of an MNIST model with these outputs."""
    return Signature((Input(INPUT, "uint8", (SIZE, SIZE)),), outputs)


class ExportedModel(nn.Layer):
    """A net as it is exported: from pixels, uint8 [B, 28, 28], to chosen outputs.

    Pixels are 0 to 255, white on black. outputs: some of the net's `output_names`; a layer's name
    stands for its output, float32 [B, channels, height, width]. Raises ConfigError for others.
    """

    def __init__(self, model: nn.Layer, outputs: Sequence[str]):
        super().__init__()
        unknown = [name for name in outputs if name not in output_names(model)]
        if unknown or not outputs or len(set(outputs)) < len(outputs):
            raise ConfigError(
                f"outputs are {','.join(outputs) or 'none'}; expected one or more of "
                f"{', '.join(output_names(model))}, without repeats"
            )
        self.model: Any = model if is_tutorials(model) else DigitNet(model)
        self.outputs = tuple(outputs)

    def forward(self, images: paddle.Tensor) -> list[paddle.Tensor]:
        pixels = paddle.reshape(images, [-1, 1, SIZE, SIZE]).astype("float32") / DIVISOR
        values: dict[str, paddle.Tensor] = {}
        hooks = [
            layer.register_forward_post_hook(functools.partial(_keep_output, values, name))
            for name, layer in self.model.named_children()
            if name in self.outputs
        ]
        values["logits"] = self.model.logits(pixels)
        for hook in hooks:
            hook.remove()
        values["probabilities"] = F.softmax(values["logits"])
        return [values[name] for name in self.outputs]


def _keep_output(
    values: dict[str, paddle.Tensor], name: str, layer: nn.Layer, inputs: Any, output: paddle.Tensor
) -> None:
    values[name] = output


def conv_for(count: int) -> str:
    """Return the `fast_conv` that is fastest for this number of images."""
    return "auto" if count >= WARM_UP_IMAGES else "off"


def output_names(model: nn.Layer) -> tuple[str, ...]:
    """Return the names of the outputs with which a net can be exported."""
    return tuple(OUTPUTS) if is_tutorials(model) else USUAL_OUTPUTS


def checked_images() -> np.ndarray:
    """Return the images on which an exported model must agree with the net: uint8 [N, 28, 28]."""
    return np.asarray(open_data("digits")["eval"].images[:CHECKED_IMAGES])


def export_model(
    model: nn.Layer,
    folder: Path,
    outputs: Sequence[str] = USUAL_OUTPUTS,
    format: str = "paddle",
    about: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Export a model to a folder, and check on 100 images that it computes the same there.

    model: the tutorial's, or one that takes float32 [N, 1, 28, 28] and returns logits [N, 10].
    outputs: names of `OUTPUTS`, for other nets "logits" and "probabilities"; layers after the last
        of them are left out.
    format: "paddle": `inference.json`, or `.pdmodel` where Paddle writes that, with
        `inference.pdiparams`; "onnx": `model.onnx`.
    about: further entries of `about.json`, which names the files, the input and the outputs, and
        commits them.

    Returns the contents of `about.json`; `difference` is the largest one over all outputs.
    Raises ConfigError for an unknown output or a net with other outputs, DeviceError where a
    package is missing, OutputError, and CheckpointError if the exported model gives other outputs
    than the net; then the folder keeps its contents.
    """
    if not isinstance(model, nn.Layer):
        raise ConfigError(f"the model is a {type(model).__name__}; expected a paddle.nn.Layer")
    return export_layer(
        ExportedModel(model, outputs),
        folder,
        signature(tuple(outputs)),
        check_inputs=[checked_images()],
        format=format,
        about=about,
    )


def variables(
    model: nn.Layer, checkpoint: Optional[Checkpoint] = None
) -> dict[str, list[tuple[str, list[int]]]]:
    """Return Fluid's three kinds of variable of this net: names and shapes ([] for a number).

    parameters: trained by the optimizer. persistables: saved in files, parameters included. The
    net has no others; a checkpoint adds the optimizer's moments and learning-rate schedule and, if
    it holds a moving average of the weights, the weights in training. temporaries: computed by a
    training step on one image but not saved: the layers' outputs and the gradients.

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
    with paddle.no_grad():
        names = output_names(model)
        outputs = ExportedModel(model, names)(paddle.zeros([1, SIZE, SIZE], "uint8"))
    temporaries = [(name, list(value.shape)) for name, value in zip(names, outputs)]
    temporaries += [(f"{name} gradient", shape) for name, shape in parameters]
    return {"parameters": parameters, "persistables": persistables, "temporaries": temporaries}

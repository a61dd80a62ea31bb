"""Custom nets in place of the tutorial's, for the same images."""

import runpy
import sys
from pathlib import Path
from typing import Any, Optional, Union

import paddle
from paddle import nn

from paddle_mnist.checkpoint.names import SavedWeights
from paddle_mnist.data.structures import describe_batch, explained
from paddle_mnist.errors import CheckpointError, ConfigError, PaddleMnistError, summary
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.splits import CLASSES, SIZE
from paddle_mnist.nn.layers import evaluation_mode
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.training.trained_model import Model, build_model

OwnNet = Union[str, Model]  # FILE.py:CLASS, the function or class that builds the net, or the net


def load_net(weights: SavedWeights, net: Optional[OwnNet] = None) -> nn.Layer:
    """Return a net, the tutorial's or `net`, with weights.

    net: takes images, float32 [N, 1, 28, 28] in 0..1, and returns logits [N, 10].
    Raises CheckpointError if the weights do not fit the net, or if they come from a run of `fit`
    and no net is given; ConfigError for a net that cannot be built.
    """
    if net is None and weights.run.is_of_fit:
        raise CheckpointError(
            f"{weights.run.path}: trained by paddle_mnist.fit; expected its net, which only your "
            "own code can build: give --net FILE.py:CLASS, in Python the argument net"
        )
    model = _from_file(net) if isinstance(net, str) else build_model(MNIST if net is None else net)
    load_weights(model, weights.values, weights.path)
    return model


def _from_file(net: str) -> nn.Layer:
    """Execute a file, and return the net that a class or function in it builds."""
    file, _, name = net.rpartition(":")
    path = Path(file).expanduser()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"net is {net}; expected FILE.py:CLASS of an existing file")
    sys.path.append(str(path.resolve().parent))  # the file may import modules beside it
    try:
        values = runpy.run_path(str(path))
        if name in values:
            return build_model(values[name])
    except PaddleMnistError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path}: cannot be executed ({summary(error)}); {name} is called without arguments"
        ) from error
    raise ConfigError(f"{path}: has no {name}; expected the class or function of the net")


def is_tutorials(model: Any) -> bool:
    """Return whether a net uses the `forward` of the tutorial's net."""
    return getattr(type(model), "forward", None) is MNIST.forward


class DigitNet(nn.Layer):
    """A custom net, called as the tutorial's: float32 [N, 1, 28, 28] -> logits [N, 10].

    net: may also return probabilities. Raises ConfigError for a net with other outputs.
    """

    def __init__(self, net: nn.Layer):
        super().__init__()
        self.net = net
        images = paddle.zeros([1, 1, SIZE, SIZE])
        with evaluation_mode(self), paddle.no_grad(), explained(images, "the net"):
            scores = net(images)
        if getattr(scores, "shape", None) != [1, CLASSES]:
            raise ConfigError(
                f"the net returns {describe_batch(scores)} for {describe_batch(images)}; expected "
                f"float32 [1, {CLASSES}], logits"
            )
        values = scores.numpy()
        self.ends_in_softmax = bool((values >= 0).all() and abs(values.sum() - 1) < 1e-3)

    def forward(self, images: paddle.Tensor) -> paddle.Tensor:
        scores = self.net(images)
        # The logarithms of probabilities are logits of the same.
        return paddle.log(scores + 1e-30) if self.ends_in_softmax else scores

    logits = forward

"""The net that weights belong to: the tutorial's, or one of the user's own for the same images."""

import glob
import runpy
import sys
from pathlib import Path
from typing import Optional, Union

import paddle
from paddle import nn

from paddle_mnist.checkpoint.names import SavedWeights
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.errors import CheckpointError, ConfigError, PaddleMnistError, summary
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.training.trained_model import Model, build_model

OwnNet = Union[str, Model]  # FILE.py:CLASS, the function or class that builds the net, or the net


def load_net(weights: SavedWeights, net: Optional[OwnNet] = None) -> nn.Layer:
    """Return a net with weights: the tutorial's, or `net`.

    net: takes images, float32 [N, 1, 28, 28] in 0..1, and returns logits [N, 10].
    Raises CheckpointError if the weights do not fit the net, or if `fit` has trained them and no
    net is given; ConfigError for a net that cannot be built.
    """
    if net is None and weights.run.is_of_fit:
        raise CheckpointError(
            f"{weights.run.path}: trained by paddle_mnist.fit; expected its net, which only your "
            "own code can build: give --net FILE.py:CLASS, in Python the argument net"
        )
    model = _from_file(net) if isinstance(net, str) else build_model(MNIST if net is None else net)
    load_weights(model, weights.values, weights.path)
    return model


def saved_program(path: Path) -> Optional[Path]:
    """Return the prefix of the files of `paddle.jit.save` that a path names; None for others.

    path: the prefix, one of the files, or a folder that holds no other model.
    """
    ends = (".json", ".pdmodel", ".pdiparams")
    prefix = path.with_suffix("") if path.suffix in ends else path
    if path.is_dir():
        found = list(path.glob("*.pdiparams"))
        prefix = found[0].with_suffix("") if len(found) == 1 else path
    return prefix if Path(f"{prefix}.pdiparams").is_file() else None


def load_program(prefix: Path) -> nn.Layer:
    """Return the net that `paddle.jit.save` wrote. Raises CheckpointError if it is damaged."""
    if prefix.is_dir():  # Paddle would read that instead, and unpickle another file there
        raise CheckpointError(f"{prefix}: a folder, and the prefix of a model; rename one of them")
    for info in prefix.parent.glob(f"{glob.escape(prefix.name)}*.info"):
        safe_load(info)  # Paddle unpickles what Paddle 2 wrote here, and so would execute it
    try:
        layer: nn.Layer = paddle.jit.load(str(prefix))
    except Exception as error:  # one of many classes, from Paddle's C++
        raise CheckpointError(
            f"{prefix}: cannot be loaded ({summary(error)}); Paddle 3 loads a .pdmodel only with "
            "FLAGS_enable_pir_api=0 in the environment"
        ) from error
    return layer


def _from_file(net: str) -> nn.Layer:
    """Execute a file, and return the net that a class or function in it builds."""
    file, _, name = net.rpartition(":")
    path = Path(file).expanduser()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"net is {net}; expected FILE.py:CLASS, and the file to be there")
    sys.path.append(str(path.resolve().parent))  # what the file imports may stand beside it
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

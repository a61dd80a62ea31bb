"""Rejects inputs that are probably not a single digit.

The net has only seen digits, and gives a confident answer to any picture. A second, small net
looks at the features of its last convolution. It was trained to tell digits from drawings that show
none ("outlier exposure": Hendrycks, Mazeika, Dietterich, "Deep anomaly detection with outlier
exposure", 2019). Training it leaves the net that reads the digits as it is.

`python tools/reproduce.py --only detector --data MNIST` makes the packaged one again;
docs/en/design-notes.md says what it catches.
"""

import functools
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paddle
from paddle.nn import functional as F

from paddle_mnist.errors import CheckpointError
from paddle_mnist.mnist import pretrained
from paddle_mnist.mnist.export import DIVISOR, conv_for
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.splits import SIZE

SHIFTS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))  # pixels down and to the right
THRESHOLD = 0.5  # a score below it: probably not one digit
FILE = Path(pretrained.__file__).parent / "detector.npz"
ARRAYS = ("mean", "scale", "hidden_weight", "hidden_bias", "weight", "bias")


@dataclass(frozen=True)
class Detector:
    """A net with one hidden layer, for the features of the packaged weights.

    mean, scale: float [980], of the square roots of the features of MNIST's training images.
    hidden_weight: float [980, H]. hidden_bias: float [H]. weight: float [H]. bias: float; it holds
    the threshold, so that a score of THRESHOLD is where digits end.
    """

    mean: np.ndarray
    scale: np.ndarray
    hidden_weight: np.ndarray
    hidden_bias: np.ndarray
    weight: np.ndarray
    bias: np.ndarray

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Return how much each image looks like one digit: float64 [N], 0 to 1.

        features: float [M, N, 980], the `packaged_features` of `shifted_copies`.
        """
        logits = np.clip(self.logits(features).mean(axis=0), -50, 50).astype(np.float64)
        scores: np.ndarray = 1 / (1 + np.exp(-logits))
        return scores

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Return the logarithm of the odds that it is a digit: float [...] for [..., 980]."""
        values = (np.sqrt(np.maximum(features, 0)) - self.mean) / self.scale
        hidden = np.maximum(values @ self.hidden_weight + self.hidden_bias, 0)
        logits: np.ndarray = hidden @ self.weight + self.bias
        return logits


def read_detector(path: Path) -> Detector:
    """Read a detector. Raises CheckpointError if it is damaged, or made for other weights."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name].astype(np.float32) for name in ARRAYS}
            weights = json.loads(str(file["about"]))["weights"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: damaged ({error}); install the package again") from error
    expected = pretrained.about()["sha256"]
    if weights != expected:
        raise CheckpointError(
            f"{path}: made for the weights {weights[:12]}..., but the package's are "
            f"{expected[:12]}...; make it again with tools/reproduce.py --only detector"
        )
    return Detector(**arrays)


def shifted_copies(images: np.ndarray) -> np.ndarray:
    """Return images as they are and moved by a pixel each way, uint8 [M, N, 28, 28].

    The mean of their scores depends less on the exact position than a single score does.
    images: uint8 [N, 28, 28].
    """
    height, width = images.shape[1:]
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    return np.stack([padded[:, 1 - y : 1 - y + height, 1 - x : 1 - x + width] for y, x in SHIFTS])


@functools.lru_cache(1)
def packaged_net() -> MNIST:
    """Return the net with the weights that come with the package."""
    net = MNIST(pretrained=True)
    net.eval()
    return net


@paddle.no_grad()
def packaged_features(images: np.ndarray) -> paddle.Tensor:
    """Return the features of the packaged net: uint8 [..., 28, 28] -> float32 [..., 980]."""
    pixels = paddle.to_tensor(images.reshape(-1, 1, SIZE, SIZE).astype(np.float32) / DIVISOR)
    net = packaged_net()
    net.fast_conv = conv_for(len(pixels))
    return net.features(pixels).reshape([*images.shape[:-2], -1])


@paddle.no_grad()
def packaged_answers(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the packaged net's probabilities, float32 [N, 10], and the scores of `Detector`.

    images: uint8 [N, 28, 28], as `read_digits` makes them. The scores are those of the packaged
    weights, even if other weights read the digits.
    """
    features = packaged_features(shifted_copies(images))
    probabilities = F.softmax(packaged_net().fc(features[SHIFTS.index((0, 0))]))
    return probabilities.numpy(), packaged_detector().scores(features.numpy())


@functools.lru_cache(1)
def packaged_detector() -> Detector:
    """Return the detector that comes with the package."""
    return read_detector(FILE)

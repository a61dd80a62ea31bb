"""Random affine augmentation of batches, a pure function of (seed, epoch, sample index)."""

import math
from collections.abc import Mapping

import numpy as np
import paddle
from paddle.nn import functional as F

from paddle_mnist.mnist.arrays import SIZE


class Affine:
    """Rotates, shifts, scales and shears each image by random amounts, uniformly distributed.

    Pixels from outside the image are black; interpolation is bilinear.
    """

    def __init__(self, amounts: Mapping[str, float], seed: int):
        """amounts: the largest ones, by name; those that are missing are 0.

        rotate, shear: degrees, in both directions.
        shift: pixels, along each axis.
        scale: for factors between 1 - scale and 1 + scale.
        """
        self.rotate = math.radians(amounts.get("rotate", 0))
        self.shear = math.radians(amounts.get("shear", 0))
        self.shift = amounts.get("shift", 0) * 2 / SIZE  # the grid is 2 wide
        self.scale = amounts.get("scale", 0)
        self.seed = seed

    def __call__(self, images: paddle.Tensor, epoch: int, indices: np.ndarray) -> paddle.Tensor:
        """Transform the images float32 [B, 1, 28, 28] of the samples `indices` int64 [B]."""
        theta = paddle.to_tensor(self.matrices(epoch, indices))
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)

    def matrices(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Return the transformations, float32 [B, 2, 3], from output to input coordinates.

        Coordinates run from -1 to 1, as in `paddle.nn.functional.affine_grid`.
        """
        drawn = 2 * np.stack([self._uniform(epoch, index) for index in indices]) - 1
        angle, shear = self.rotate * drawn[:, 0], np.tan(self.shear * drawn[:, 1])
        size = 1 + self.scale * drawn[:, 2]
        cos, sin = np.cos(angle) / size, np.sin(angle) / size
        rows = [
            [cos, -sin + shear * cos, self.shift * drawn[:, 3]],
            [sin, cos + shear * sin, self.shift * drawn[:, 4]],
        ]
        return np.array(rows, np.float32).transpose(2, 0, 1)

    def _uniform(self, epoch: int, index: int) -> np.ndarray:
        """Draw five numbers in [0, 1) for a sample, whatever batch it is in.

        Philox is a counter-based generator (Salmon et al., "Parallel random numbers: as easy as
        1, 2, 3", 2011): key and counter determine the numbers. NumPy promises its raw stream.
        """
        raw = np.random.Philox(key=[self.seed, epoch], counter=[0, int(index), 0, 0]).random_raw(5)
        return (raw >> np.uint64(11)) * 2.0**-53

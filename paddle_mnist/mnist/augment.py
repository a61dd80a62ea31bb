"""Random distortions of batches, a pure function of (seed, epoch, sample index)."""

import functools
import math
from collections.abc import Mapping

import numpy as np
import paddle
from paddle.nn import functional as F

from paddle_mnist.mnist.splits import SIZE

SMOOTHNESS = 4.0  # pixels, of the elastic field's Gaussian: the value that Simard et al. found
SPACING = 2  # pixels between the random numbers that are smoothed; the field looks as smooth
NOISE = SIZE // SPACING
AFFINE_DRAWS = 5  # 64-bit numbers a sample
ELASTIC_DRAWS = 2 * NOISE**2 // 4  # each is four numbers of the field


class Distortion:
    """Rotates, shifts, scales, shears and bends each image by random amounts.

    The first four are uniformly distributed. Bending is the elastic distortion of Simard et al.
    ("Best Practices for Convolutional Neural Networks", 2003): each pixel is displaced by a smooth
    random field, random numbers under a Gaussian of 4 pixels. Pixels from outside the image are
    black; interpolation is bilinear, once for all of them.
    """

    def __init__(self, amounts: Mapping[str, float], seed: int):
        """amounts: the largest amounts, by name; missing ones are 0.

        rotate, shear: degrees, in both directions.
        shift: pixels, along each axis.
        scale: for factors between 1 - scale and 1 + scale.
        elastic: pixels, the standard deviation of a pixel's displacement along each axis; 1.4 is
            what Simard et al. call alpha 34.
        """
        self.rotate = math.radians(amounts.get("rotate", 0))
        self.shear = math.radians(amounts.get("shear", 0))
        self.shift = amounts.get("shift", 0) * 2 / SIZE  # the grid is 2 wide
        self.scale = amounts.get("scale", 0)
        self.elastic = amounts.get("elastic", 0) * 2 / SIZE
        self.seed = seed

    def __call__(self, images: paddle.Tensor, epoch: int, indices: np.ndarray) -> paddle.Tensor:
        """Transform the images float32 [B, 1, 28, 28] of the samples `indices` int64 [B]."""
        raw = self.draw(epoch, indices)
        # As F.affine_grid, which takes five times as long (Paddle 3.3.1, CPU).
        grid = (_centres() @ self.matrices(raw).transpose(0, 2, 1)).reshape(-1, SIZE, SIZE, 2)
        if self.elastic:
            grid += self.displacements(raw)
        return F.grid_sample(images, paddle.to_tensor(grid), align_corners=False)

    def matrices(self, raw: np.ndarray) -> np.ndarray:
        """Return the affine transformations, float32 [B, 2, 3], from output to input coordinates.

        Coordinates run from -1 to 1, as in `paddle.nn.functional.affine_grid`. raw: of `draw`.
        """
        drawn = 2 * ((raw[:, :AFFINE_DRAWS] >> np.uint64(11)) * 2.0**-53) - 1
        angle, shear = self.rotate * drawn[:, 0], np.tan(self.shear * drawn[:, 1])
        size = 1 + self.scale * drawn[:, 2]
        cos, sin = np.cos(angle) / size, np.sin(angle) / size
        rows = [
            [cos, -sin + shear * cos, self.shift * drawn[:, 3]],
            [sin, cos + shear * sin, self.shift * drawn[:, 4]],
        ]
        return np.array(rows, np.float32).transpose(2, 0, 1)

    def displacements(self, raw: np.ndarray) -> np.ndarray:
        """Return the displacements of the elastic fields, float32 [B, 28, 28, 2]: x, y."""
        drawn = raw[:, AFFINE_DRAWS:].astype("<u8").view("<u2").astype(np.float32)
        noise = (drawn - 32767.5) * np.float32(12**0.5 / 65536)  # of variance 1
        weights = _smoothing()
        fields = weights @ noise.reshape(-1, 2, NOISE, NOISE) @ weights.T
        displacements: np.ndarray = np.float32(self.elastic) * fields.transpose(0, 2, 3, 1)
        return displacements

    def draw(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Draw the random bits of each sample, uint64 [B, N], independently of its batch.

        Philox is a counter-based generator (Salmon et al., "Parallel random numbers: as easy as
        1, 2, 3", 2011): key and counter determine the numbers. NumPy promises its raw stream.
        """
        count = AFFINE_DRAWS + (ELASTIC_DRAWS if self.elastic else 0)
        raw = np.empty((len(indices), count), np.uint64)
        generator = np.random.Philox(key=[self.seed, epoch], counter=[0, 0, 0, 0])
        start = generator.state  # setting it takes a quarter of the time of a new generator
        for row, index in zip(raw, indices):
            start["state"]["counter"][1] = index
            generator.state = start
            row[:] = generator.random_raw(count)
        return raw


@functools.cache
def _centres() -> np.ndarray:
    """Return the pixels' centres, float32 [784, 3]: x and y from -1 to 1, and 1, row by row."""
    places = (2 * np.arange(SIZE) + 1) / SIZE - 1
    y, x = np.meshgrid(places, places, indexing="ij")
    return np.stack([x.ravel(), y.ravel(), np.ones(SIZE**2)], axis=1).astype(np.float32)


@functools.cache
def _smoothing() -> np.ndarray:
    """Return the weights that smooth a row of independent random numbers, float32 [28, NOISE].

    Each row is a Gaussian of length 1, which keeps the variance, also at the edges.
    """
    places = np.arange(SIZE)[:, None] - SPACING * np.arange(NOISE) - (SPACING - 1) / 2
    weights = np.exp(-0.5 * (places / SMOOTHNESS) ** 2)
    rows: np.ndarray = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    return rows.astype(np.float32)

"""The embedded data set: scikit-learn's handwritten digits, for machines without MNIST."""

import importlib.util
from pathlib import Path

import numpy as np

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import SIZE, Split
from paddle_mnist.mnist.readers import open_unpacked

HELD_OUT = 300  # images in valid, and as many in eval; 1,197 remain to train on


def read_embedded_digits() -> dict[str, Split]:
    """Read scikit-learn's `digits`: 1,797 handwritten digits of 8x8 pixels, real but not MNIST.

    From the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak,
    UCI, 1998). Each is scaled to 20x20 in the middle of 28x28 pixels, as MNIST's digits are.
    The splits are fixed: sorted by label, about every sixth image is held out for valid and every
    sixth for eval. Each is in a fixed random order, as MNIST's are, so that the first images of a
    split show all ten digits.
    """
    small, labels = _read_small_digits()
    # Linear interpolation between pixel centres, in integers, so that every machine rounds alike:
    # weights are tenths, so levels 0..16 become 0..1600.
    centres = np.clip((np.arange(20) + 0.5) * 8 / 20 - 0.5, 0, 7)
    tenths = np.rint(10 * np.maximum(0, 1 - abs(centres - np.arange(8)[:, None]))).astype(np.int64)
    large = tenths.T @ small @ tenths
    margin = (SIZE - 20) // 2
    images = np.zeros((len(labels), SIZE, SIZE), np.uint8)
    images[:, margin:-margin, margin:-margin] = (large * 255 + 800) // 1600

    spacing = len(labels) / HELD_OUT
    valid, test = (((np.arange(HELD_OUT) + phase) * spacing).astype(int) for phase in (0.25, 0.75))
    train = np.setdiff1d(np.arange(len(labels)), np.concatenate([valid, test]))
    digits = Split(images, labels, 256)
    # RandomState, not Generator: NumPy promises its stream never changes (NEP 19).
    random = np.random.RandomState(0)
    indices = {"train": train, "valid": valid, "eval": test}
    return {mode: digits.take(random.permutation(index)) for mode, index in indices.items()}


def _read_small_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the images, 0..16 [N, 8, 8], and labels of scikit-learn's file, sorted by label.

    Without scikit-learn itself, which takes a second to import and unpacks with zlib (see
    `open_unpacked`).
    """
    spec = importlib.util.find_spec("sklearn")
    if not spec or not spec.submodule_search_locations:
        raise DataError(
            "scikit-learn, which has the digits, is not there; install the package again"
        )
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with open_unpacked(path) as stream:
        rows = np.loadtxt(stream, delimiter=",", dtype=np.int64)
    rows = rows[np.argsort(rows[:, -1], kind="stable")]
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.uint8)

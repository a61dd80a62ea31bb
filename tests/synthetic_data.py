"""Data made for tests: images with a pattern for each class, in every file form."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np

SIZES = {"train": 300, "valid": 60, "eval": 70}


def tiny_splits(sizes=SIZES, seed=0):
    """{mode: (images uint8 [N, 28, 28], labels uint8 [N])}: noisy copies of ten patterns."""
    random = np.random.RandomState(seed)
    patterns = random.randint(0, 256, (10, 7, 7)).repeat(4, 1).repeat(4, 2)
    splits = {}
    for mode, size in sizes.items():
        labels = random.randint(0, 10, size).astype(np.uint8)
        noise = random.randint(0, 256, (size, 28, 28))
        splits[mode] = ((0.7 * patterns[labels] + 0.3 * noise).astype(np.uint8), labels)
    return splits


def as_lists(splits, divisor=256):
    """Return the contents of AI Studio's file: [[rows of 784 numbers, labels], ...]."""
    return [
        [(images.reshape(-1, 784) / divisor).tolist(), labels.tolist()]
        for images, labels in splits.values()
    ]


def write_json(path: Path, splits, divisor=256) -> Path:
    return write_gzip(path, json.dumps(as_lists(splits, divisor)).encode())


def write_gzip(path: Path, data: bytes) -> Path:
    path.write_bytes(gzip.compress(data, 1))
    return path


def idx_bytes(array: np.ndarray) -> bytes:
    magic = 2051 if array.ndim == 3 else 2049
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def training_files(splits):
    """The images and labels of the training files: `train` and `valid` of the splits, in order."""
    return [np.concatenate([splits["train"][i], splits["valid"][i]]) for i in (0, 1)]


def npz_arrays(splits) -> dict:
    """The arrays of Keras's mnist.npz."""
    (x_train, y_train), (x_test, y_test) = training_files(splits), splits["eval"]
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


def csv_bytes(images, labels, header="", end="\n") -> bytes:
    rows = np.column_stack([labels, images.reshape(-1, 784)]).tolist()
    lines = [header] if header else []
    return "".join(line + end for line in [*lines, *(",".join(map(str, r)) for r in rows)]).encode()


KAGGLE = ",".join(["label", *(f"pixel{number}" for number in range(784))])


def write_idx(folder: Path, splits) -> Path:
    """Four IDX files; `train` and `valid` of the splits are the training files, in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in {"train": training_files(splits), "t10k": splits["eval"]}.items():
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            write_gzip(folder / f"{name}-{kind}-ubyte.gz", idx_bytes(array))
    return folder

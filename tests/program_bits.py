"""Print the SHA-256 of the final weights and of the optimizer of each program of `fit_rows`.

    python tests/program_bits.py [NAME ...]

Each line has the name, the number of processes, and the digests of the contents of `.pdparams` and
`.pdopt`, which versions of the package may pickle differently. With two processes, batches have two
shards. A change that must not change bits changes no line, on the same machine and version of
Paddle. Another version of the package is measured by PYTHONPATH.
"""

import hashlib
import logging
import sys
import tempfile
from pathlib import Path

import numba  # noqa: F401, before Paddle 2, whose zlib breaks it
import numpy as np
import paddle
from fit_rows import ROWS, UNDIVIDED, train

from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.parallel.world import spawn

# Not compared: these need options that the first version compared (119b6a3) does not have.
YOUNGER = ("part of each epoch", "evaluation by steps", "endless batches")


def train_as_first(program, folder, **options):
    """Train with the names that Paddle gives to parameters in a new process."""
    with paddle.utils.unique_name.guard():
        return train(program, Path(folder, program), **options)


def train_divided(programs, folder):
    """Train in one of two processes."""
    logging.disable(logging.WARNING)
    for program in programs:
        train_as_first(program, folder, grad_shards=2)


def digest(path):
    """Return the SHA-256 of the entries of a file: of their names, dtypes, shapes and values."""
    sha256 = hashlib.sha256()
    for name, value in sorted(safe_load(path).items()):
        if isinstance(value, np.ndarray):
            value = value.dtype.str, value.shape, value.tobytes()
        sha256.update(repr((name, value)).encode())
    return sha256.hexdigest()


def digests_of(run):
    newest = max(run.glob("checkpoints/*.pdopt"), key=lambda path: path.stat().st_mtime_ns)
    return digest(run / "model.pdparams"), digest(newest)


def main(*names):
    programs = names or [row for row in ROWS if row not in YOUNGER]
    divided = [program for program in programs if program not in UNDIVIDED]
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder, "one"), Path(folder, "two")
        for program in programs:
            train_as_first(program, one)
        if divided:
            spawn(train_divided, (divided, str(two)), 2, device="cpu")
        for program in programs:
            print(program, 1, *digests_of(one / program), sep="\t")
            if program in divided:
                print(program, 2, *digests_of(two / program), sep="\t")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(*sys.argv[1:])

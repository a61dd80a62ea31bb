"""Work on a batch a few images at a time: by several threads, in memory that is used again."""

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import ThreadpoolController

CHUNK = 25  # images at most


def map_chunks(run: Callable[[slice], object], count: int, threads: int) -> list:
    """What `run` gives for each chunk of `count` images, in order.

    The chunks do not depend on the number of threads. They are an even number, nearly equal, so
    that two threads have the same to do.
    """
    pairs = -(-count // (2 * CHUNK))
    bounds = [count * i // (2 * pairs) for i in range(2 * pairs + 1)]
    chunks = [slice(a, b) for a, b in zip(bounds, bounds[1:]) if a < b]

    def quietly(chunk: slice) -> object:
        with np.errstate(all="ignore"):  # what is not finite is told by who looks at the loss
            return run(chunk)

    with _turns, _blas().limit(limits=1):  # its own threads would be in the way of ours
        return list((_pool(threads, os.getpid()).map if threads > 1 else map)(quietly, chunks))


# BLAS has one number of threads a process, so the calls of several threads take turns: a later one
# would else restore what an earlier one has set. A fork waits for the call that is under way.
_turns = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_turns.acquire, after_in_parent=_turns.release, after_in_child=_turns.release
    )


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The threads of a process, by its number: a forked child has none of its parent's."""
    return ThreadPoolExecutor(threads, "chunks")


class _Scratch(threading.local):
    """A thread's arrays for what lives within a chunk; zero at first."""

    def __init__(self):
        self.arrays: dict[str, np.ndarray] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
        if name not in self.arrays or len(self.arrays[name]) < shape[0]:
            self.arrays[name] = np.zeros(shape, dtype)
        return self.arrays[name][: shape[0]]


scratch = _Scratch()

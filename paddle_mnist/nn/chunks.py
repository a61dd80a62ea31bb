"""Runs work on a batch in chunks of a few samples, on several threads, and reuses memory."""

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import ThreadpoolController

CHUNK_SIZE = 25  # samples at most


def map_chunks(run: Callable[[slice], object], count: int, threads: int) -> list:
    """Call `run` for each chunk of `count` samples and return the results in order.

    The chunks do not depend on the number of threads. Their number is even and their sizes nearly
    equal, so that two threads share the work evenly.
    """
    pairs = -(-count // (2 * CHUNK_SIZE))
    bounds = [count * i // (2 * pairs) for i in range(2 * pairs + 1)]
    chunks = [slice(a, b) for a, b in zip(bounds, bounds[1:]) if a < b]

    def run_without_warnings(chunk: slice) -> object:
        with np.errstate(all="ignore"):  # values that are not finite show in the loss
            return run(chunk)

    with _blas_lock, _blas().limit(limits=1):  # BLAS's own threads would compete with these
        if threads > 1:
            return list(_thread_pool(threads, os.getpid()).map(run_without_warnings, chunks))
        return list(map(run_without_warnings, chunks))


# The number of BLAS threads is global to the process, so only one call at a time may change it: of
# two, the later one would restore what the earlier one had set. A fork waits for a running call.
_blas_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_blas_lock.acquire,
        after_in_parent=_blas_lock.release,
        after_in_child=_blas_lock.release,
    )


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


@functools.cache
def _thread_pool(threads: int, process_id: int) -> ThreadPoolExecutor:
    """Return the threads of a process, by its id: a forked child has none of its parent's."""
    return ThreadPoolExecutor(threads, "chunks")


class _Scratch(threading.local):
    """A thread's reusable arrays for intermediate results of one chunk, initialised with zeros."""

    def __init__(self):
        self.arrays: dict[str, np.ndarray] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
        if name not in self.arrays or len(self.arrays[name]) < shape[0]:
            self.arrays[name] = np.zeros(shape, dtype)
        return self.arrays[name][: shape[0]]


scratch = _Scratch()

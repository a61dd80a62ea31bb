"""The threads that share a batch, where there are several users of them."""

import multiprocessing
import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from paddle_mnist.nn.chunks import map_chunks


def blas_threads() -> int:
    """The least of all BLAS libraries: SciPy brings its own, which nothing here uses or limits."""
    return min(info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas")


@pytest.fixture
def two_blas_threads():
    """Set by a thread that ends: while it lives, threadpoolctl lets no other one change them."""

    def set_by_a_thread(number):
        thread = threading.Thread(target=threadpool_limits, args=(number, "blas"))
        thread.start()
        thread.join()

    before = blas_threads()
    set_by_a_thread(2)
    yield
    set_by_a_thread(before)


@pytest.mark.parametrize("threads", [1, 2])
def test_overlapping_calls_leave_blas_its_threads(threads, two_blas_threads):
    """The one that began first ends first, inside the other if they were not to take turns."""
    first_inside, second_inside = threading.Event(), threading.Event()
    inside = []

    def run_first(chunk):
        inside.append(blas_threads())
        first_inside.set()
        second_inside.wait(timeout=1)

    def run_second(chunk):
        second_inside.set()
        first.join(timeout=60)
        inside.append(blas_threads())

    first = threading.Thread(target=map_chunks, args=(run_first, 2, threads))
    second = threading.Thread(target=map_chunks, args=(run_second, 2, threads))
    first.start()
    first_inside.wait(timeout=60)
    second.start()
    second.join(timeout=60)
    assert blas_threads() == 2
    assert inside == [1, 1, 1, 1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_child_has_threads_of_its_own():
    """Also when another thread is inside at the moment of the fork."""
    assert map_chunks(lambda chunk: chunk.start, 100, 2) == [0, 25, 50, 75]
    busy = threading.Thread(target=map_chunks, args=(lambda chunk: work(), 100, 2))
    busy.start()
    children = [
        multiprocessing.get_context("fork").Process(target=map_chunks, args=(str, 100, 2))
        for _ in range(3)
    ]
    try:
        for child in children:
            child.start()
            child.join(timeout=60)
        assert [child.exitcode for child in children] == [0, 0, 0]
    finally:
        for child in children:
            child.kill()
        busy.join()


def work() -> np.ndarray:
    return np.ones((300, 300)) @ np.ones((300, 300))

"""The threads that share a batch, where there are several users of them."""

import multiprocessing
import threading
import time

import pytest

from paddle_mnist.nn.chunks import map_chunks

FOUR = [slice(25 * number, 25 * (number + 1)) for number in range(4)]


def test_map_chunks_several_callers_get_their_results_in_order():
    results = {}

    def call(caller: int) -> None:
        def run(number, chunk):
            time.sleep(0.001 * (5 - number))  # the last chunk ends first
            return caller, number, chunk.start

        results[caller] = map_chunks(run, FOUR, 2)

    callers = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    for caller in range(4):
        assert results[caller] == [(caller, number, 25 * number) for number in range(4)]


@pytest.mark.parametrize("threads", [1, 2])
def test_map_chunks_error_is_raised_after_the_other_chunks(threads):
    finished = []

    def run(number, chunk):
        if number == 0:
            raise KeyboardInterrupt
        time.sleep(0.05)
        finished.append(number)

    with pytest.raises(KeyboardInterrupt):
        map_chunks(run, FOUR, threads)
    assert sorted(finished) == [1, 2, 3]
    assert map_chunks(lambda number, chunk: number, FOUR, threads) == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_map_chunks_in_forked_children_starts_new_threads():
    """Also when another thread is inside at the moment of the fork."""
    assert map_chunks(lambda number, chunk: chunk.start, FOUR, 2) == [0, 25, 50, 75]
    busy = threading.Thread(target=map_chunks, args=(lambda *_: time.sleep(0.2), FOUR, 2))
    busy.start()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=map_chunks, args=(lambda *_: None, FOUR, 2))
    try:
        child.start()
        child.join(timeout=60)
        assert child.exitcode == 0
    finally:
        child.kill()
        busy.join()


def test_map_chunks_two_threads_compute_at_once():
    both = threading.Barrier(2, timeout=60)
    assert map_chunks(lambda number, chunk: both.wait() >= 0, FOUR[:2], 2) == [True, True]

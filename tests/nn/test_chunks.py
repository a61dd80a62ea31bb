"""The threads that share a batch, where there are several users of them."""

import itertools
import multiprocessing
import sys
import threading
import time

import pytest

from paddle_mnist.nn.chunks import map_chunks

FOUR = [slice(25 * number, 25 * (number + 1)) for number in range(4)]


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


def test_map_chunks_interrupt_just_after_the_last_chunk_is_raised():
    results = itertools.count(1)

    def interrupt(frame, event, function):
        if event == "c_return" and function.__name__ == "put" and next(results) == len(FOUR):
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            map_chunks(lambda *_: None, FOUR, 1)
    finally:
        sys.setprofile(None)


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

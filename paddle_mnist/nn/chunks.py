"""Runs work on a batch in chunks of a few samples, on several threads."""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Optional

SMALL, LARGE = 8, 25  # samples of a chunk, at most
MOST_SMALL = 32  # chunks: enough for many threads to share a batch evenly


@functools.lru_cache
def chunks_of(count: int, most_small: int = MOST_SMALL) -> tuple[slice, ...]:
    """Divide a batch of `count` samples, in the same way for any number of threads.

    Chunks have up to `SMALL` samples, so that many threads share a small batch. Where these would
    be more than `most_small` chunks, they are larger, up to `LARGE` samples: each chunk has sums of
    its own, which take memory. The number of chunks is even, except for a single sample, and their
    sizes are nearly equal, so that two threads share the work evenly: of n chunks, chunk k begins
    with sample count * k // n.
    """
    small, large = -(-count // (2 * SMALL)), -(-count // (2 * LARGE))  # pairs of chunks
    chunks = min(count, 2 * max(large, min(small, most_small // 2)))
    bounds = [count * k // chunks for k in range(chunks + 1)]
    return tuple(map(slice, bounds, bounds[1:]))


def map_chunks(
    run: Callable[[int, slice], Any], chunks: Sequence[slice], threads: int
) -> list[Any]:
    """Call `run(number, chunk)` for each chunk of a batch and return the results in order.

    The calling thread works too, beside `threads - 1` others that wait for work from call to call.
    They compute at once only what does not hold Python's lock. An exception of a chunk is raised
    when no thread works on the batch any more.
    """
    numbers = iter(range(len(chunks)))  # of the chunks that no thread has taken yet
    results: list[Any] = [None] * len(chunks)
    finished: SimpleQueue[Optional[BaseException]] = SimpleQueue()

    def work() -> None:
        for number in numbers:
            try:
                results[number] = run(number, chunks[number])
            except BaseException as error:
                finished.put(error)
            else:
                finished.put(None)

    for helper in range(min(threads, len(chunks)) - 1):
        _jobs_of(os.getpid(), helper).put(work)
    work()
    for error in [finished.get() for _ in chunks]:
        if error:
            raise error
    return results


@functools.cache
def _jobs_of(process: int, helper: int) -> "SimpleQueue[Callable[[], None]]":
    """Return the queue of the calls that a thread makes, which waits for them.

    process: its number, for a forked process has the queues of its parent, but not the threads.
    """
    jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, name=f"chunks {helper}", daemon=True).start()
    return jobs

"""Runs work on a batch in chunks of a few samples, on several threads."""

import functools
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

CHUNK_SIZE = 25  # samples at most


def chunks_of(count: int) -> list[slice]:
    """Divide a batch of `count` samples, always in the same way, whatever the number of threads.

    The number of chunks is even and their sizes nearly equal, so that two threads share the work
    evenly.
    """
    pairs = -(-count // (2 * CHUNK_SIZE))
    bounds = [count * i // (2 * pairs) for i in range(2 * pairs + 1)]
    return [slice(a, b) for a, b in zip(bounds, bounds[1:]) if a < b]


def map_chunks(run: Callable[[int, slice], Any], count: int, threads: int) -> list:
    """Call `run(number, chunk)` for each chunk of a batch and return the results in order.

    The calling thread works too, beside `threads - 1` others that wait for work from call to call.
    They compute at once only what does not hold Python's lock. An exception of a chunk is raised
    when no thread works on the batch any more.
    """
    job = _Job(run, chunks_of(count))
    helpers = min(threads, len(job.chunks)) - 1
    for _ in range(helpers):
        _helpers(helpers, os.getpid()).put(job)
    job.work()
    return job.results()


class _Job:
    def __init__(self, run: Callable[[int, slice], Any], chunks: list[slice]):
        self.chunks = chunks
        self._run = run
        self._numbers = iter(range(len(chunks)))  # of the chunks that no thread has taken yet
        self._finished: SimpleQueue = SimpleQueue()

    def work(self) -> None:
        """Compute chunks until all are taken."""
        for number in self._numbers:
            try:
                result, error = self._run(number, self.chunks[number]), None
            except BaseException as raised:
                result, error = None, raised
            self._finished.put((number, result, error))

    def results(self) -> list:
        """Wait for all chunks, and return their results or raise an error of theirs."""
        results: list = [None] * len(self.chunks)
        errors = []
        for _ in self.chunks:
            number, results_of_chunk, error = self._finished.get()
            results[number] = results_of_chunk
            errors += [error] if error else []
        if errors:
            raise errors[0]
        return results


@functools.cache
def _helpers(count: int, process_id: int) -> SimpleQueue:
    """Return the queue of `count` threads that work on what is put there.

    process_id: a forked child has none of its parent's threads, and starts its own.
    """
    jobs: SimpleQueue = SimpleQueue()

    def work() -> None:
        while True:
            jobs.get().work()

    for number in range(count):
        threading.Thread(target=work, name=f"chunks {number}", daemon=True).start()
    return jobs

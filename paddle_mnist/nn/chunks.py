"""Runs work on a batch in chunks of a few samples, on several threads."""

import functools
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Optional

CHUNK_SIZE = 25  # samples at most

_Outcome = tuple[int, Any, Optional[BaseException]]  # of a chunk: its number, result and error


def chunks_of(count: int) -> list[slice]:
    """Divide a batch of `count` samples, always in the same way, whatever the number of threads.

    The number of chunks is even, but for one sample, and their sizes nearly equal, so that two
    threads share the work evenly.
    """
    pairs = -(-count // (2 * CHUNK_SIZE))
    bounds = [count * i // (2 * pairs) for i in range(2 * pairs + 1)]
    return [slice(a, b) for a, b in zip(bounds, bounds[1:]) if a < b]


def map_chunks(run: Callable[[int, slice], Any], count: int, threads: int) -> list[Any]:
    """Call `run(number, chunk)` for each chunk of a batch and return the results in order.

    The calling thread works too, beside `threads - 1` others that wait for work from call to call.
    They compute at once only what does not hold Python's lock. An exception of a chunk is raised
    when no thread works on the batch any more.
    """
    job = _Job(run, chunks_of(count))
    _helpers(os.getpid()).take_part(job, min(threads, len(job.chunks)) - 1)
    job.work()
    return job.results()


class _Job:
    def __init__(self, run: Callable[[int, slice], Any], chunks: list[slice]):
        self.chunks = chunks
        self._run = run
        self._numbers = iter(range(len(chunks)))  # of the chunks that no thread has taken yet
        self._finished: SimpleQueue[_Outcome] = SimpleQueue()

    def work(self) -> None:
        """Compute chunks until all are taken."""
        for number in self._numbers:
            try:
                outcome: _Outcome = number, self._run(number, self.chunks[number]), None
            except BaseException as error:
                outcome = number, None, error
            self._finished.put(outcome)

    def results(self) -> list[Any]:
        """Wait for all chunks, and return their results or raise an error of theirs."""
        results: list[Any] = [None] * len(self.chunks)
        errors: list[BaseException] = []
        for _ in self.chunks:
            number, results_of_chunk, error = self._finished.get()
            results[number] = results_of_chunk
            errors += [error] if error else []
        if errors:
            raise errors[0]
        return results


class _Helpers:
    """Threads that wait for jobs; as many as were ever needed at once."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0

    def take_part(self, job: _Job, threads: int) -> None:
        """Have this many threads work on a job."""
        with self._lock:
            for number in range(self._count, threads):
                threading.Thread(target=self._work, name=f"chunks {number}", daemon=True).start()
            self._count = max(self._count, threads)
        for _ in range(threads):
            self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get().work()


@functools.cache
def _helpers(process_id: int) -> _Helpers:
    """Return the helpers of a process: a forked child has none of its parent's threads."""
    return _Helpers()

"""Start and end the workers of a `paddle.io.DataLoader`, which are forked from this process."""

import errno
import gc
import io
import traceback
from collections.abc import Iterator
from typing import Any

import paddle
from paddle.io.dataloader import dataloader_iter

from paddle_mnist.errors import OutputError, ProcessError, listed, summary
from paddle_mnist.system.files import warn_once

# The system has no more descriptors, processes, memory or semaphores to give.
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC}


def forked(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Yield the batches of a loader with workers; start them safely, and end them when closed.

    In a worker, Python's collector would destroy what earlier loaders have left, and wait for ever
    for threads of theirs that were not forked. So all that is there, garbage too, is hidden from
    the collector of the workers. An iterator that is only dropped keeps its threads, which keep it,
    and its workers. The loader may not have persistent workers.
    """
    iterator: Any = _started(loader)  # Paddle's types leave out its private methods
    try:
        yield from iterator
    except SystemError as error:  # Paddle's, of many lines
        raise ProcessError(
            f"one of the {loader.num_workers} workers that read the data has died "
            f"({summary(error)}); expected enough memory for them: try fewer num_workers, or 0, "
            "which also shows an error of its own",
            exit_code=1,
        ) from error
    finally:
        iterator._try_shutdown_all()


def warn_of_open_files(dataset: Any) -> None:
    """Log a warning that names the open files among a dataset's attributes, before it is forked."""
    names = []
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, io.IOBase) and not value.closed and value.readable():
            names += [name] if hasattr(value, "name") else []  # io.BytesIO is no file
        elif isinstance(value, paddle.io.Dataset) and value is not dataset:  # as of a Subset
            warn_of_open_files(value)
    if names:
        warn_once(
            (type(dataset),),
            "%s: the workers (num_workers) share the position of its open file %s, and may read "
            "wrong samples; expected each worker to open the file itself, in __getitem__",
            type(dataset).__name__,
            listed(names),
        )


def _started(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Return Paddle's iterator, whose workers run; if one cannot start, end those that have."""
    gc.freeze()
    try:
        return iter(loader)
    except Exception as error:  # of a sampler of the caller's, too
        _end_workers(error)
        lacks_threads = isinstance(error, RuntimeError) and "start new thread" in str(error)
        if not lacks_threads and getattr(error, "errno", None) not in EXHAUSTED:
            raise
        raise ProcessError(
            f"the {loader.num_workers} workers that read the data cannot start ({error}); expected "
            "room for so many processes and open files (see ulimit -a): try fewer num_workers, "
            "or 0",
            exit_code=OutputError.exit_code,
        ) from error
    finally:
        gc.unfreeze()


def _end_workers(error: Exception) -> None:
    """End the workers of Paddle's iterator that raised an error while it was made.

    Python would delete it at its own end, when the threads that it then starts wait forever.
    """
    core: Any = paddle.base.core
    for frame, _ in traceback.walk_tb(error.__traceback__):
        iterator = frame.f_locals.get("self")
        if isinstance(iterator, dataloader_iter._DataLoaderIterMultiProcess):
            core._erase_process_pids(id(iterator))  # that they are killed is no error
            iterator._shutdown = True
            for worker in getattr(iterator, "_workers", []):
                worker.kill()
                worker.join()

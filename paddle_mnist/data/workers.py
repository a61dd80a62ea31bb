"""Batches that worker processes read, in whatever structure, and the errors they meet.

Paddle's `DataLoader` sends arrays through shared memory, but makes lists of tuples, fails on an
array without elements, ends an epoch at a batch without arrays, hides the error of a worker behind
one of its own, and dies where shared memory is full. So it is given the arrays for which there is
room, and everything else as one object.
"""

import copy
import errno
import functools
import gc
import io
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, Optional, cast

import numpy as np
import paddle
from paddle.io.dataloader import dataloader_iter

from paddle_mnist.data.structures import mapped
from paddle_mnist.errors import ConfigError, OutputError, ProcessError, listed, summary
from paddle_mnist.system import heartbeat
from paddle_mnist.system.arrays import as_array
from paddle_mnist.system.files import warn_once

SHARED_MEMORY = "/dev/shm"
SMALL_MEMORY = 256 * 2**20  # bytes, four times what Docker gives a container
# The system has no more descriptors, processes or memory to give.
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC}
NO_SEMAPHORES = {errno.EACCES, errno.ENOENT, errno.ENOSYS, errno.EROFS}


def map_in_workers(
    read: Callable[[Any], Any], keys: Iterator[Any], num_workers: int, **options: Any
) -> Iterator[Any]:
    """Yield `read(key)` of each key, in order, computed ahead in other processes.

    options: further ones of `paddle.io.DataLoader`. Arrays come as tensors; as arrays where shared
    memory has no room for them. Raises what `read` raises, with the traceback in the worker as its
    cause.
    """
    if not _can_start():
        yield from map(read, keys)
        return
    loader = paddle.io.DataLoader(
        _Batches(read, num_workers * options.get("prefetch_factor", 2)),
        batch_sampler=cast(Any, ([key] for key in keys)),
        collate_fn=lambda batches: batches[0],  # there is one, already made
        num_workers=num_workers,
        return_list=True,
        **options,
    )
    for sent in _forked(loader):
        yield _unpacked(sent)


def read_by_paddle(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Return an iterator over the batches of a loader whose samples are not read by index.

    Its workers end with the epoch, as those that persist would not see what the next epoch changes.
    Raises ConfigError for workers of a loader with an `__iter__` of its own, which they would skip.
    """
    if loader.num_workers and type(loader).__iter__ is not paddle.io.DataLoader.__iter__:
        raise ConfigError(
            f"{type(loader).__name__} has an __iter__ of its own, which workers would skip; "
            "expected num_workers=0, or a function that returns its batches"
        )
    loader = copy.copy(loader)
    loader._persistent_workers = False
    if not loader.num_workers or not _can_start():
        loader.num_workers = 0
        return iter(loader)
    if loader.use_shared_memory and _room() < SMALL_MEMORY:
        _warn_of_small_memory()
        loader.use_shared_memory = False
    return _forked(loader)


def warn_of_open_files(dataset: Any) -> None:
    """Log a warning that names the open files among a dataset's attributes, before it is forked."""
    names = []
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, io.IOBase) and not value.closed and value.readable():
            names += [name] if hasattr(value, "name") else []  # io.BytesIO is not a file
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


def _forked(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Yield the batches of a loader with workers; start them safely, and end them when closed.

    In a worker, Python's garbage collector would destroy what earlier loaders left behind, and wait
    forever for their threads, which were not forked. All objects, garbage too, are therefore hidden
    from the workers' collectors. An iterator must be closed: one that is only dropped is kept alive
    by its own threads, with its workers. Changes the loader, whose workers must not be persistent.
    """
    loader.worker_init_fn = functools.partial(_init_worker, os.getpid(), loader.worker_init_fn)
    iterator = _started(loader)
    try:
        yield from iterator
    except SystemError as error:  # Paddle's, which has many lines
        raise ProcessError(
            f"one of the {loader.num_workers} workers that read the data has died "
            f"({summary(error)}); expected enough memory for them: try fewer num_workers, or 0, "
            "with which this process shows the error",
            exit_code=1,
        ) from error
    finally:
        iterator._try_shutdown_all()


def _started(loader: paddle.io.DataLoader) -> Any:
    """Return Paddle's iterator, whose workers run; if one cannot start, end those that have."""
    if not loader.num_workers:  # as Paddle sets it on macOS and Windows
        return iter(loader)
    kind: Any = dataloader_iter._DataLoaderIterMultiProcess
    iterator = kind.__new__(kind)  # not `iter(loader)`, which would lose one that fails
    gc.freeze()
    try:
        iterator.__init__(loader)
        return iterator
    except Exception as error:  # of a sampler of the caller's, too
        _end_workers(iterator)
        lacks_threads = isinstance(error, RuntimeError) and "start new thread" in str(error)
        # An error with a file name is that of a sampler which opens the file.
        number = error.errno if isinstance(error, OSError) and not error.filename else None
        # Semaphores are made before the first worker, and a sampler is called after it.
        lacks_semaphores = number in NO_SEMAPHORES and not getattr(iterator, "_workers", None)
        if not (lacks_threads or lacks_semaphores or number in EXHAUSTED):
            raise
        raise ProcessError(
            f"the {loader.num_workers} workers that read the data cannot start ({error}); expected "
            f"room for so many processes and open files (see ulimit -a), and in {SHARED_MEMORY}, "
            "with permission to write: try fewer num_workers, or 0",
            exit_code=OutputError.exit_code,
        ) from error
    finally:
        gc.unfreeze()


def _end_workers(iterator: Any) -> None:
    """End the workers of Paddle's iterator that raised an error while it was created.

    Its destructor would start threads, and Python would wait forever for them when it ends.
    """
    core: Any = paddle.base.core
    core._erase_process_pids(id(iterator))  # killing them is not an error
    iterator._shutdown = True
    for worker in getattr(iterator, "_workers", []):
        worker.kill()
        worker.join()


def _init_worker(trainer: int, init: Optional[Callable[[int], None]], number: int) -> None:
    """Have a worker end with the trainer; after a kill -9, Paddle's would wait for it forever."""
    heartbeat.die_with(trainer)
    if init:
        init(number)


def _can_start() -> bool:
    """Return whether workers can start; warn if not: Paddle sets a signal handler for them."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread:
        warn_once(
            "threads",
            "workers start only from the main thread, so the data are read in this thread",
        )
    return is_main_thread


def _room() -> int:
    """Return how many bytes shared memory has left."""
    if sys.platform != "linux":  # other systems share memory in another way
        return sys.maxsize
    try:
        system = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return system.f_bavail * system.f_frsize


def _warn_of_small_memory() -> None:
    warn_once(
        SHARED_MEMORY,
        f"{SHARED_MEMORY} has no room for the batches of the workers: they are sent through pipes, "
        "which is slower; expected more room in it, as docker run --shm-size=8g gives",
    )


class _Batches(paddle.io.Dataset):  # type: ignore[type-arg]  # not generic in Paddle 2
    """Batches by their keys, packed.

    batches_ahead: how many of them all workers together may have read before they are used.
    """

    def __init__(self, read: Callable[[Any], Any], batches_ahead: int):
        self.read = read
        # doubled, as a batch may be larger than those before; the processes of a run share it
        self.share = 2 * batches_ahead * paddle.distributed.get_world_size()

    def __getitem__(self, key: Any) -> list[Any]:
        try:
            return _packed(self.read(key), _room() // self.share)
        except Exception as error:  # whatever the dataset raises
            return _packed(_Failure(error))


@dataclass(frozen=True)
class _Slot:
    """The place of an array that is sent by itself. number: among those of the batch."""

    number: int


@dataclass(frozen=True)
class _Rest:
    """The rest of a batch without its arrays, which Paddle sends as it is.

    is_whole: whether it includes the arrays, for which shared memory has no room.
    """

    structure: Any
    is_whole: bool = False


class _Failure:
    """An error in a worker, with its traceback as text."""

    def __init__(self, error: Exception):
        self.traceback = "".join(
            traceback.format_exception(type(error), error, error.__traceback__)
        )
        try:
            ForkingPickler.dumps(error)
            self.error = copy.copy(error)  # rebuilt as in the other process
        except Exception:  # an error whose arguments are not its constructor's
            self.error = RuntimeError(f"{type(error).__name__}: {error}")


# What Paddle's workers send as tensors; uint16 is what NumPy makes of bfloat16.
SENT_DTYPES = """
    bool int8 uint8 int16 uint16 int32 int64 float16 float32 float64 complex64 complex128
""".split()


def _packed(batch: Any, room: float = math.inf) -> list[Any]:
    """Return the arrays and tensors of a batch, and the rest of it. room: bytes for them."""
    arrays = [np.zeros(1, np.uint8)]  # an epoch would end at a batch without arrays

    def set_apart(leaf: Any) -> Any:
        is_array = isinstance(leaf, np.ndarray) and leaf.size > 0
        if not is_array or leaf.dtype.name not in SENT_DTYPES:
            return leaf
        arrays.append(np.asarray(leaf, order="C"))
        return _Slot(len(arrays) - 1)

    batch = mapped(batch, lambda leaf: as_array(leaf) if isinstance(leaf, paddle.Tensor) else leaf)
    rest = _Rest(mapped(batch, set_apart))
    if sum(array.nbytes for array in arrays) > room:
        return [arrays[0], _Rest(batch, is_whole=True)]
    return [*arrays, rest]


def _unpacked(sent: Sequence[Any]) -> Any:
    """Return the batch that a worker has packed. Raises the error that it had."""
    *arrays, rest = sent
    batch = rest.structure
    if rest.is_whole:
        _warn_of_small_memory()
        return batch
    if isinstance(batch, _Failure):
        raise batch.error from RuntimeError(f"in a worker:\n{batch.traceback}")
    return mapped(batch, lambda leaf: arrays[leaf.number] if isinstance(leaf, _Slot) else leaf)

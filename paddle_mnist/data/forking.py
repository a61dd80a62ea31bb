"""Start and end the workers of a `paddle.io.DataLoader`, which are forked from this process."""

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import paddle
from paddle.io.dataloader import dataloader_iter

from paddle_mnist.errors import ProcessError, summary


def forked(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Yield the batches of a loader with workers; start them safely, and end them when closed.

    In a worker, Python's collector would destroy what earlier loaders have left, and wait for ever
    for threads of theirs that were not forked. So all that is there, garbage too, is hidden from
    the collector of the workers. An iterator that is only dropped keeps its threads, which keep it,
    and its workers.
    """
    is_over = False
    gc.freeze()
    try:
        iterator: Any = iter(loader)  # Paddle's types leave out its private methods
    finally:
        gc.unfreeze()
    try:
        yield from iterator
        is_over = True
    except SystemError as error:  # Paddle's, of many lines
        raise ProcessError(
            f"one of the {loader.num_workers} workers that read the data has died "
            f"({summary(error)}); expected enough memory for them: try fewer num_workers, or 0, "
            "which also shows an error of its own",
            exit_code=1,
        ) from error
    finally:
        is_persistent = getattr(loader, "_persistent_workers", False)
        if not is_over or not is_persistent:
            iterator._try_shutdown_all()
        if not is_over and is_persistent:
            loader._iterator = None  # Paddle fails to begin again with workers inside an epoch


_set_handler: Callable[[], None] = dataloader_iter._set_SIGCHLD_handler


def _set_handler_in_main_thread() -> None:
    """Install Paddle's handler of SIGCHLD, which Python allows in the main thread alone.

    Without it, as in other threads, Paddle notices only after some seconds that a worker has died.
    """
    if threading.current_thread() is threading.main_thread():
        _set_handler()


# Otherwise Paddle could not start workers from a thread that is not the main one.
dataloader_iter._set_SIGCHLD_handler = _set_handler_in_main_thread

"""Start and end the workers of a `paddle.io.DataLoader`, which are forked from this process."""

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import paddle
from paddle.io.dataloader import dataloader_iter

from paddle_mnist.errors import ProcessError, summary


def forked(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Yield the batches of a loader with workers; start them safely, and end them when closed.

    In a worker, Python's collector would destroy what earlier loaders have left, and wait for ever
    for threads of theirs that were not forked. So garbage is collected before the fork, and what is
    alive is hidden from the collector of the workers. An iterator that is only dropped keeps its
    threads, which keep it, and its workers.
    """
    gc.collect()
    gc.freeze()
    try:
        with _from_any_thread():
            iterator = iter(loader)
    finally:
        gc.unfreeze()
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
        if not getattr(loader, "_persistent_workers", False):
            iterator._try_shutdown_all()


@contextlib.contextmanager
def _from_any_thread() -> Iterator[None]:
    """Let Paddle start workers from a thread that is not the main one, too.

    There it cannot install its handler of SIGCHLD. Without it, it notices only after some seconds
    that a worker has died.
    """
    if threading.current_thread() is threading.main_thread():
        yield
        return
    install = dataloader_iter._set_SIGCHLD_handler
    dataloader_iter._set_SIGCHLD_handler = lambda: None
    try:
        yield
    finally:
        dataloader_iter._set_SIGCHLD_handler = install

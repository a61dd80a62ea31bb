"""Work in a thread of its own, while the training goes on."""

import threading
from collections.abc import Callable
from typing import Optional


class Background:
    """Runs a function in a thread, which a program that ends waits for.

    Raises RuntimeError if no thread can be started.
    """

    def __init__(self, work: Callable[[], None]):
        self._work = work
        self._error: Optional[BaseException] = None
        # Not `join` and `is_alive`: up to Python 3.12, an error that a signal's handler raises in
        # `join` has both take the thread for finished from then on.
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paddle_mnist")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # `wait` raises it
            self._error = error
        finally:
            del self._work  # and what it holds
            self._done.set()

    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        """Wait until the function has returned. Raises what it raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error

"""Signs of life for a supervisor, if there is one.

It names in the environment the writing end of a pipe; a byte goes there for every batch. A pipe
needs no disk, and it breaks when the supervisor is gone: then the training stops as if by SIGTERM,
or is ended if it hangs, so that no orphan is left. (One that is itself stopped, by SIGSTOP, cannot
notice before it is continued.)
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from typing import Optional

log = logging.getLogger("paddle_mnist")

GRACE_SECONDS = 10  # for the step in work and a checkpoint, before a process that hangs is ended
VARIABLE = "PADDLE_MNIST_HEARTBEAT"


def _taken() -> Optional[int]:
    """The descriptor, taken out of the environment: it is this process's, not its children's."""
    value = os.environ.pop(VARIABLE, None)
    return int(value) if value else None


_descriptor = _taken()


def watched() -> bool:
    """Whether a supervisor waits for signs of life."""
    return _descriptor is not None


def beat() -> None:
    """Give a sign of life."""
    if _descriptor is not None:
        # full: the supervisor has plenty to read yet; broken: the thread below sees to it
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(_descriptor, b".")


def _end_with_the_supervisor(descriptor: int) -> None:
    """Wait until nobody holds the reading end, then stop this process."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only for the error that a pipe without a reader is
    poll.poll()
    log.warning("the supervisor is gone; stopping")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(128 + signal.SIGTERM)


if _descriptor is not None:
    threading.Thread(target=_end_with_the_supervisor, args=[_descriptor], daemon=True).start()

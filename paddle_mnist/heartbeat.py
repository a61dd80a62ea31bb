"""Signs of life for a supervisor, if there is one.

It names in the environment the writing end of a pipe; a byte goes there for every batch. A pipe
needs no disk, and it breaks when the supervisor is gone: then the training stops as if by SIGTERM,
and no orphan is left.
"""

import logging
import os
import signal
from typing import Optional

log = logging.getLogger("paddle_mnist")

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
    global _descriptor
    if _descriptor is None:
        return
    try:
        os.write(_descriptor, b".")
    except BlockingIOError:
        pass  # the supervisor has plenty to read yet
    except BrokenPipeError:
        log.warning("the supervisor is gone; stopping")
        _descriptor = None
        os.kill(os.getpid(), signal.SIGTERM)

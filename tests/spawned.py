"""What `spawn` calls in a process of its own, which imports no more than this needs."""

from paddle_mnist.checkpoint.manifest import DamagedError
from paddle_mnist.errors import spelled


def returns_much():
    return [*range(50_000), spelled("fresh")]


def raises_damaged():
    raise DamagedError("mnist_epoch0.json: damaged")

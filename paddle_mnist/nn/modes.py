"""Put a model in evaluation mode for a while."""

import contextlib
from collections.abc import Iterator

from paddle import nn


@contextlib.contextmanager
def evaluation_mode(model: nn.Layer) -> Iterator[None]:
    """Put a model in evaluation mode, and each of its layers back in its own mode afterwards."""
    modes = [(layer, layer.training) for layer in model.sublayers(include_self=True)]
    model.eval()
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training

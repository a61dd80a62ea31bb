"""Put a model in training mode, or in evaluation mode for a while."""

import contextlib
from collections.abc import Iterator

from paddle import nn


def start_training_mode(model: nn.Layer) -> list[str]:
    """Put a model in training mode; return the names of layers that were in evaluation mode.

    Of nested layers the outermost; none if the whole model was in evaluation mode.
    """
    kept = {n: layer for n, layer in model.named_sublayers() if model.training > layer.training}
    model.train()
    switched = [name for name, layer in kept.items() if layer.training]
    return [n for n in switched if not any(n.startswith(f"{outer}.") for outer in switched)]


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

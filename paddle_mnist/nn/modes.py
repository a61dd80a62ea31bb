"""Put a model in training mode, or in evaluation mode for a while."""

import contextlib
import logging
from collections.abc import Iterator

from paddle import nn

from paddle_mnist.errors import listed

log = logging.getLogger("paddle_mnist")


@contextlib.contextmanager
def training_mode_begins(model: nn.Layer, warns: bool = True) -> Iterator[None]:
    """Put a model in training mode; warn of those of its layers that were in evaluation mode.

    Not of layers that are put back into it within the context, and not if all of the model was.
    """
    kept = {n: layer for n, layer in model.named_sublayers() if model.training > layer.training}
    model.train()
    yield
    undone = [name for name, layer in kept.items() if layer.training]
    outermost = [n for n in undone if not any(n.startswith(f"{outer}.") for outer in undone)]
    if outermost and warns:
        log.warning(
            "%s: in evaluation mode, but each epoch begins with model.train(), which undoes it; to "
            "freeze BatchNorm, set use_global_stats=True, or give the model a train() that keeps "
            "these layers in evaluation mode",
            listed(outermost),
        )


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

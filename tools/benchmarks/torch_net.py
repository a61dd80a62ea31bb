"""The net in PyTorch: who this package is compared with. Raises ImportError where it is missing."""

from collections.abc import Callable

import torch
from torch import nn


def torch_net(relu_first: bool = True) -> nn.Sequential:
    """Return the net. relu_first: before the pooling; the other order is faster."""
    block = [nn.ReLU(), nn.MaxPool2d(2)] if relu_first else [nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(
        nn.Conv2d(1, 20, 5, padding=2),
        *block,
        nn.Conv2d(20, 20, 5, padding=2),
        *block,
        nn.Flatten(),
        nn.Linear(980, 10),
    )


def trained(weights, threads: int, relu_first: bool = True) -> Callable:
    """Return the net with Paddle's weights: a function of a tensor of images that returns an array.

    threads: of all that PyTorch does from now on.
    """
    torch.set_num_threads(threads)
    net = torch_net(relu_first)
    _copy_weights(net, weights)

    @torch.no_grad()
    def logits(images: torch.Tensor):
        return net(images).numpy()

    return logits


def _copy_weights(net: nn.Sequential, weights) -> None:
    """Give a net the weights of Paddle's, which keeps a linear layer's the other way round."""
    layers = [layer for layer in net if isinstance(layer, (nn.Conv2d, nn.Linear))]
    for name, layer in zip(("conv1", "conv2", "fc"), layers):
        for kind in ("weight", "bias"):
            value = weights[f"{name}.{kind}"].numpy()
            value = value.T if isinstance(layer, nn.Linear) and kind == "weight" else value
            getattr(layer, kind).data = torch.from_numpy(value.copy())

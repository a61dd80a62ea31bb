"""The sizes of the tutorial's net, for code that must not import Paddle."""

from paddle_mnist.nn.sparse_layout import BlockSizes, Net

BLOCKS = (BlockSizes(1, 28, 28, 20, 5, 2), BlockSizes(20, 14, 14, 20, 5, 2))


def net_sizes(has_dropout: bool = False) -> Net:
    """Return what `MNIST` computes in compiled loops: all of it, or with dropout the features."""
    if has_dropout:
        return Net(BLOCKS, biases=(True, True))
    return Net(BLOCKS, biases=(True, True, True), classes=10)

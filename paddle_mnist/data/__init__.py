"""Batches of any dataset: their order, their position in an epoch, and their shards."""

from paddle_mnist._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {"BatchLoader": "loader", "BatchSampler": "sampler", "ItemSpec": "labelled_images"},
)

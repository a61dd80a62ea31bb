"""Batches of any dataset: their order, their place in an epoch, and their shards."""

from paddle_mnist._exports import lazy_exports

_MOVED = {
    "CLASSES": "arrays",
    "MODES": "arrays",
    "SIZE": "arrays",
    "Data": "arrays",
    "Source": "sources",
    "Split": "arrays",
    "find_source": "sources",
    "open_data": "cache",
}
__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {"BatchLoader": "loader", "BatchSampler": "sampler", "ItemSpec": "loader", "Replay": "loader"},
    moved={name: f"paddle_mnist.mnist.{module}" for name, module in _MOVED.items()},
)

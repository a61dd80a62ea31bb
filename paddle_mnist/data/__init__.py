"""Batches of any dataset: their order, their position in an epoch, and their shards."""

from typing import TYPE_CHECKING

from paddle_mnist._exports import lazy_exports

if TYPE_CHECKING:  # which does not run `__getattr__`
    from paddle_mnist.data.collate import ItemSpec as ItemSpec
    from paddle_mnist.data.loader import BatchLoader as BatchLoader
    from paddle_mnist.data.loader import Replay as Replay
    from paddle_mnist.data.sampler import BatchSampler as BatchSampler
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "BatchLoader": "loader",
            "BatchSampler": "sampler",
            "ItemSpec": "collate",
            "Replay": "loader",
        },
    )

"""Images and labels: `open_data` finds a source, reads and checks it, and keeps it in the cache.

Imports no paddle; the `paddle.io.Dataset` over these arrays is in `paddle_mnist.data.dataset`.
"""

from paddle_mnist.data.arrays import CLASSES, MODES, SIZE, Data, Split
from paddle_mnist.data.cache import open_data
from paddle_mnist.data.sources import Source, find_source

__all__ = ["CLASSES", "MODES", "SIZE", "Data", "Source", "Split", "find_source", "open_data"]

"""What becomes of a training that is stopped, with `fit`, with paddle.Model and with Lightning."""

from benchmarks.promises.measuring import measure
from benchmarks.promises.tables import table

__all__ = ["measure", "table"]

"""Checkpoints: when to save and what to keep, how they are committed, and safe reading.

`load` and `load_into` are for your own code; they need paddle, which importing this does not.
"""

from typing import TYPE_CHECKING

from paddle_mnist._exports import lazy_exports

if TYPE_CHECKING:  # which does not run `__getattr__`
    from paddle_mnist.checkpoint.weights import load as load
    from paddle_mnist.checkpoint.weights import load_into as load_into
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__, {"load": "weights", "load_into": "weights"}
    )

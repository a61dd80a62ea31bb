"""Checkpoints: when to save, what to keep, safe reading; the run directory and its mirror.

`load` and `load_into` are for your own code; they need paddle, which importing this does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddle_mnist.checkpoint.weights import load, load_into

__all__ = ["load", "load_into"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.weights"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

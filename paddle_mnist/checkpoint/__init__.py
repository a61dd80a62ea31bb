"""Checkpoints: when to save and what to keep, how they are committed, and safe reading.

`load` and `load_into` are for your own code; they need paddle, which importing this does not.
"""

from importlib import import_module

__all__ = ["load", "load_into"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("paddle_mnist.checkpoint.contents"), name)

"""Describe a batch by its dtypes and shapes, and name them where the caller's code fails on it."""

import contextlib
from collections.abc import Iterator
from typing import Any

from paddle_mnist.data.collate import mapped
from paddle_mnist.errors import ConfigError, PaddleMnistError, summary


@contextlib.contextmanager
def explained(batch: Any, what: str, shapes: str = "the batch is") -> Iterator[None]:
    """Raise an error of Paddle or the caller's code as a ConfigError that names the shapes.

    what: is computed of the batch, or "the first batch", say. shapes: introduces them.
    """
    try:
        yield
    except PaddleMnistError:
        raise
    except Exception as error:  # anything that a model or a loss raises
        raise ConfigError(
            f"{what} fails with {summary(error)}; {shapes} {describe_batch(batch)}"
        ) from error


def describe_batch(batch: Any) -> str:
    """Return the structure of a batch with the dtype and shape of each tensor."""

    def describe(leaf: Any) -> Any:
        if hasattr(leaf, "shape"):
            return _Text(f"{str(leaf.dtype).rpartition('.')[2]} {list(leaf.shape)}")
        return _Text(type(leaf).__name__)

    return repr(mapped(batch, describe))


class _Text(str):
    """A text that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__

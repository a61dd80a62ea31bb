"""Nested batches: tuples, lists and dicts of tensors; walked through, measured and described."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import paddle

from paddle_mnist.errors import ConfigError, DataError, PaddleMnistError, summary
from paddle_mnist.system.arrays import as_array, own_memory


def rebuilt(like: Any, parts: Sequence[Any]) -> Any:
    """Return a tuple, named tuple or list of the class of `like` with other parts."""
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def mapped(structure: Any, function: Callable[[Any], Any]) -> Any:
    """Return a structure of tuples, lists and dicts with `function` applied to every leaf."""
    if isinstance(structure, Mapping):
        return {key: mapped(value, function) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        return rebuilt(structure, [mapped(value, function) for value in structure])
    return function(structure)


def leaves(structure: Any) -> Iterator[Any]:
    """Yield the leaves of a structure of tuples, lists and dicts, depth first."""
    if isinstance(structure, Mapping):
        structure = list(structure.values())
    if isinstance(structure, (tuple, list)):
        for part in structure:
            yield from leaves(part)
    else:
        yield structure


def tensors(batch: Any) -> Any:
    """Return a batch with its NumPy arrays as tensors; other leaves stay as they are.

    A tensor is copied: it may be a view, and reading the values of a view copies all of the tensor
    behind it (see `as_array`).
    """

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, paddle.Tensor):
            return own_memory(leaf)
        return paddle.to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf

    return mapped(batch, tensor)


def num_samples(batch: Any) -> int:
    """Return how many samples a batch has: the length of its first tensor or array.

    Raises DataError if it holds none.
    """
    size = length_of(batch)
    if size is None:
        raise DataError(
            f"a batch is a {type(batch).__name__} without a tensor; expected at least one, whose "
            "first dimension counts the samples"
        )
    return size


def length_of(batch: Any) -> Optional[int]:
    """Return the length of the first tensor or array of a batch; None if it holds none."""
    for leaf in leaves(batch):
        shape: Sequence[int] = getattr(leaf, "shape", ())
        if len(shape):
            return shape[0]
    return None


@contextlib.contextmanager
def explained(batch: Any, what: str, shapes: str = "the batch is") -> Iterator[None]:
    """Raise an error of Paddle or the caller's code as a ConfigError that names the shapes.

    what: names the computation, or the batch, as in "the first batch". shapes: introduces them.
    """
    try:
        yield
    except PaddleMnistError:
        raise
    except Exception as error:  # anything that a model or a loss raises
        raise ConfigError(
            f"{what} fails with {summary(error)}; {shapes} {describe_batch(batch)}"
        ) from error


def content_of(leaf: Any) -> bytes:
    """Return bytes that identify a leaf of a sample, the same in every process.

    Objects that are neither numbers nor strings count by their class.
    """
    array = as_array(leaf)
    content = f"{array.dtype} {array.shape}".encode()
    if not array.dtype.hasobject:
        return content + np.ascontiguousarray(array).tobytes()
    if isinstance(leaf, np.ndarray):  # its bytes are addresses of objects
        return content + b"".join(map(content_of, leaves(leaf.tolist())))
    return content + type(leaf).__name__.encode()


def hash_of_batch(batch: Any) -> str:
    """Return a hash of the leaves of a batch."""
    return hashlib.sha256(b"".join(map(content_of, leaves(batch)))).hexdigest()[:12]


def describe_batch(batch: Any) -> str:
    """Return the structure of a batch with the dtype and shape of each tensor."""

    def describe(leaf: Any) -> Any:
        if hasattr(leaf, "shape"):
            return _Text(f"{str(leaf.dtype).rpartition('.')[2]} {list(leaf.shape)}")
        return _Text("None" if leaf is None else type(leaf).__name__)

    return repr(mapped(batch, describe))


def require_one_shape(arrays: Any, first: Any, what: str) -> None:
    """Raise DataError unless arrays, nested like those of `first`, have the same sample shapes."""
    if [leaf.shape[1:] for leaf in leaves(arrays)] != [leaf.shape[1:] for leaf in leaves(first)]:
        raise DataError(
            f"{what} are {describe_batch(arrays)}, those of the first {describe_batch(first)}; "
            "expected one shape of all samples; pad them (in the dataset or collate_fn)"
        )


class _Text(str):
    """A text that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__

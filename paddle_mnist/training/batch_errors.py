"""Report in one line why a step fails on a batch, with the sample and its value."""

import contextlib
import functools
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import paddle
from paddle.nn import functional as F

from paddle_mnist.data.sampler import shards_of
from paddle_mnist.data.structures import describe_batch, leaves
from paddle_mnist.errors import ConfigError, DataError, PaddleMnistError, summary
from paddle_mnist.interfaces import Loader
from paddle_mnist.nn.losses import is_nll
from paddle_mnist.system.arrays import as_array

IGNORED = -100  # the label that Paddle's losses leave out by default
SEVERAL_OUTPUTS = "choose one output, as in loss=lambda outputs, labels: loss(outputs[0], labels)"
# Errors of Paddle's kernels for invalid values and shapes.
OF_DATA = re.compile(r"\b(InvalidArgument|OutOfRange)(Error)?\b")
# Values in an error message of Paddle's cross-entropy.
LABEL = re.compile(r"\b(ignore_index|lbl|axis_dim_)[:(](-?\d+)")


class LabelError(DataError):
    """A label that is not a class. what: the problem. number: of its sample among `labels`."""

    def __init__(self, what: str, labels: paddle.Tensor, number: int):
        super().__init__(f"the label of sample {number} of a batch {what}")
        self.what, self.labels, self.number = what, labels, number


def reraise(error: Exception, loss: Callable[..., Any], outputs: Any, labels: Any) -> NoReturn:
    """Raise the error of a loss again, as a LabelError if a label is the reason.

    outputs: [N, ...], with the classes along the loss's axis. labels: whole numbers, [N, ...].
    Raises ConfigError, with the remedy, if they are no tensors and the loss is Paddle's.
    """
    are_tensors = isinstance(outputs, paddle.Tensor) and isinstance(labels, paddle.Tensor)
    if not are_tensors and getattr(loss, "__module__", "").startswith("paddle.nn."):
        is_several = not isinstance(outputs, paddle.Tensor)
        raise ConfigError(
            f"the loss takes tensors, but the model's output is a {type(outputs).__name__}, and "
            f"the labels are a {type(labels).__name__}; "
            + (SEVERAL_OUTPUTS if is_several else "number the classes from 0, as int64")
        ) from error
    if not are_tensors or labels.is_floating_point() or not OF_DATA.search(str(error)):
        raise error
    known = {name: int(value) for name, value in LABEL.findall(str(error))}
    ignored = known.get("ignore_index", _option(loss, "ignore_index", IGNORED))
    axis = 1 if is_nll(loss) else _option(loss, "axis", -1)
    classes = known.get("axis_dim_", outputs.shape[axis])
    values = as_array(labels)
    wrong = ((values < 0) | (values >= classes)) & (values != ignored)
    if not wrong.any():
        raise error
    place = tuple(np.argwhere(wrong)[0])
    others = f", or {ignored}, which is ignored" if ignored != IGNORED else ""
    what = f"is {values[place]}; expected 0 to {classes - 1}{others}"
    raise LabelError(what, labels, int(place[0])) from error


def _option(loss: Callable[..., Any], name: str, default: int) -> int:
    """Return an option of one of Paddle's losses, a layer or a function with keywords."""
    keywords = getattr(loss, "keywords", {})
    value: int = keywords.get(name, getattr(loss, name, getattr(loss, f"_{name}", default)))
    return value


@contextlib.contextmanager
def labels_checked() -> Iterator[None]:
    """Raise the error of a cross-entropy of Paddle's, wherever it is called, as `reraise` does."""
    try:
        yield
    except PaddleMnistError:
        raise
    except Exception as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            name, values = frame.f_code.co_name, frame.f_locals
            if name in ("cross_entropy", "nll_loss") and {"input", "label"} <= values.keys():
                options = {key: values[key] for key in ("ignore_index", "axis") if key in values}
                loss = functools.partial(getattr(F, name), **options)
                reraise(error, loss, values["input"], values["label"])
        raise


@contextlib.contextmanager
def located(batch: Any, loader: Loader, epoch: int, number: int, where: str) -> Iterator[None]:
    """Convert errors that a batch's values or shapes cause to a DataError with their place.

    batch: as the loader yields it, or some of its shards. number: of the batch in the epoch, from
    0. where: such as "epoch 2". Other errors come from the code, and stay as they are.
    """
    place = f"batch {number + 1} of {where}"
    try:
        with labels_checked():
            yield
    except LabelError as error:
        name = _name(error, batch, loader, epoch, number)
        raise DataError(f"{place}: the label of {name} {error.what}") from error.__cause__
    except PaddleMnistError:
        raise
    except Exception as error:
        if not OF_DATA.search(str(error)):
            raise
        shapes = describe_batch(shards_of(batch)[0].batch)
        raise DataError(f"{place} fails with {summary(error)}; it is {shapes}") from error


def _name(error: LabelError, batch: Any, loader: Loader, epoch: int, number: int) -> str:
    """Return the name of the sample: in the dataset if the loader knows it, else in the batch."""
    for shard in shards_of(batch):
        if any(_is_same(leaf, error.labels) for leaf in leaves(shard.batch)):
            return loader.sample_name(epoch, number, shard.index, error.number)
    return f"its sample {error.number}"


def _is_same(leaf: Any, labels: paddle.Tensor) -> bool:
    """Return whether a leaf has the values of labels, which may be reshaped."""
    is_tensor = isinstance(leaf, paddle.Tensor) and leaf.dtype == labels.dtype
    return is_tensor and np.array_equal(as_array(leaf).ravel(), as_array(labels).ravel())

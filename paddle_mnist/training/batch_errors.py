"""Report in one line why a step fails on a batch, naming the sample and its value."""

import contextlib
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import paddle

from paddle_mnist.data.sampler import shards_of
from paddle_mnist.data.structures import describe_batch, leaves
from paddle_mnist.errors import DataError, PaddleMnistError, summary
from paddle_mnist.interfaces import Loader
from paddle_mnist.system.arrays import as_array

IGNORED = -100  # the label that Paddle's losses leave out by default
# Errors of Paddle's kernels for invalid values and shapes.
DATA_ERROR = re.compile(r"\b(InvalidArgument|OutOfRange)(Error)?\b")


class LabelError(DataError):
    """A label that is not a class. what: the problem. number: of its sample among `labels`."""

    def __init__(self, what: str, labels: paddle.Tensor, number: int):
        super().__init__(f"the label of sample {number} of a batch {what}")
        self.what, self.labels, self.number = what, labels, number


@contextlib.contextmanager
def labels_checked() -> Iterator[None]:
    """Raise an error of Paddle's cross-entropy as a LabelError if a label is the reason."""
    try:
        yield
    except Exception as error:
        if DATA_ERROR.search(str(error)):
            for frame, _ in traceback.walk_tb(error.__traceback__):
                name, values = frame.f_code.co_name, frame.f_locals
                if name in ("cross_entropy", "nll_loss") and {"input", "label"} <= values.keys():
                    _check_labels(name, values, error)
        raise


def _check_labels(name: str, values: Mapping[str, Any], error: Exception) -> None:
    """Raise LabelError if a label among the arguments of Paddle's loss is not a class."""
    outputs, labels = values["input"], values["label"]
    if not isinstance(labels, paddle.Tensor) or labels.is_floating_point():
        return
    ignored = values.get("ignore_index", IGNORED)
    classes = outputs.shape[1 if name == "nll_loss" else values.get("axis", -1)]
    numbers = as_array(labels)
    wrong = ((numbers < 0) | (numbers >= classes)) & (numbers != ignored)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        others = f", or {ignored}, which is ignored" if ignored != IGNORED else ""
        what = f"is {numbers[place]}; expected 0 to {classes - 1}{others}"
        raise LabelError(what, labels, int(place[0])) from error


@contextlib.contextmanager
def located(batch: Any, loader: Loader, epoch: int, number: int, where: str) -> Iterator[None]:
    """Convert errors caused by a batch's values or shapes to a DataError with their place.

    batch: as the loader yields it, or some of its shards. number: that of the batch in the epoch,
    from 0. where: such as "epoch 2". Other errors, which come from the code, are not changed.
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
        if not DATA_ERROR.search(str(error)):
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

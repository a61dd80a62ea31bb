"""`Loading`: how to read a dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from paddle_mnist.options import Count, CountOrZero, Options, option


@dataclass(frozen=True)
class Loading(Options):
    """Options for reading the samples of a `paddle.io.Dataset`.

    shuffle: whether to draw a new order of the training samples for each epoch.
    collate_fn: makes a batch of a list of samples; by default they are stacked.
    num_workers: the number of processes that read samples ahead; 0 reads them in this one.
    order: (epoch) -> the indices of the epoch's training samples, int64 [N], in place of `shuffle`.
        It is called once an epoch, and checkpoints contain its result.
    drop_last: whether to leave out the last batch of an epoch of training samples if it is short.
    steps_per_epoch: the number of steps after which an epoch ends. For a dataset, each epoch reads
        that many steps of its own order. Data that yield batches, such as endless ones, continue in
        the next epoch where they stopped, and begin again at their end.
    max_steps: the number of steps after which the training ends, even inside an epoch.
    """

    heading = "data"

    shuffle: bool = option(True, "shuffle the samples in each epoch", must_match=True)
    collate_fn: Optional[Callable[[list[Any]], Any]] = None
    num_workers: CountOrZero = option(0, "processes that read samples ahead; 0: none")
    order: Optional[Callable[[int], np.ndarray]] = None
    drop_last: bool = option(False, "leave out a short last batch", must_match=True)
    steps_per_epoch: Optional[Count] = option(
        None, "end an epoch after N steps; default: where the data end", must_match=True
    )
    max_steps: Optional[Count] = option(
        None, "end the training after N steps, if its epochs have more", must_match=True
    )

"""`Loading`: how to read a dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from paddle_mnist.options import CountOrZero, Options, option


@dataclass(frozen=True)
class Loading(Options):
    """Options for reading the samples of a `paddle.io.Dataset`.

    shuffle: whether to draw the order of the training samples anew for each epoch.
    collate_fn: makes a batch of a list of samples; by default they are stacked.
    num_workers: the number of processes that read samples ahead; 0 reads them in this one.
    order: (epoch) -> the indices of the epoch's training samples, int64 [N], in place of `shuffle`.
    random: whether samples draw from the global generators of random numbers, even if those of
        the first batch do not: the generators are then seeded for each sample.
    """

    heading = "data"

    shuffle: bool = option(True, "shuffle the samples anew in each epoch", must_match=True)
    collate_fn: Optional[Callable[[list[Any]], Any]] = None
    num_workers: CountOrZero = option(0, "processes that read samples ahead; 0: none")
    order: Optional[Callable[[int], np.ndarray]] = None
    random: bool = option(False, "samples draw random numbers", flat="")

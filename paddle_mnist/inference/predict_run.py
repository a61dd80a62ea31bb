"""Predict with the weights that a run has trained, for any net, which the caller builds."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.collate import CollateFn
from paddle_mnist.data.seeding import generators_restored, reseed
from paddle_mnist.data.structures import explained, mapped, rebuilt, require_one_shape
from paddle_mnist.errors import DataError
from paddle_mnist.metrics.console import progress_bar
from paddle_mnist.nn.layers import evaluation_mode
from paddle_mnist.system import signals
from paddle_mnist.system.arrays import as_array
from paddle_mnist.training.trained_model import Model, load_trained

# One array, or several, nested as the model returns them.
Outputs = Union[np.ndarray, tuple["Outputs", ...], list["Outputs"], dict[Any, "Outputs"]]


def predict_run(
    weights: Union[str, Path],
    model: Model,
    data: Any,
    *,
    forward: Optional[Callable[[Any, Any], Any]] = None,
    run: Union[str, Path, None] = None,
    batch_size: Optional[int] = None,
    collate_fn: Optional[CollateFn] = None,
    num_workers: int = 0,
) -> Outputs:
    """Return the outputs of the net that a run has trained, for all samples of a dataset.

    weights, model, run: see `load_model`.
    data: a dataset, or anything else that `fit` takes as `valid`, such as a list of samples.
    forward: (model, batch) -> outputs. By default a batch is the model's input alone, or (inputs,
        labels) or (input, input, ..., labels) as in training; the labels are not used. If the run
        was trained with `loss`, they may be missing.
    batch_size: by default the run's. collate_fn, num_workers: see `fit`.

    Returns a NumPy array [N, ...] in the order of the data, or several in a tuple, list or dict if
    the model returns one. They must fit into memory. Shows a progress bar on a terminal and in a
    notebook. Computes on Paddle's current device.
    Raises ConfigError, DataError and CheckpointError.
    """
    trained = load_trained(weights, model, run)
    inputs = trained.weights.manifest.get("inputs")
    forward = forward or functools.partial(_forward, inputs=inputs)
    loader = trained.open_data(data, batch_size, collate_fn=collate_fn, num_workers=num_workers)
    net, outputs = trained.model, []
    bar = progress_bar(0, loader.steps_per_epoch, "batch")
    with (
        generators_restored(),
        evaluation_mode(net),
        paddle.no_grad(),
        signals.interruptible(),
        bar,
    ):
        for number, batch in enumerate(loader.epoch(0)):
            reseed(0, number)  # a net that draws numbers draws the same every time
            with explained(batch, f"batch {number}"):
                computed = forward(net, batch)
            outputs.append(mapped(computed, _as_array))
            require_one_shape(outputs[-1], outputs[0], f"the outputs of batch {number + 1}")
            bar.update()
    if not outputs:
        raise DataError("the data have no batches; expected at least one")
    return _joined(outputs)


def _forward(model: nn.Layer, batch: Any, inputs: Optional[int]) -> Any:
    """Call the model on a batch. inputs: how many it takes, if the run has recorded that."""
    values = [batch] if isinstance(batch, paddle.Tensor) else batch
    if not isinstance(values, (tuple, list)) or not values:
        raise DataError(
            f"a batch is a {type(batch).__name__}; expected the input, or (inputs, labels); for "
            "another structure give forward, a function (model, batch) -> outputs"
        )
    if inputs is None:
        inputs = max(1, len(values) - 1)  # without the labels
    if len(values) - inputs not in (0, 1):
        raise DataError(
            f"the number of values in a batch is {len(values)}, and the net was trained with "
            f"{inputs} inputs; expected {inputs}, or one more for the labels; for another "
            "structure give forward, a function (model, batch) -> outputs"
        )
    return model(*values[:inputs])


def _as_array(output: Any) -> np.ndarray:
    if not isinstance(output, paddle.Tensor) or not output.ndim:
        raise DataError(
            f"an output of the model is a {type(output).__name__} without an axis for the samples; "
            "expected tensors [N, ...]; give forward, a function (model, batch) -> outputs"
        )
    return as_array(output)


def _joined(batches: Sequence[Any]) -> Outputs:
    """Concatenate the arrays of batches, which all have the same structure."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: _joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (tuple, list)):
        joined: Outputs = rebuilt(first, [_joined(parts) for parts in zip(*batches)])
        return joined
    joined_array: np.ndarray = np.concatenate(batches)
    return joined_array

"""Try the first batch before any file is written, so that errors show early, with the shapes.

During the trial, `is_rehearsal()` is true.
"""

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.sampler import Shard, shards_of
from paddle_mnist.data.seeding import reseed
from paddle_mnist.data.structures import (
    describe_batch,
    explained,
    hash_of_batch,
    leaves,
    mapped,
    num_samples,
)
from paddle_mnist.errors import ConfigError, DataError, PeerError, StoppedError, summary
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.optimizer_state import optimizer_parameters
from paddle_mnist.hidden_state.snapshot import Snapshot
from paddle_mnist.interfaces import Loader, MetricSums
from paddle_mnist.metrics.sums import as_float
from paddle_mnist.nn.layers import evaluation_mode, remove_gradient
from paddle_mnist.system.arrays import as_array
from paddle_mnist.training.batch_errors import labels_checked, located
from paddle_mnist.training.callbacks import rehearsing
from paddle_mnist.training.initial_state import InitialState, restored
from paddle_mnist.training.steps import Step, run_step, step_outputs

log = logging.getLogger("paddle_mnist")

# In Paddle 3.3.1, a step with a sparse gradient crashes the process with std::bad_alloc.
NOT_FOR_SPARSE_GRADIENTS = ("AdamW",)

# How far the mean of the halves' losses may be from the batch's, relative to the largest of them.
# Rounding in float32 causes 1e-6 to 1e-5, in bfloat16 up to 1e-2.
TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-3, 3e-2
REMEDY = "expected the mean over the samples, or Mean(total, count) for a mean over other units"


def try_first_batch(
    step: Step,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    loader: Loader,
    seed: int,
    is_divided: bool = False,
    is_low_precision: bool = False,
    extra: Optional[ExtraState] = None,
) -> tuple[Mapping[str, MetricSums], str]:
    """Run the first batch through the step and the backward pass, and undo all changes.

    Return its metrics by name, without the loss, and a hash of the batch, or of its first shard.

    is_divided: whether steps are divided into shards or batches, or between processes; the loss
        must then be a mean over samples. is_low_precision: whether the forward pass computes in low
        precision. extra: the state beside the model that a step may change.

    Restores all values and clears all gradients, but does not restore the global random-number
    generators. Raises ConfigError, with the shapes in the batch, for an error in the model, the
    loss or the metrics; DataError if there is no batch.
    """
    with _first_shard(loader, None, model, extra) as shard:
        digest = hash_of_batch(shard.batch)  # before the step, which may change it
        reseed(seed, 0)
        model.train()
        before = [name for name, _ in model.named_parameters()]
        for parameter in model.parameters():  # of a pass of the caller's, before `fit`
            remove_gradient(parameter)
        outputs = run_step(step, model, shard.batch, shard.samples)
        _warn_of_gradients(model, optimizer)
        outputs.loss.backward()
        _check_for_late_parameters(model, before)
        if extra:
            extra.require_optimizers()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        is_sparse = any(gradient.is_selected_rows() for gradient in gradients)
        _check_for_nan(outputs.loss, shard.batch)
        if outputs.count != 0 and not gradients:
            raise ConfigError(
                "the loss of the first batch has no gradient for any parameter; compute it from "
                "the model's outputs"
            )
        if is_divided:
            _check_mean(step, model, shard.batch, is_low_precision)
    name = type(optimizer).__name__
    if is_sparse and name in NOT_FOR_SPARSE_GRADIENTS:
        raise ConfigError(
            f"the optimizer is {name}, and an embedding has sparse=True; with both, Paddle "
            "crashes the process; use sparse=False, or Adam with lazy_mode, SGD or Momentum"
        )
    if is_sparse and is_divided:
        log.info("sparse gradients are made dense for the exchange between shards and processes")
    return outputs.metrics, digest


def try_evaluation(
    step: Step,
    model: nn.Layer,
    loader: Loader,
    split: str,
    extra: Optional[ExtraState] = None,
    is_low_precision: bool = False,
) -> list[str]:
    """Run the first batch of an evaluation; return the tags of its metrics: "valid/loss", ...

    Raises the same errors as `try_first_batch`. If there are several batches, warns of a loss that
    is not a mean over samples.
    """
    with _first_shard(loader, split, model, extra) as shard:
        with evaluation_mode(model), paddle.no_grad():
            values = step(model, shard.batch)
            step_outputs(values, shard.samples)  # checks them
        if loader.steps_per_epoch != 1:
            _check_mean(step, model, shard.batch, is_low_precision, split)
    return [f"{split}/{name}" for name in values]


@contextlib.contextmanager
def _first_shard(
    loader: Loader, split: Optional[str], model: nn.Layer, extra: Optional[ExtraState]
) -> Iterator[Shard]:
    """Yield the first shard of a split for a trial, and undo the changes of the trial.

    split: None for the training data. Errors in the trial describe the batch.
    """
    data = f"the data {split!r}" if split else "the training data"
    batches = loader.first_batches(1)
    if not batches:
        raise DataError(f"{data} have no batches; expected at least one")
    shard = shards_of(batches[0])[0]
    place = located([shard], loader, 0, 0, data)
    undone = restored(_initial_state(model, extra))
    explains = explained(shard.batch, f"the first batch of {split}" if split else "the first batch")
    with rehearsing(), place, undone, explains, labels_checked():
        yield shard


def _warn_of_gradients(model: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
    """Log a parameter of the optimizer of which a step leaves a gradient, before the backward pass.

    Other optimizers, as in the step of a GAN, may clear those of other parameters as a step begins.
    """
    own = set(map(id, optimizer_parameters(optimizer)))
    for name, parameter in model.named_parameters():
        gradient = parameter.grad if id(parameter) in own else None
        # Paddle's `any` takes no float16 and no bfloat16.
        if gradient is not None and (gradient.is_selected_rows() or as_array(gradient).any()):
            log.warning(
                "the step leaves a gradient of %s, to which that of the loss is added; if the step "
                "calls backward on its loss, leave that to fit, which also updates the model",
                name,
            )
            return


def _check_for_late_parameters(model: nn.Layer, before: Collection[str]) -> None:
    """Raise ConfigError for parameters that the first forward pass has created."""
    late = [name for name, _ in model.named_parameters() if name not in before]
    if late:
        raise ConfigError(
            f"the first forward pass has created {', '.join(late)}, which no optimizer has, so "
            "they would never be trained; expected the model's __init__ to create all layers"
        )


def _initial_state(model: nn.Layer, extra: Optional[ExtraState]) -> Union[InitialState, Snapshot]:
    """Return the current values of everything that a pass may change."""
    if extra:
        return InitialState(model, extra)
    trained = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    return Snapshot({"model": model}, {id(parameter) for parameter in trained})


def _check_for_nan(loss: paddle.Tensor, batch: Any) -> None:
    """Raise DataError if the loss is not finite because the batch is not."""
    if np.isfinite(loss.item()):
        return
    tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, paddle.Tensor)]
    if not all(paddle.isfinite(leaf).all() for leaf in tensors if leaf.is_floating_point()):
        raise DataError(
            f"the loss of the first batch is {loss.item()}, and the batch has numbers that are "
            f"not finite; expected finite numbers; the batch is {describe_batch(batch)}"
        )


def _check_mean(
    step: Step, model: nn.Layer, batch: Any, is_low_precision: bool, split: Optional[str] = None
) -> None:
    """Check that the loss of a batch is the weighted mean of the losses of its halves.

    Only then are metrics and gradients independent of how samples are divided into batches, shards
    and processes. The model is in evaluation mode. Skips Paddle's own losses, whose mean is known;
    losses that draw random numbers; and batches that cannot be halved, because they have one
    sample, or a tensor without a row for each sample, or because the step needs the complete batch.

    split: the name of the data to evaluate; None for training steps that are divided.
    Raises ConfigError if the loss of a training step is not a mean over samples; warns for the loss
    of a split. Also compares a third of a split's batch with the rest, since halves may contain
    equal numbers of the units that the loss averages over.
    """
    if getattr(step, "has_known_mean", False):
        return
    parts = [*_parts(batch, 2), *(_parts(batch, 3) if split else [])]
    if not parts:
        return
    try:
        with evaluation_mode(model), paddle.no_grad():
            seeded = [(batch, 0), (batch, 1), *((part, 0) for part in parts)]
            losses, counts = np.array([_loss(step, model, *of_seed) for of_seed in seeded]).T
    except (StoppedError, PeerError):
        raise
    except Exception as error:  # a step may need complete batches, or training mode
        log.info(
            "cannot check whether the loss is a mean over samples: in evaluation mode, or on part "
            "of a batch, it fails with %s",
            summary(error),
        )
        return
    name = f"the first batch of {split}" if split else "the first batch"
    if not counts.all() or not np.isfinite(losses).all():
        return
    if not losses.any():  # for example, if all labels of the batch are ignored
        level = logging.INFO if split else logging.WARNING
        log.log(level, "the loss of %s is 0, which hides what it averages over", name)
        return
    whole, again = losses[:2]
    pairs = [slice(start, start + 2) for start in range(2, len(losses), 2)]
    means = [np.average(losses[pair], weights=counts[pair]) for pair in pairs]
    mean, pair = max(zip(means, pairs), key=lambda entry: abs(entry[0] - whole))
    of_parts = losses[pair]
    tolerance = LOW_PRECISION_TOLERANCE if is_low_precision else TOLERANCE
    allowed = tolerance * abs(losses).max() + 1e-7
    if abs(whole - again) > allowed or abs(mean - whole) <= allowed:
        return
    # If the loss of a part is 0, sum and mean cannot be told apart.
    is_sum = all(of_parts) and abs(sum(of_parts) - whole) <= allowed
    what = "a sum" if is_sum else f"not the mean over the samples, {mean:.4g}"
    values = " and ".join(f"{value:.4g}" for value in of_parts)
    problem = (
        f"the loss of {name} is {whole:.4g}, of two parts {values}: it is {what}, so its value "
        "depends on how the samples are divided into batches"
    )
    if not split:
        raise ConfigError(
            f"{problem}, and grad_shards, accumulate or several processes would change the "
            f"result; {REMEDY}; or whole batches in one process"
        )
    log.warning("%s; %s", problem, REMEDY)


def _loss(step: Step, model: nn.Layer, batch: Any, seed: int) -> tuple[float, float]:
    """Return the loss of a batch, and its count."""
    reseed(seed, 0)
    samples = num_samples(batch)
    outputs = run_step(step, model, batch, samples)
    return as_float(outputs.loss), samples if outputs.count is None else outputs.count


def _parts(batch: Any, divisor: int) -> list[Any]:
    """Return a half, a third, ... of a batch and the rest; [] if its samples cannot be divided."""
    size = num_samples(batch)

    def has_no_rows(leaf: Any) -> bool:
        return isinstance(leaf, (str, bytes)) or list(getattr(leaf, "shape", [size]))[:1] != [size]

    if size < divisor or any(map(has_no_rows, leaves(batch))):
        return []

    def rows(part: slice) -> Any:
        return mapped(batch, lambda leaf: leaf[part] if hasattr(leaf, "shape") else leaf)

    return [rows(slice(0, size // divisor)), rows(slice(size // divisor, size))]

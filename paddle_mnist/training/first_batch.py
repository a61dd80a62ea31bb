"""Try the first batch before anything is written, so that errors show at once, with the shapes."""

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.sampler import Shard, shards_of
from paddle_mnist.data.seeding import reseed
from paddle_mnist.data.structures import describe_batch, explained, leaves, mapped, num_samples
from paddle_mnist.errors import ConfigError, DataError, PeerError, StoppedError, summary
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.snapshot import Snapshot
from paddle_mnist.interfaces import Loader, MetricSums
from paddle_mnist.metrics.sums import as_float
from paddle_mnist.nn.layers import evaluation_mode
from paddle_mnist.training.batch_errors import located
from paddle_mnist.training.beginning import Beginning, restored
from paddle_mnist.training.callbacks import rehearsing
from paddle_mnist.training.steps import Step, run_step, step_outputs

log = logging.getLogger("paddle_mnist")

# A step with a sparse gradient ends the process in Paddle 3.3.1, with std::bad_alloc.
NOT_FOR_SPARSE_GRADIENTS = ("AdamW",)

# How far the mean of the halves may be from the whole's, relative to the largest of the three.
# Rounding of float32 gives 1e-6 to 1e-5, of bfloat16 up to 1e-2.
TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-3, 3e-2
REMEDY = "expected the mean over the samples, or Mean(total, count) with what it is a mean over"


def try_first_batch(
    step: Step,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    loader: Loader,
    seed: int,
    is_divided: bool = False,
    is_low_precision: bool = False,
    extra: Optional[ExtraState] = None,
) -> Mapping[str, MetricSums]:
    """Run the first batch through the step and the backward pass, and undo all changes.

    Return its metrics by name, without the loss.

    is_divided: whether steps are divided into shards, batches or between processes; a loss that
        is no mean over samples is then refused. is_low_precision: whether the forward pass computes
        in low precision. extra: the state beside the model that a step may change.

    Afterwards, all values are as before and no parameter has a gradient. The global generators of
    random numbers are not restored. Raises ConfigError, with the shapes in the batch, for an error
    in the model, the loss or the metrics; DataError if there is no batch.
    """
    with _first_shard(loader, None, model, extra) as shard:
        reseed(seed, 0)
        model.train()
        before = [name for name, _ in model.named_parameters()]
        outputs = run_step(step, model, shard.batch, shard.samples)
        outputs.loss.backward()
        _check_for_late_parameters(model, before)
        if extra:
            extra.require_optimizers()
        gradients = [parameter.grad for parameter in model.parameters()]
        is_sparse = any(
            gradient is not None and gradient.is_selected_rows() for gradient in gradients
        )
        _check_for_nan(outputs.loss, shard.batch)
        if outputs.count != 0 and all(gradient is None for gradient in gradients):
            raise ConfigError(
                "the loss of the first batch has no gradient for any parameter; expected one that "
                "is computed from the model's outputs"
            )
        if is_divided:
            _check_mean(step, model, shard.batch, is_low_precision)
    name = type(optimizer).__name__
    if is_sparse and name in NOT_FOR_SPARSE_GRADIENTS:
        raise ConfigError(
            f"the optimizer is {name}, and an embedding has sparse=True, a pair with which Paddle "
            "ends the process; expected sparse=False, or Adam with lazy_mode, SGD or Momentum"
        )
    if is_sparse and is_divided:
        log.info("sparse gradients are made dense for the exchange between shards and processes")
    return outputs.metrics


def try_evaluation(
    step: Step,
    model: nn.Layer,
    loader: Loader,
    split: str,
    extra: Optional[ExtraState] = None,
    is_low_precision: bool = False,
) -> list[str]:
    """Run the first batch of an evaluation; return the tags of its metrics: "valid/loss", ...

    Raises as `try_first_batch` does. Warns of a loss that is no mean over samples, if there are
    several batches.
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
    """Give the first shard of a split for a trial, and undo what the trial changes.

    split: None for the training data. An error in the trial says what is wrong with the batch.
    """
    data = f"the data {split!r}" if split else "the training data"
    batches = loader.first_batches(1)
    if not batches:
        raise DataError(f"{data} have no batches; expected at least one")
    shard = shards_of(batches[0])[0]
    place = located([shard], loader, 0, 0, data)
    undone = restored(_beginning(model, extra))
    explains = explained(shard.batch, f"the first batch of {split}" if split else "the first batch")
    with rehearsing(), place, undone, explains:
        yield shard


def _check_for_late_parameters(model: nn.Layer, before: Collection[str]) -> None:
    """Raise ConfigError for parameters that the first forward pass has created."""
    late = [name for name, _ in model.named_parameters() if name not in before]
    if late:
        raise ConfigError(
            f"the first forward pass has created {', '.join(late)}, which no optimizer has, so "
            "they would never be trained; expected the model's __init__ to create all layers"
        )


def _beginning(model: nn.Layer, extra: Optional[ExtraState]) -> Union[Beginning, Snapshot]:
    """Return the current state of what a pass may change."""
    if extra:
        return Beginning(model, extra)
    trained = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    return Snapshot({"model": model}, {id(parameter) for parameter in trained})


def _check_for_nan(loss: paddle.Tensor, batch: Any) -> None:
    """Raise DataError if the loss is not finite because the batch is not."""
    floats = [leaf for leaf in leaves(batch) if isinstance(leaf, paddle.Tensor)]
    floats = [leaf for leaf in floats if leaf.is_floating_point()]
    if not np.isfinite(loss.item()) and not all(
        bool(paddle.isfinite(leaf).all()) for leaf in floats
    ):
        raise DataError(
            f"the loss of the first batch is {loss.item()}, and the batch has numbers that are "
            f"not finite; expected finite ones; the batch is {describe_batch(batch)}"
        )


def _check_mean(
    step: Step, model: nn.Layer, batch: Any, is_low_precision: bool, split: Optional[str] = None
) -> None:
    """Check that the loss of a batch is the weighted mean of those of its halves.

    Only then do metrics and gradients not depend on how samples are divided into batches, shards
    and processes. Not checked: Paddle's own losses, whose mean is known; a batch of one sample, or
    one that cannot be halved because not every tensor has a row for each sample, or because the
    step needs all of it; a loss that draws random numbers. The model is in evaluation mode.

    split: of which the batch is evaluated; None for a batch of training steps that are divided.
    Raises ConfigError for a loss of these that is no mean over samples; of a split's it warns.
    """
    halves = None if getattr(step, "has_known_mean", False) else _halves(batch)
    if halves is None:
        return
    try:
        with evaluation_mode(model), paddle.no_grad():
            seeded = [(batch, 0), (batch, 1), *((half, 0) for half in halves)]
            losses, counts = np.array([_loss(step, model, *one) for one in seeded]).T
    except (StoppedError, PeerError):
        raise
    except Exception as error:  # whatever a step raises that needs whole batches, or training
        log.info(
            "whether the loss is a mean over samples is not checked: in evaluation mode, or of "
            "half a batch, it fails with %s",
            summary(error),
        )
        return
    name = f"the first batch of {split}" if split else "the first batch"
    if not counts.all() or not np.isfinite(losses).all():
        return
    if not losses.any():  # of a batch whose labels are all ignored, for example
        level = logging.INFO if split else logging.WARNING
        log.log(level, "the loss of %s is 0, which does not show what it is a mean over", name)
        return
    whole, again, *of_halves = losses
    mean = np.average(of_halves, weights=counts[2:])
    tolerance = LOW_PRECISION_TOLERANCE if is_low_precision else TOLERANCE
    allowed = tolerance * abs(losses).max() + 1e-7
    if abs(whole - again) > allowed or abs(mean - whole) <= allowed:
        return
    # A half of 0 shows no sum.
    is_sum = all(of_halves) and abs(sum(of_halves) - whole) <= allowed
    what = "a sum" if is_sum else f"no mean over the samples, which would be {mean:.4g}"
    values = " and ".join(f"{value:.4g}" for value in of_halves)
    problem = (
        f"the loss of {name} is {whole:.4g}, of its halves {values}: it is {what}, so its value "
        "depends on how the samples are divided into batches"
    )
    if not split:
        raise ConfigError(
            f"{problem}, and grad_shards, accumulate or several processes would change the "
            f"result; {REMEDY}; or whole batches in one process"
        )
    log.warning("%s; %s", problem, REMEDY)


def _loss(step: Step, model: nn.Layer, batch: Any, seed: int) -> tuple[float, float]:
    """Return the loss of a batch, and the count that it is a mean over."""
    reseed(seed, 0)
    samples = num_samples(batch)
    outputs = run_step(step, model, batch, samples)
    return as_float(outputs.loss), samples if outputs.count is None else outputs.count


def _halves(batch: Any) -> Optional[list[Any]]:
    """Return the two halves of a batch; None if it cannot be divided by samples."""
    size = num_samples(batch)

    def has_no_rows(leaf: Any) -> bool:
        return isinstance(leaf, (str, bytes)) or list(getattr(leaf, "shape", [size]))[:1] != [size]

    if size < 2 or any(map(has_no_rows, leaves(batch))):
        return None

    def rows(part: slice) -> Any:
        return mapped(batch, lambda leaf: leaf[part] if hasattr(leaf, "shape") else leaf)

    return [rows(slice(0, size // 2)), rows(slice(size // 2, size))]

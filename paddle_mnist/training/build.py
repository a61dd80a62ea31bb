"""Build a run from the arguments of `fit`, and check it on its first batch."""

import logging

import paddle

from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.data.external import own_batch_size
from paddle_mnist.errors import ConfigError, listed, unknown_name
from paddle_mnist.hidden_state.snapshot import data_snapshot
from paddle_mnist.parallel.world import join
from paddle_mnist.system import signals
from paddle_mnist.system.devices import own_device, select_device
from paddle_mnist.training.arguments import TASK, FitArguments
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.compare import check_override
from paddle_mnist.training.description import FIRST_BATCH, as_yaml, compared, describe_run
from paddle_mnist.training.first_batch import try_evaluation, try_first_batch
from paddle_mnist.training.initial_state import restored
from paddle_mnist.training.parts import new_training, shards_per_step
from paddle_mnist.training.trained_model import BATCH_SIZE

log = logging.getLogger("paddle_mnist")


def build_training(arguments: FitArguments) -> Training:
    """Join the other processes, build the parts, and try the first batch.

    Errors in them are raised here, before a file is written.
    """
    world = join(arguments.processes.hang_timeout, arguments.device)
    device = select_device(own_device(arguments.device) if world.size > 1 else arguments.device)
    if arguments.numerics.deterministic and paddle.is_compiled_with_cuda():
        paddle.set_flags({"FLAGS_cudnn_deterministic": True})
    with signals.interruptible():
        training = new_training(arguments, world, device)
        with restored(data_snapshot(training.extra.data)):
            _try_first_batches(training)
            description = describe_run(training)
    _check_batch_size(training)
    _check_saving(training)
    training.compared = compared(training, description)
    # Without the caller's code, which may refer to the rank of its process,
    shared = {k: v for k, v in training.compared.items() if k.partition(".")[0] not in TASK}
    # and without this process's part of the first batch.
    shared = {k: v for k, v in shared.items() if not k.startswith(f"data.{FIRST_BATCH}")}
    world.require_same(shared, "the arguments or the data")
    world.run_on_main(lambda: check_override(training))
    training.config = as_yaml(training, description)
    for callback in training.callbacks:
        callback.check_training(training)
    return training


def _try_first_batches(training: Training) -> None:
    """Train and evaluate a first batch of each split. Raises ConfigError for an unknown monitor."""
    arguments, numerics = training.arguments, training.arguments.numerics
    shards = shards_per_step(arguments, training.world)
    training.metric_prototypes, digest = try_first_batch(
        training.step,
        training.model,
        training.optimizer,
        training.loader,
        arguments.seed,
        is_divided=shards > 1,
        is_low_precision=numerics.amp != "off",
        extra=training.extra,
    )
    if training.loader.is_indexed and arguments.saving.rehearse:  # which reads it again
        name = f"{FIRST_BATCH}_of_{shards}_shards" if shards > 1 else FIRST_BATCH
        training.first_batch = {name: digest}
    training.tags = [
        tag
        for split, loader in training.evaluator.datasets.items()
        for tag in try_evaluation(
            training.step, training.model, loader, split, training.extra, numerics.amp != "off"
        )
    ]
    monitor, _ = arguments.monitored
    if training.tags and monitor not in training.tags:
        raise ConfigError(unknown_name("monitor", monitor, training.tags))


def _check_batch_size(training: Training) -> None:
    """Raise ConfigError in a new run if the batch size is not the loader's."""
    arguments, size = training.arguments, training.arguments.batch_size
    # A run of version 1.0 may have recorded another one, here or where this run resumes from.
    is_elsewhere = arguments.saving.mirror or arguments.resume not in ("auto", "off")
    is_new = arguments.fresh or not (is_elsewhere or training.run.checkpoints.all())
    own = own_batch_size(arguments.train)
    if own and is_new and size not in (own, BATCH_SIZE):
        raise ConfigError(
            f"batch_size is {size}, but the data are a {type(arguments.train).__name__} with "
            f"batches of {own}; leave batch_size out, or make the batches of {size}; for the "
            f"evaluation, pass evaluating=Evaluating(batch_size={size})"
        )


def _check_saving(training: Training) -> None:
    arguments, saving = training.arguments, training.arguments.saving
    inside_epochs = training.loader.resumes_inside_epochs
    options = {
        "Saving(every_steps)": saving.every_steps,
        # The default only applies to data that can resume inside epochs.
        "Saving(every_seconds)": saving.every_seconds not in (None, Saving.every_seconds),
        "Evaluating(every_steps)": arguments.evaluating.every_steps,
        "Loading(max_steps)": arguments.loading.max_steps,
    }
    if not inside_epochs and (names := [name for name, value in options.items() if value]):
        raise ConfigError(
            f"{listed(names)} would save inside epochs, where this data cannot resume; expected a "
            "paddle.io.Dataset, Loading(steps_per_epoch=...), or no such option"
        )
    if saving.every_epochs:
        return
    if not inside_epochs:
        raise ConfigError(
            "Saving: every_epochs is 0, but with this data a run can resume only from "
            "the end of an epoch; expected at least 1, or a paddle.io.Dataset"
        )
    if not (saving.every_steps or saving.every_seconds) and training.world.is_main_process:
        has_best = saving.keep_best and arguments.valid is not None
        log.warning(
            "Saving: every_epochs is 0, without every_steps or every_seconds: a run that is killed "
            "loses all of its progress%s",
            " since its best epoch" if has_best else "",
        )

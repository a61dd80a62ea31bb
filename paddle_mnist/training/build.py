"""Build the job of a training from the arguments of `fit`, and try its first batch."""

import logging

import paddle

from paddle_mnist.checkpoint.policy import Saving
from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.hidden_state.snapshot import data_snapshot
from paddle_mnist.options import flat_values
from paddle_mnist.parallel.world import World, join
from paddle_mnist.system import signals
from paddle_mnist.system.devices import own_device, select_device
from paddle_mnist.system.program import option_name
from paddle_mnist.training.arguments import ENGINE_OPTIONS, TASK, FitArguments, compared_defaults
from paddle_mnist.training.beginning import restored
from paddle_mnist.training.description import flattened
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.first_batch import try_evaluation, try_first_batch
from paddle_mnist.training.initialize import TrainingParts
from paddle_mnist.training.job import TrainingJob
from paddle_mnist.training.parts import build_parts, loader_of
from paddle_mnist.training.recorded import as_yaml, compared, describe
from paddle_mnist.training.resume import ResumeRequest, check_override
from paddle_mnist.training.run_directory import RunDirectory
from paddle_mnist.training.sample_check import watch_generators
from paddle_mnist.training.soften import check_softenable
from paddle_mnist.training.steps import Step, build_step

log = logging.getLogger("paddle_mnist")


def build_job(arguments: FitArguments) -> TrainingJob:
    """Join the other processes, build the parts, and try the first batch.

    Whatever is wrong with them is raised here, before a file is touched.
    """
    world = join(arguments.processes.hang_timeout, arguments.device)
    device = select_device(own_device(arguments.device) if world.size > 1 else arguments.device)
    numerics = arguments.numerics
    if numerics.deterministic and paddle.is_compiled_with_cuda():
        paddle.set_flags({"FLAGS_cudnn_deterministic": True})
    with signals.interruptible():
        parts = build_parts(arguments, world)
        if arguments.start and arguments.start.soften:
            check_softenable(parts.model, arguments.start.soften, parts.loader)
        step = build_step(arguments.loss, arguments.metrics, arguments.step, numerics.amp)
        evaluator = _build_evaluator(arguments, parts, step, world)
        passes = parts.loader.passes_per_step * world.size
        with restored(data_snapshot(parts.extra.data)):
            metrics = try_first_batch(
                step,
                parts.model,
                parts.optimizer,
                parts.loader,
                arguments.seed,
                is_divided=passes > 1,
                is_low_precision=numerics.amp != "off",
                extra=parts.extra,
            )
            tags = _evaluated_tags(arguments, step, parts, evaluator)
            description = describe(arguments, parts)
    watch_generators([parts.loader, *evaluator.datasets.values()], parts.extra.data)
    inside_epochs = parts.loader.resumes_inside_epochs
    _check_saving(arguments, inside_epochs, world)
    config = compared(arguments, parts, description)
    shared = {name: value for name, value in config.items() if name.partition(".")[0] not in TASK}
    world.require_same(shared, "the arguments or the data")  # a process may have its own rank, say
    options = {*ENGINE_OPTIONS, *flat_values(arguments.groups)}
    run = RunDirectory(arguments.output)
    world.run_on_main(lambda: check_override(run, arguments.override, config, options))
    job = TrainingJob(
        arguments=arguments,
        parts=parts,
        evaluator=evaluator,
        step=step,
        world=world,
        device=device,
        request=ResumeRequest(
            resume=arguments.resume,
            epochs=arguments.epochs,
            config=config,
            must_match=tuple(flattened(arguments.must_match or {})),
            override=arguments.override,
            defaults=compared_defaults(arguments.groups),
        ),
        config=as_yaml(arguments, config, description),
        metric_prototypes=metrics,
        tags=tags,
        callbacks=arguments.all_callbacks,
        resumes_inside_epochs=inside_epochs,
    )
    for callback in job.callbacks:
        callback.check_job(job)
    return job


def _build_evaluator(
    arguments: FitArguments, parts: TrainingParts, step: Step, world: World
) -> EpochEvaluator:
    if parts.schedule.needs_metric and not arguments.splits:
        raise ConfigError(
            "the schedule is a ReduceOnPlateau, which follows a metric, but nothing is "
            "evaluated; expected valid data too"
        )
    evaluating = arguments.evaluating
    batch_size = evaluating.batch_size or arguments.batch_size
    return EpochEvaluator(
        step,
        {
            split: loader_of(data, arguments, batch_size, shuffle=False)
            for split, data in arguments.splits.items()
        },
        every_epochs=evaluating.every_epochs,
        epochs=arguments.epochs,
        world=world,
        every_steps=evaluating.every_steps,
        max_steps=arguments.loading.max_steps,
    )


def _evaluated_tags(
    arguments: FitArguments, step: Step, parts: TrainingParts, evaluator: EpochEvaluator
) -> list[str]:
    """Evaluate a first batch of each split, and return the tags of its metrics.

    Raises ConfigError if `monitor` is not among them.
    """
    tags = [
        tag
        for split, loader in evaluator.datasets.items()
        for tag in try_evaluation(
            step, parts.model, loader, split, parts.extra, arguments.numerics.amp != "off"
        )
    ]
    monitor, _ = arguments.monitored
    if tags and monitor not in tags:
        raise ConfigError(unknown_name("monitor", monitor, tags))
    return tags


def _check_saving(arguments: FitArguments, inside_epochs: bool, world: World) -> None:
    saving = arguments.saving
    # The default is for data that can resume inside epochs; another value is the user's choice.
    chosen_seconds = saving.every_seconds not in (None, Saving.every_seconds)
    if not inside_epochs and (saving.every_steps or chosen_seconds):
        raise ConfigError(
            "Saving: every_steps and every_seconds save inside epochs, where this data cannot "
            "resume; expected a paddle.io.Dataset, Loading(steps_per_epoch=...), or every_epochs"
        )
    if not inside_epochs and (arguments.evaluating.every_steps or arguments.loading.max_steps):
        raise ConfigError(
            "Evaluating: every_steps and Loading: max_steps save inside epochs, where this data "
            "cannot resume; expected a paddle.io.Dataset, or Loading(steps_per_epoch=...)"
        )
    if saving.every_epochs:
        return
    prefix = option_name("save_", "")
    name = option_name("save_every_epochs", "Saving: every_epochs")
    found = f"{name} is {saving.every_epochs}"
    if not inside_epochs:
        raise ConfigError(
            f"{found}, but with this data a run can resume only from the end of an epoch; expected "
            "at least 1, or a paddle.io.Dataset"
        )
    if not (saving.every_steps or saving.every_seconds) and world.is_main_process:
        has_best = saving.keep_best and arguments.valid is not None
        log.warning(
            "%s, without %severy_steps or %severy_seconds: a run that is killed loses all of its "
            "progress%s",
            found,
            prefix,
            prefix,
            " since its best epoch" if has_best else "",
        )

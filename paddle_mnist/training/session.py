"""The phases of a training in a run directory: resume or initialize, train, take final weights."""

import contextlib
import functools
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional, Union

from paddle_mnist._arguments import plain
from paddle_mnist.checkpoint.checkpointer import (
    NO_CHECKPOINTER,
    StoreCheckpointer,
    name_of_checkpoint,
)
from paddle_mnist.checkpoint.manifest import PARAMS, Checkpoint
from paddle_mnist.checkpoint.policy import Saving
from paddle_mnist.checkpoint.weights import write_weights
from paddle_mnist.data.seeding import reseed
from paddle_mnist.errors import CheckpointError
from paddle_mnist.interfaces import Checkpointer
from paddle_mnist.metrics.writers import ManyWriters
from paddle_mnist.monitor.profiler import NO_PROFILE
from paddle_mnist.nn.ema import NO_AVERAGE
from paddle_mnist.nn.implementations import implementations, warn_of_other_implementations
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.parallel.world import World
from paddle_mnist.progress import TrainState
from paddle_mnist.system import heartbeat
from paddle_mnist.training.from_mirror import fetch_from_mirror
from paddle_mnist.training.initialize import (
    BEFORE,
    initialize,
    lineage,
    restore,
    state_digest,
    versions,
)
from paddle_mnist.training.job import TrainingJob
from paddle_mnist.training.resume import find_resume_point
from paddle_mnist.training.run_directory import RunDirectory
from paddle_mnist.training.soften import soften
from paddle_mnist.training.trainer import Trainer

log = logging.getLogger("paddle_mnist")


@contextlib.contextmanager
def open_run(
    path: Union[str, Path],
    world: World,
    name: str,
    saving: Saving,
    fresh: bool = False,
    earlier: Iterable[logging.LogRecord] = (),
) -> Iterator[RunDirectory]:
    """Open a run directory, which the main process locks for all, and its mirror.

    name: the model's. fresh, earlier: see `RunDirectory.opened`.
    Raises as `RunDirectory.opened` does.
    """
    run = RunDirectory(path, name)
    with contextlib.ExitStack() as stack:
        # What the caller does afterwards may take its time.
        stack.callback(heartbeat.pause_watchdog)

        def lock() -> None:
            stack.enter_context(run.opened(fresh, saving, earlier))
            stack.enter_context(run.mirrored(saving))

        world.run_on_main(lock, has_time_limit=True)  # that of the mirror
        yield run


def resume_point(job: TrainingJob, run: RunDirectory) -> Optional[Checkpoint]:
    """Return the checkpoint from which a job resumes; None to start at step 0.

    Raises as `find_resume_point` does, in every process.
    """

    def find() -> Optional[Checkpoint]:
        fetch_from_mirror(run, job.request, needs_best=job.arguments.ends_with_best)
        checkpoint = find_resume_point(run, job.request)
        if checkpoint and job.world.size > 1:  # which may not share this disk
            return checkpoint.read_into_memory()
        return checkpoint

    return job.world.run_on_main(find, has_time_limit=True)  # that of the mirror


def resume_or_initialize(
    job: TrainingJob, run: RunDirectory, checkpoint: Optional[Checkpoint]
) -> TrainState:
    """Bring the parts and the run directory to where the training starts; return its state.

    Raises CheckpointError if a checkpoint does not fit, DataError if processes do not agree.
    """
    origin: Mapping[str, Any] = {}  # the manifest of what the training starts from, if anything
    before: Optional[Mapping[str, float]] = None
    if checkpoint:
        # Whatever is overridden, the schedule may follow from it: the epochs, for example.
        is_new = bool(job.arguments.override)
        state = restore(job.parts, checkpoint, run.elsewhere(), new_schedule=is_new)
        origin = checkpoint.manifest
        before = origin.get(BEFORE)
    else:
        state = job.new_state()
        if start := job.arguments.start:
            origin = initialize(job.parts, job.world, start)
            if not start.weights_only:
                before = _evaluate_before(job)
            if start.soften:
                soften(job.parts.model, start.soften, job.step, job.parts.loader, job.world)
                job.parts.average.load(job.parts.model.state_dict())
    if job.world.size > 1:
        digest = state_digest(job.parts, state)
        job.world.require_same(
            digest, "the weights, the optimizer's state or the place in the training"
        )
        log.info("%d processes start from the same: SHA-256 %s", job.world.size, digest)

    def prepare_run() -> None:
        run.start_history(checkpoint)
        run.write_config(job.config)

    job.world.run_on_main(prepare_run)
    is_own = run.owns(checkpoint)
    computed_by = implementations(job.parts.model)
    if is_own:
        job.world.run_on_main(lambda: warn_of_other_implementations(origin, computed_by))
    context = run.checkpoints.context  # in every manifest from now on
    for callback in job.callbacks:
        context |= plain(callback.manifest_entries() or {})
    context.update(
        lineage(origin, is_own, before),
        config=job.request.config,
        device=job.device,
        threads=os.environ.get("OMP_NUM_THREADS"),
        computed_by=computed_by,
        world_size=job.world.size,
        versions=versions(),
    )
    return state


def _evaluate_before(job: TrainingJob) -> dict[str, float]:
    """Return the metrics of the weights that were taken over, but for NaN.

    Those at the end are compared to them.
    """
    metrics = job.evaluator.metrics(job.parts.model)
    before = {tag: value for tag, value in metrics.items() if math.isfinite(value)}
    if before:
        words = ", ".join(f"{tag} {value:.4g}" for tag, value in before.items())
        log.info("before this training: %s", words)
    return before


def train_epochs(
    job: TrainingJob, run: RunDirectory, state: TrainState, checkpoint: Optional[Checkpoint]
) -> None:
    """Train the epochs that are left.

    state: where the training stands; it changes with every step.
    checkpoint: from which it was resumed, if it was.
    """
    parts, arguments = job.parts, job.arguments
    history = run.open_history() if job.world.is_main_process else ManyWriters([])
    with contextlib.closing(history):
        checkpointer = _checkpointer(job, run, checkpoint)
        if arguments.saving.at_start and not state.step and not run.owns(checkpoint):
            checkpointer.at_start(state, parts.model, parts.optimizer)
        profilers = [one for callback in job.callbacks if (one := callback.profiler())]
        trainer = Trainer(
            run.weights,
            parts.model,
            parts.optimizer,
            step=job.step,
            metric_prototypes=job.metric_prototypes,
            schedule=parts.schedule,
            evaluator=job.evaluator,
            average=parts.average,
            checkpointer=checkpointer,
            writer=ManyWriters([history, *job.callbacks]),  # which `fit` closes
            observers=job.callbacks,
            profile=profilers[0] if profilers else NO_PROFILE,
            state=state,
            log_every=job.log_every,
            reseed=functools.partial(reseed, arguments.seed),
            exchange=job.gradient_exchange(),
            max_steps=arguments.loading.max_steps,
        )
        try:
            trainer.train(parts.loader, state.epoch, arguments.epochs)
        finally:
            parts.loader.close()


def _checkpointer(
    job: TrainingJob, run: RunDirectory, checkpoint: Optional[Checkpoint]
) -> Checkpointer:
    if not job.world.is_main_process:
        return NO_CHECKPOINTER
    # With other values it is saved again at the end, though no step may be left: for the next call.
    is_there = (
        checkpoint is not None
        and run.owns(checkpoint)
        and checkpoint.manifest["config"] == job.request.config
    )
    return StoreCheckpointer(
        run.checkpoints,
        job.arguments.saving,
        average=job.parts.average,
        resumed_from=checkpoint.state if checkpoint and is_there else None,
        manifest_entries=run.manifest_entries,
        name=job.model_name,
        extra=job.parts.extra,
        saves_inside_epochs=job.resumes_inside_epochs,
        mirror=run.mirror,
    )


def load_final_weights(job: TrainingJob, run: RunDirectory, state: TrainState) -> str:
    """Load the weights that are the training's result; return the name of their checkpoint.

    They are the last ones, or their average, or those of the best checkpoint, whose metrics then
    become the state's. Raises CheckpointError if the best checkpoint is gone.
    """

    def load() -> tuple[str, dict[str, float]]:
        if job.arguments.ends_with_best:
            best = _take_best(job, run, state)
            return best.name, best.state.metrics
        if job.parts.average is not NO_AVERAGE:
            load_weights(job.parts.model, job.parts.average.weights(job.parts.model), "the average")
        return name_of_checkpoint(job.model_name, state), state.metrics

    name, metrics = job.world.run_on_main(load)
    state.metrics = metrics
    job.world.broadcast(job.parts.model.state_dict().values())
    return name


def _take_best(job: TrainingJob, run: RunDirectory, state: TrainState) -> Checkpoint:
    """Load the best checkpoint into the model, and write its weights as the final ones."""
    best = run.checkpoints.best()
    if not state.best:
        raise CheckpointError(
            f"{run.path}: the run ends with its best checkpoint, but no evaluation gave a value of "
            f"{state.monitor}; expected an evaluation before the training is stopped"
        )
    if not best or best.step != state.best[0]:
        raise CheckpointError(
            f"{run.checkpoints.folder}: the best checkpoint is missing; expected the one of "
            f"[step, {state.monitor}] {state.best}; put it back, or evaluate another"
        )
    load_weights(job.parts.model, best.load(PARAMS), best.path)
    write_weights(run.weights, job.parts.model.state_dict())
    epoch = best.state.epoch + (best.state.position > 0)
    log.info(
        "the best of %d evaluations is that of epoch %d (%s)", len(state.scores), epoch, best.name
    )
    return best

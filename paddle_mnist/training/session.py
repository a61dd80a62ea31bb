"""The phases of a training in a run directory: resume or initialize, train, take final weights."""

import contextlib
import functools
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from paddle_mnist.checkpoint.checkpointer import NO_CHECKPOINTER, StoreCheckpointer
from paddle_mnist.checkpoint.manifest import PARAMS, Checkpoint
from paddle_mnist.checkpoint.weights import load_weights, saved_bytes
from paddle_mnist.data.loader import batches_per_epoch
from paddle_mnist.errors import CheckpointError
from paddle_mnist.metrics.console import BarWriter, LogWriter
from paddle_mnist.metrics.visualdl import VisualDLWriter
from paddle_mnist.metrics.writers import ManyWriters
from paddle_mnist.monitor.print_layers import print_in_batches
from paddle_mnist.monitor.profiler import NO_PROFILE, Profile
from paddle_mnist.monitor.watch import watch
from paddle_mnist.nn.conv_blocks import implementation
from paddle_mnist.nn.ema import NO_AVERAGE
from paddle_mnist.nn.seeding import reseed
from paddle_mnist.parallel.world import World
from paddle_mnist.state import Observer, TrainState
from paddle_mnist.system import heartbeat
from paddle_mnist.system.files import write_atomically
from paddle_mnist.training.initialize import (
    BEFORE,
    fingerprint,
    initialize,
    lineage,
    restore,
    versions,
)
from paddle_mnist.training.job import TrainingJob
from paddle_mnist.training.resume import find_resume_point, warn_of_other_convolution
from paddle_mnist.training.run_directory import RunDirectory
from paddle_mnist.training.soften import soften
from paddle_mnist.training.trainer import Trainer

log = logging.getLogger("paddle_mnist")


@dataclass(frozen=True)
class Start:
    """Where a training starts.

    state: what the first step continues. saved: the same, if it is a checkpoint of the run's own.
    """

    state: TrainState
    saved: Optional[TrainState]


@contextlib.contextmanager
def open_run(
    path: Union[str, Path], world: World, name: str, fresh: bool = False
) -> Iterator[RunDirectory]:
    """Open a run directory, which the main process locks for all.

    name: the model's. fresh: move what is there aside. Raises as `RunDirectory.opened` does.
    """
    run = RunDirectory(path, name)
    with contextlib.ExitStack() as stack:
        stack.callback(
            heartbeat.pause_watchdog
        )  # what the caller does afterwards may take its time

        def lock() -> None:
            stack.enter_context(run.opened(fresh))

        world.run_on_main(lock)
        yield run


def resume_point(job: TrainingJob, run: RunDirectory) -> Optional[Checkpoint]:
    """Return the checkpoint from which a job resumes; None to start at step 0.

    Raises as `find_resume_point` does, in every process.
    """

    def find() -> Optional[Checkpoint]:
        checkpoint = find_resume_point(run, job.request)
        # It goes to other processes, whose disks may be others.
        return checkpoint and checkpoint.read_into_memory()

    return job.world.run_on_main(find)


def resume_or_initialize(
    job: TrainingJob, run: RunDirectory, checkpoint: Optional[Checkpoint]
) -> Start:
    """Bring the parts and the run directory to where the training starts.

    Raises CheckpointError if a checkpoint does not fit, DataError if processes do not agree.
    """
    if checkpoint:
        state = restore(job.parts, checkpoint, job.options.new_schedule)
        parent, before = checkpoint.manifest, checkpoint.manifest.get(BEFORE)
    else:
        options = job.options
        state = TrainState(monitor=options.monitor, mode=options.mode)
        parent = initialize(
            job.parts,
            job.world,
            job.find_weights,
            options.init_from,
            options.incremental_from,
            options.init_partial,
        )
        before = _prepare_for_new_data(job) if options.incremental_from else None
    if job.world.size > 1:
        digest = fingerprint(job.parts, state)
        job.world.require_same(
            digest, "the weights, the optimizer's state or the place in the training"
        )
        log.info("%d processes start from the same: SHA-256 %s", job.world.size, digest)

    def prepare_run() -> None:
        run.start_history(checkpoint)
        run.write_config(job.config)

    job.world.run_on_main(prepare_run)
    own = checkpoint if checkpoint and run.owns(checkpoint) else None
    convolution = implementation(job.parts.model)
    if own:
        job.world.run_on_main(lambda: warn_of_other_convolution(own.manifest, convolution))
    run.checkpoints.context.update(
        lineage(own, parent, before),
        **job.manifest,
        device=job.device,
        threads=os.environ.get("OMP_NUM_THREADS"),
        convolution=convolution,
        world_size=job.world.size,
        versions=versions(),
    )
    return Start(state, own and own.state)


def _prepare_for_new_data(job: TrainingJob) -> dict[str, float]:
    """Evaluate the weights that were taken over, and soften the net if that is asked for.

    Return the metrics, but for NaN, to which those at the end are compared.
    """
    parts, options = job.parts, job.options
    metrics = job.evaluator.metrics(parts.model)
    before = {tag: value for tag, value in metrics.items() if math.isfinite(value)}
    if before:
        words = ", ".join(f"{tag} {value:.4g}" for tag, value in before.items())
        log.info("before this training: %s", words)
    if options.soften:
        soften(parts.model, options.soften, job.step, parts.loader, job.world)
        parts.average.load(parts.model.state_dict())
    return before


def train_epochs(
    job: TrainingJob, run: RunDirectory, start: Start, board: VisualDLWriter
) -> TrainState:
    """Train the epochs that are left; return the state in which the training ended."""
    parts, options = job.parts, job.options
    profile = Profile(run.profile, options.profile) if options.profile else NO_PROFILE
    with contextlib.closing(_file_writers(job, run)) as writers, contextlib.closing(profile):
        checkpointer = _checkpointer(job, run, start)
        if options.save_initial and not start.saved and not start.state.step:
            checkpointer.at_start(start.state, parts.model, parts.optimizer)
        trainer = Trainer(
            run.weights,
            parts.model,
            parts.optimizer,
            step=job.step,
            metric_examples=job.metric_examples,
            schedule=parts.schedule,
            evaluator=job.evaluator,
            average=parts.average,
            checkpointer=checkpointer,
            writer=ManyWriters([writers, board]),
            observers=[*_observers(job, start.state), *job.callbacks, board],
            profile=profile,
            state=start.state,
            log_every=options.log_every,
            reseed=functools.partial(reseed, options.seed),
            exchange=job.gradient_exchange(),
        )
        return trainer.train(parts.loader, start.state.epoch, options.epochs)


def _checkpointer(job: TrainingJob, run: RunDirectory, start: Start):
    if not job.world.is_main_process:
        return NO_CHECKPOINTER
    return StoreCheckpointer(
        run.checkpoints,
        job.options.save_policy,
        job.options.retention,
        job.parts.average,
        start.saved,
        run.manifest_entries,
        job.model_name,
        job.parts.further,
    )


def _file_writers(job: TrainingJob, run: RunDirectory) -> ManyWriters:
    """Return what writes the log, `metrics.jsonl` and the progress bar, in the main process."""
    if not job.world.is_main_process:
        return ManyWriters([])
    return ManyWriters(
        [
            LogWriter(job.options.epochs, batches_per_epoch(job.parts.loader)),
            run.open_history(),
            BarWriter(job.steps),
        ]
    )


def _observers(job: TrainingJob, state: TrainState) -> list[Observer]:
    """Start what looks into the net; return what has figures to write."""
    model, options = job.parts.model, job.options
    place = {"start": state.step, "passes_per_step": job.parts.loader.passes_per_step}
    if options.print_shapes or options.print_contents:
        print_in_batches(
            model, options.print_shapes, options.print_contents, print_fn=log.info, **place
        )
    if not options.watch:
        return []
    return [watch(model, every=options.watch, train_only=True, **place)]


def load_final_weights(job: TrainingJob, run: RunDirectory, state: TrainState) -> str:
    """Load the weights that are the training's result; return the name of their checkpoint.

    They are the last ones, or their average, or those of the best checkpoint, whose metrics then
    become the state's. Raises CheckpointError if the best checkpoint is gone.
    """

    def load() -> tuple[str, dict[str, float]]:
        if job.options.ends_with_best:
            best = _load_best(job, run, state)
            return best.name, best.state.metrics
        if job.parts.average is not NO_AVERAGE:
            load_weights(job.parts.model, job.parts.average.weights(job.parts.model), "the average")
        return f"{job.model_name}_epoch{state.epoch - 1}", state.metrics

    name, state.metrics = job.world.run_on_main(load)
    job.world.broadcast(job.parts.model.state_dict().values())
    return name


def _load_best(job: TrainingJob, run: RunDirectory, state: TrainState) -> Checkpoint:
    best = run.checkpoints.best()
    if not best or (state.best and best.step != state.best[0]):
        raise CheckpointError(
            f"{run.checkpoints.folder}: the best checkpoint is missing; expected the one of "
            f"[step, {state.monitor}] {state.best}; put it back, or evaluate another"
        )
    load_weights(job.parts.model, best.load(PARAMS), best.path)
    write_atomically(run.weights, saved_bytes(job.parts.model.state_dict()))
    log.info("the best of %d evaluations is %s", len(state.scores), best.name)
    return best

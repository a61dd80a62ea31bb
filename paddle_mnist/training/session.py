"""The phases of a run: open its directory, resume or start, train, load final weights."""

import contextlib
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from paddle_mnist.checkpoint.checkpointer import Checkpointer
from paddle_mnist.checkpoint.manifest import PARAMS, Checkpoint, Manifest, name_of_checkpoint
from paddle_mnist.checkpoint.weights import write_weights
from paddle_mnist.data.seeding import SEEDING
from paddle_mnist.errors import CheckpointError
from paddle_mnist.metrics.writers import JsonlWriter, ManyWriters
from paddle_mnist.nn.ema import NO_AVERAGE
from paddle_mnist.nn.layers import computed_by, warn_of_other_code
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.options import plain
from paddle_mnist.system import heartbeat
from paddle_mnist.system.environment import versions
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.parts import new_loop
from paddle_mnist.training.steps import SupervisedStep
from paddle_mnist.training.witness import FileWitness, Witness

log = logging.getLogger("paddle_mnist")


@contextlib.contextmanager
def open_run(training: Training, earlier: Iterable[logging.LogRecord]) -> Iterator[None]:
    """Open the run directory, which the main process locks for all, and its mirror.

    earlier: see `RunDirectory.opened`, which raises.
    """
    run, saving = training.run, training.arguments.saving
    with contextlib.ExitStack() as stack:
        heartbeat.begin()
        stack.callback(heartbeat.end)

        def lock() -> None:
            stack.enter_context(run.opened(training.arguments.fresh, saving, earlier))
            stack.enter_context(run.mirrored(saving))

        training.world.run_on_main(lock, has_time_limit=True)  # that of the mirror
        yield


def run_entries(training: Training) -> dict[str, Any]:
    """Return the entries of the run's manifests that stay the same."""
    world, step, origin = training.world, training.step, training.origin
    is_own, code = training.run.owns(training.resumed_from), computed_by(training.model)
    if is_own:
        world.run_on_main(lambda: warn_of_other_code(origin, code))
    about: dict[str, Any] = {}
    for callback in training.callbacks:
        about |= plain(callback.manifest_entries() or {})
    own = Manifest(
        run_id=origin.get("run_id") if is_own else uuid.uuid4().hex,
        parent=origin.get("parent") if is_own else origin.get("run_id"),
        config=dict(training.compared),
        device=training.device,
        threads=os.environ.get("OMP_NUM_THREADS"),
        computed_by=code,
        world_size=world.size,
        versions=versions(),
        seeding=SEEDING,
        inputs=step.inputs if isinstance(step, SupervisedStep) else None,  # for `predict_run`
    )
    return {**about, **own}


def train_epochs(training: Training, about: Mapping[str, Any]) -> None:
    """Train the remaining epochs, and write the last weights, or their average.

    about: what `run_entries` returned.
    """
    arguments, run, state = training.arguments, training.run, training.state
    is_main = training.world.is_main_process
    history = run.open_history() if is_main else None
    witness = FileWitness(training, about) if is_main else Witness()
    with contextlib.closing(history or ManyWriters([])), contextlib.closing(witness):
        checkpointer = _checkpointer(training, history, about)
        if arguments.saving.at_start and not state.step and not run.owns(training.resumed_from):
            checkpointer.at_start(state)
        profilers = filter(None, [callback.profiler() for callback in training.callbacks])
        loop = new_loop(
            training,
            state,
            # `fit` closes the callbacks.
            ManyWriters([*filter(None, [history]), witness, *training.callbacks]),
            evaluator=training.evaluator,
            checkpointer=checkpointer,
            observers=training.callbacks,
            profile=next(profilers, None),
            log_every=training.log_every,
            max_steps=arguments.loading.max_steps,
            extra=training.extra,
            history=history,
            witness=witness,
        )
        try:
            loop.train(training.loader, arguments.epochs)
        finally:
            training.loader.close()
        training.witness = training.world.run_on_main(witness.summary)
        weights = training.average.weights(training.model)
        run.weights_file = training.world.run_on_main(lambda: write_weights(run.weights, weights))


def _checkpointer(
    training: Training, history: Optional[JsonlWriter], about: Mapping[str, Any]
) -> Checkpointer:
    """Return the checkpointer of the run; without a history, it saves nothing."""
    run, checkpoint = training.run, training.resumed_from
    # With other settings, save again at the end even if no step remains, for the next call.
    is_saved = (
        checkpoint is not None
        and run.owns(checkpoint)
        and checkpoint.manifest["config"] == training.compared
    )
    return Checkpointer(
        run.checkpoints if history else None,
        training.model,
        training.optimizer,
        training.arguments.saving,
        average=training.average,
        resumed_from=checkpoint.state if checkpoint and is_saved else None,
        run_entries=about,
        history=history,
        name=run.name,
        extra=training.extra,
        saves_inside_epochs=training.loader.resumes_inside_epochs,
        mirror=run.mirror,
        not_saved=[*checkpoint.manifest.get("not_saved", ())] if checkpoint else [],
    )


def load_final_weights(training: Training) -> str:
    """Load the final weights of the run; return the name of their checkpoint.

    They are the last ones, their average, or those of the best checkpoint; the state then gets its
    metrics, too. Raises CheckpointError if the best checkpoint is missing.
    """
    model, average, state = training.model, training.average, training.state
    name = name_of_checkpoint(training.run.name, state)
    if training.arguments.ends_with_best:
        best = training.world.run_on_main(lambda: _load_best(training))
        name, state.metrics = best.name, best.state.metrics
    elif average is not NO_AVERAGE:
        load_weights(model, average.weights(model), "the average")
    training.world.broadcast(model.state_dict().values())
    return name


def _load_best(training: Training) -> Checkpoint:
    """Load the best checkpoint into the model, and write its weights as the final ones.

    If the best one could not be saved, uses the best of the others.
    """
    run, state, best = training.run, training.state, training.run.checkpoints.best()
    if not state.best:
        raise CheckpointError(
            f"{run.path}: the run ends with its best checkpoint, but no evaluation has computed "
            f"{state.monitor}; evaluate before training stops"
        )
    step = state.best[0]
    not_saved = run.checkpoints.all()[-1].manifest.get("not_saved", ()) if best else ()
    if not best or step not in (best.step, *not_saved):
        raise CheckpointError(
            f"{run.checkpoints.folder}: the best checkpoint is missing; expected that of step "
            f"{state.best[0]}, {state.monitor} {state.best[1]}; put it back, or evaluate another"
        )
    load_weights(training.model, best.load(PARAMS), best.path)
    run.weights_file = write_weights(run.weights, training.model.state_dict())
    if best.step != step:
        log.warning("the best checkpoint, of step %d, could not be saved", step)
    which = "best" if best.step == step else "best saved one"
    count, epoch = len(state.scores), best.state.epoch + (best.state.position > 0)
    log.info("the %s of %d evaluations is that of epoch %d (%s)", which, count, epoch, best.name)
    return best

"""The phases of a run: open its directory, resume or start, train, load final weights."""

import contextlib
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
from paddle_mnist.checkpoint.manifest import PARAMS, Checkpoint, Manifest
from paddle_mnist.checkpoint.names import name_of_checkpoint
from paddle_mnist.checkpoint.weights import write_weights
from paddle_mnist.data.seeding import SEEDING
from paddle_mnist.errors import CheckpointError
from paddle_mnist.interfaces import Checkpointer, Writer
from paddle_mnist.metrics.writers import JsonlWriter, ManyWriters
from paddle_mnist.nn.ema import NO_AVERAGE
from paddle_mnist.nn.layers import computed_by, warn_of_other_code
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.options import plain
from paddle_mnist.system import heartbeat
from paddle_mnist.system.environment import versions
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.initialize import initialize, state_digest
from paddle_mnist.training.parts import new_loop
from paddle_mnist.training.resume import restore
from paddle_mnist.training.steps import SupervisedStep
from paddle_mnist.training.whole_steps import LastWholeStep
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


def resume_or_initialize(training: Training) -> dict[str, Any]:
    """Prepare the net, its optimizer, all other state and the run directory for the first step.

    Callbacks are called before a checkpoint is loaded, so that weights that they set, such as
    pretrained ones, do not replace trained ones.

    Returns the entries of the run's manifests that stay the same. Raises CheckpointError if a
    checkpoint does not fit, DataError if processes differ.
    """
    world, run, checkpoint = training.world, training.run, training.resumed_from
    # The manifest of the checkpoint that the run starts from, if any.
    origin = checkpoint.manifest if checkpoint else Manifest()
    if not checkpoint and (start := training.arguments.start):
        origin = initialize(training, start)
    for callback in training.callbacks:
        callback.before_training(training)
    training.extra.begin(saves=not checkpoint and training.arguments.start is not None)
    if checkpoint:
        restore(training, checkpoint)
        if checkpoint.is_pair:  # of no run: this one is new, and is rehearsed
            training.resumed_from = checkpoint = None
            origin = Manifest()
    else:
        training.average.load(training.model.state_dict())
    if world.size > 1:
        digest = state_digest(training)
        world.require_same(digest, "the weights, the optimizer's state or the position in the data")
        log.info("%d processes start from the same state: SHA-256 %s", world.size, digest)

    def prepare_run() -> None:
        run.start_history(checkpoint)
        run.write_config(training.config)

    world.run_on_main(prepare_run)
    is_own, step = run.owns(checkpoint), training.step
    code = computed_by(training.model)
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

    about: what `resume_or_initialize` returned.
    """
    arguments, run, state = training.arguments, training.run, training.state
    is_main = training.world.is_main_process
    history = run.open_history() if is_main else ManyWriters([])
    witness = FileWitness(training, about) if is_main else Witness()
    with contextlib.closing(history), contextlib.closing(witness):
        checkpointer = _checkpointer(training, history, about)
        if arguments.saving.at_start and not state.step and not run.owns(training.resumed_from):
            checkpointer.at_start(state)
        profilers = filter(None, [callback.profiler() for callback in training.callbacks])
        loop = new_loop(
            training,
            state,
            ManyWriters([history, witness, *training.callbacks]),  # `fit` closes the callbacks
            evaluator=training.evaluator,
            checkpointer=checkpointer,
            observers=training.callbacks,
            profile=next(profilers, None),
            log_every=training.log_every,
            max_steps=arguments.loading.max_steps,
            witness=witness,
            last_whole=LastWholeStep(
                training.model,
                training.optimizer,
                training.average,
                training.extra,
                history if isinstance(history, JsonlWriter) else None,
            ),
        )
        try:
            loop.train(training.loader, arguments.epochs)
        finally:
            training.loader.close()
        training.witness = training.world.run_on_main(witness.summary)
        weights = training.average.weights(training.model)
        run.weights_file = training.world.run_on_main(lambda: write_weights(run.weights, weights))


def _checkpointer(training: Training, history: Writer, about: Mapping[str, Any]) -> Checkpointer:
    if not isinstance(history, JsonlWriter):  # not in the main process
        return Checkpointer()

    def manifest_entries() -> dict[str, Any]:
        history.journal.sync()  # the lines that are counted
        return {**about, "metrics_lines": history.lines}

    run, checkpoint = training.run, training.resumed_from
    # With other settings, save again at the end even if no step remains, for the next call.
    is_saved = (
        checkpoint is not None
        and run.owns(checkpoint)
        and checkpoint.manifest["config"] == training.compared
    )
    return StoreCheckpointer(
        run.checkpoints,
        training.model,
        training.optimizer,
        training.arguments.saving,
        average=training.average,
        resumed_from=checkpoint.state if checkpoint and is_saved else None,
        manifest_entries=manifest_entries,
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

    def load() -> tuple[str, dict[str, float]]:
        if training.arguments.ends_with_best:
            best = _take_best(training)
            return best.name, best.state.metrics
        if average is not NO_AVERAGE:
            load_weights(model, average.weights(model), "the average")
        return name_of_checkpoint(training.run.name, state), state.metrics

    name, state.metrics = training.world.run_on_main(load)
    training.world.broadcast(model.state_dict().values())
    return name


def _take_best(training: Training) -> Checkpoint:
    """Load the best checkpoint into the model, and write its weights as the final ones."""
    run, state = training.run, training.state
    best = run.checkpoints.best()
    if not state.best:
        raise CheckpointError(
            f"{run.path}: the run ends with its best checkpoint, but no evaluation gave a value of "
            f"{state.monitor}; evaluate before training stops"
        )
    is_best = best and best.step == state.best[0]
    not_saved = run.checkpoints.all()[-1].manifest.get("not_saved", ()) if best else ()
    if not best or not (is_best or state.best[0] in not_saved):
        raise CheckpointError(
            f"{run.checkpoints.folder}: the best checkpoint is missing; expected the one of "
            f"[step, {state.monitor}] {state.best}; put it back, or evaluate another"
        )
    load_weights(training.model, best.load(PARAMS), best.path)
    run.weights_file = write_weights(run.weights, training.model.state_dict())
    epoch = best.state.epoch + (best.state.position > 0)
    if not is_best:
        log.warning("the best checkpoint, of step %d, could not be saved", state.best[0])
    which = "best" if is_best else "best saved one"
    count = len(state.scores)
    log.info("the %s of %d evaluations is that of epoch %d (%s)", which, count, epoch, best.name)
    return best

"""`fit`: train any net on any data, in a run directory."""

import contextlib
import json
import logging
import multiprocessing
import os
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Union

import paddle
from paddle import nn

from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.saved_weights import SavedWeights, find_weights
from paddle_mnist.checkpoint.weights import load_weights
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.errors import CheckpointError, ConfigError, StoppedError
from paddle_mnist.metrics.console import log_to_console
from paddle_mnist.metrics.visualdl import ABOUT, HISTOGRAMS, VisualDLWriter
from paddle_mnist.parallel.process_count import processes_to_start
from paddle_mnist.parallel.world import spawn
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.surroundings import descriptors_open, usable_home
from paddle_mnist.training.arguments import FitArguments, RunConfig
from paddle_mnist.training.build import build_job
from paddle_mnist.training.callbacks import Callback, FitResult, Training
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.initialize import environment
from paddle_mnist.training.rehearsal import rehearse
from paddle_mnist.training.results import (
    describe_result,
    describe_training,
    log_result,
    make_result,
    read_result,
    result_entries,
    result_so_far,
    warn_of_losses,
)
from paddle_mnist.training.run_directory import RunDirectory
from paddle_mnist.training.session import (
    load_final_weights,
    open_run,
    resume_or_initialize,
    resume_point,
    train_epochs,
)

log = logging.getLogger("paddle_mnist")

_running = threading.Lock()  # held while a training runs in this process


def fit(
    model: Union[nn.Layer, Callable[[], nn.Layer]],
    train: Any,
    valid: Any = None,
    *,
    optimizer: Union[paddle.optimizer.Optimizer, Callable[[list], paddle.optimizer.Optimizer]],
    loss: Optional[Callable] = None,
    metrics: Optional[Mapping[str, Any]] = None,
    step: Optional[Callable] = None,
    epochs: int,
    batch_size: int = 32,
    seed: int = 0,
    output: Union[str, Path],
    name: str = "",
    monitor: Optional[str] = None,
    mode: Optional[str] = None,
    shuffle: bool = True,
    collate_fn: Optional[Callable] = None,
    num_workers: int = 0,
    eval_batch_size: Optional[int] = None,
    schedule_every: str = "step",
    accumulate: int = 1,
    ema: float = 0.0,
    amp: str = "off",
    deterministic: bool = False,
    fresh: bool = False,
    resume: Union[str, Path] = "auto",
    state: Optional[Mapping[str, Any]] = None,
    override: Union[str, Sequence[str]] = (),
    binding: Optional[Mapping[str, Any]] = None,
    init_from: Union[str, Path, None] = None,
    init_partial: bool = False,
    incremental_from: Union[str, Path, None] = None,
    soften: Optional[str] = None,
    save_initial: bool = True,
    save_every_epochs: Optional[int] = 1,
    save_every_steps: Optional[int] = None,
    save_every_seconds: Optional[float] = None,
    save_on_exception: bool = True,
    keep_epochs: bool = False,
    keep_last: int = 3,
    keep_every_minutes: Optional[float] = None,
    keep_best: bool = True,
    keep_breakpoints: bool = False,
    eval_every_epochs: int = 1,
    early_stop_patience: Optional[int] = None,
    log_every: int = 100,
    watch: int = 0,
    profile: int = 0,
    check_shape: Sequence[int] = (),
    check_content: Sequence[int] = (),
    visualdl: Sequence[str] = ("scalars", "text", "hparams"),
    figures: bool = True,
    device: str = "auto",
    nprocs: int = 1,
    gpus: Optional[str] = None,
    grad_shards: Optional[int] = None,
    hang_timeout: float = 600.0,
    max_restarts: int = 0,
    evaluator: Optional[EpochEvaluator] = None,
    callbacks: Sequence[Callback] = (),
    config: Optional[RunConfig] = None,
    find_weights: Callable[[str], SavedWeights] = find_weights,
) -> FitResult:
    """Train a net and write everything to a run directory, from which a later call resumes.

    Call `fit` again with the same arguments: an unfinished run resumes, with bit-identical
    results, and a finished run returns its result at once. If the arguments differ, `fit` raises
    ConfigError with a list of the differences.

    The net and its task
        model: a `paddle.nn.Layer`, or a function that builds one.
        optimizer: a `paddle.optimizer`, or a function that builds one from a list of parameters:
            the model's, and then those of a loss that is a `Layer`.
        loss: (outputs, labels) -> mean loss []. A batch is (inputs, labels), or (input, input,
            ..., labels) for a model with several inputs.
        metrics: a dict of metrics by name. Each is a `paddle.metric`; a function (outputs, labels)
            that returns the mean over the batch, a `Mean` or `Sums`; or `Gathered(metric)`.
        step: (model, batch) -> {"loss": ..., and metrics by name}, instead of loss and metrics, for
            batches of any structure. It is also used for evaluation.
    The data
        train, valid: `paddle.io.Dataset`s, whose samples may be nested in dicts and tuples; a list
            is a dataset of samples. The order and the random numbers of a sample depend only on
            seed, epoch and index. Or a `paddle.io.DataLoader`, an `IterableDataset`, or a function
            that returns an iterator over batches (`lambda: iter(batches)` for a list of them):
            with these, a run resumes from the end of an epoch, and inside an epoch only with a
            `ResumableBatchSampler`. valid may be a dict of several, by split name.
        batch_size, shuffle, collate_fn, num_workers: how to load a `Dataset`.
        eval_batch_size: the batch size for evaluation; by default batch_size.
    Training
        epochs: the number of epochs. seed: the seed of all random numbers.
        accumulate: the number of batches per step.
        schedule_every: "step" or "epoch": when to advance the optimizer's `LRScheduler`.
            `ReduceOnPlateau` gets `monitor` after each evaluation.
        ema: the decay of a moving average of the weights, which is evaluated and saved instead of
            the weights.
        amp: "O1" or "O2", bfloat16 on GPUs.
        deterministic: use cuDNN's deterministic algorithms (not tested on a GPU).
        eval_every_epochs: the number of epochs between evaluations.
        early_stop_patience: the number of evaluations without a better `monitor` after which
            training stops; the result is then that of the best checkpoint.
        monitor: the tag of the metric that determines the best checkpoint; by default "valid/loss".
        mode: whether "min" or "max" of `monitor` is the best.
        state: a dict of further objects with `state_dict` and `set_state_dict` to save and restore,
            such as a teacher, or a discriminator and its optimizer (docs/en/state.md).
    The run directory
        output: the path of the directory.
        name: the prefix of its files; by default the model's `checkpoint_name`, or "model".
        fresh: move an existing run aside, and start over.
        resume: "auto", "off", or the path of a checkpoint.
        override: arguments that may differ from those of the run, such as "epochs,optimizer".
        binding: a dict of further values that must be the same on resume.
        init_from, incremental_from: another run to start from, with its weights only, or with its
            optimizer state, too. init_partial: load only the weights that match.
        soften: with incremental_from, the name of the layer that computes the outputs, which are
            made less confident where they are wrong about the new data.
        save_..., keep_...: when to save, and what to keep (docs/en/checkpoints.md).
        log_every: the number of steps between log lines.
        watch, profile, check_shape, check_content, visualdl, figures: what else to record, print
            and draw (docs/en/looking-inside.md).
    Processes
        nprocs, gpus: the number of processes, and the GPU of each.
        grad_shards: the number of parts of a batch whose gradients are added in a fixed order. Any
            number of processes that divides it gives the same bits.
        hang_timeout: seconds without progress after which the processes are ended.
        max_restarts: must be 0; the error gives the command of a supervisor that restarts a script.
    Further collaborators
        evaluator, callbacks (`Callback`), config, find_weights: replace those of `fit`.

    Before the first step of a new run, `fit` rehearses a resume: it trains a few steps, evaluates
    one batch of each split, calls the callbacks' `after_step` and `after_epoch`, and undoes all of
    this. It then saves any other state on which the steps depend, or raises ConfigError if that is
    not possible (docs/en/state.md). Where steps have effects outside the program, see
    `is_rehearsal`.

    Code is not compared between calls, only arguments, parameters and data (docs/en/any-net.md).

    Raises ConfigError, DataError, CheckpointError, DeviceError, DivergedError, OutputError or
    RunLockedError. After SIGTERM or SIGINT, raises StoppedError once everything is saved; if your
    code does not catch it, the program ends with exit code 143 or 130.
    """
    arguments = FitArguments(**locals())
    _check_start(arguments)
    if not _running.acquire(blocking=False):
        raise ConfigError(
            "another fit is running in this process, and both would use the same random-number "
            "generators; expected one at a time, or a separate process for each"
        )
    try:
        log_to_console()
        heartbeat.start()
        descriptors_open()
        with usable_home(), generators_restored(), signals.handlers_installed(), signals.deferred():
            nprocs = processes_to_start(arguments)
            if nprocs > 1:
                return _fit_in_processes(arguments, nprocs)
            return _fit(arguments)
    except StoppedError as error:
        if config is None:  # uncaught it ends the program silently, as a SystemExit
            log.info("%s", error)
        raise
    finally:
        _running.release()


def _fit(arguments: FitArguments) -> FitResult:
    """Train in this process, one of several perhaps."""
    job = build_job(arguments)
    source = arguments.init_from or arguments.incremental_from
    if source and arguments.fresh:  # raises before the old run is moved

        def check_source() -> None:
            job.find_weights(source)

        job.world.run_on_main(check_source)
    with open_run(arguments.output, job.world, job.model_name, arguments.fresh) as run:
        training = Training(job, run, VisualDLWriter(run.visualdl, ()))
        for callback in job.callbacks:
            callback.run_opened(training)
        checkpoint = resume_point(job, run)
        result = result_so_far(training, checkpoint)
        if result:
            return _repeat(training.at(checkpoint.state), result, checkpoint)
        return _train(training, checkpoint)


def _check_start(arguments: FitArguments) -> None:
    """Raise ConfigError for a call from where `fit` cannot train."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "a new process of this training imports the script, which calls fit again; expected "
            'the call under `if __name__ == "__main__":`'
        )
    if arguments.max_restarts and not heartbeat.is_supervised():
        words = [str(arguments.max_restarts), str(arguments.output), *sys.argv]
        raise ConfigError(
            f"max_restarts is {arguments.max_restarts}, but fit cannot start its own script again; "
            f"expected: paddle-mnist supervise --max_restarts {shlex.join(words)}"
        )


def _fit_in_processes(arguments: FitArguments, nprocs: int) -> FitResult:
    """Train in several processes; little travels between them, so the result is read."""
    run = RunDirectory(arguments.output, arguments.name or None)
    before = _modified(run.result)
    spawn(
        _fit,
        (arguments.for_processes(),),
        nprocs,
        arguments.gpus,
        hang_timeout=arguments.hang_timeout,
        device=arguments.device,
    )
    result = read_result(run, json.loads(run.result.read_text(encoding="utf-8")))
    is_old = not arguments.fresh and before == _modified(run.result)
    return replace(result, stopped="already finished") if is_old else result


def _modified(path: Path) -> Optional[int]:
    return os.stat(path).st_mtime_ns if path.exists() else None


def _repeat(training: Training, result: FitResult, checkpoint: Checkpoint) -> FitResult:
    """Log the result of a finished run, and let the callbacks repair what it lacks.

    The model and the other objects, which the caller may hold, get what they had at the end.
    """
    model, world = training.model, training.world
    world.run_on_main(lambda: load_weights(model, safe_load(result.weights), result.weights))
    world.broadcast(model.state_dict().values())
    further = training.job.parts.further
    try:
        further.load_result(checkpoint)
    except CheckpointError as error:  # the result stands, whatever the program has become
        log.warning("objects other than the model are not as at the end of the run: %s", error)
    log_result(training, result)
    log.info(
        "this run is finished; to train anew: %s, or %s",
        training.job.request.option("fresh"),
        training.job.request.another_output,
    )
    with signals.interruptible():
        for callback in training.job.callbacks:
            callback.already_finished(training, result)
    return result


def _train(training: Training, checkpoint: Optional[Checkpoint]) -> FitResult:
    """Train what is left, evaluate, and report."""
    job, run = training.job, training.run
    start = resume_or_initialize(job, run, checkpoint)
    with contextlib.closing(_open_board(training)) as board:
        board.text("configuration", job.config)
        board.text("environment", environment(job.device))
        training = replace(training, board=board, state=start.state)
        board.text(ABOUT, describe_training(training))
        for callback in job.callbacks:
            callback.before_training(training)
        job.parts.further.set_up()
        if not checkpoint:
            rehearse(job)
        job.parts.further.begin(job.world.size == 1)
        state = train_epochs(job, run, start, board)
        checkpoint_name = load_final_weights(job, run, state)
        training = training.at(state)
        result = make_result(training, state, checkpoint_name)
        entries = result_entries(training, result)
        job.world.run_on_main(lambda: run.write_result(entries))
        log_result(training, result)
        job.world.run_on_main(lambda: warn_of_losses(entries))
        board.text(ABOUT, describe_result(training, result), result.steps)
        with signals.interruptible():  # a result is not lost with its figures
            for callback in job.callbacks:
                callback.after_training(training, result)
    return result


def _open_board(training: Training) -> VisualDLWriter:
    """Return the writer of the dashboard's pages."""
    options, run = training.job.options, training.run
    pages = options.visualdl
    every = options.watch or options.log_every
    if training.job.steps:  # one histogram is no picture of a training
        every = min(every, max(1, training.job.steps // HISTOGRAMS))
    return VisualDLWriter(
        run.new_visualdl_folder() if pages else run.visualdl,
        pages,
        every,
        ("train", *training.job.evaluator.datasets),
    )

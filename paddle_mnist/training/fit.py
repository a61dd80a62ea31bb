"""`fit`: train any net on any data, in a run directory."""

import contextlib
import functools
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Literal, Optional, TypeVar, Union, cast

import paddle
from paddle import nn

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.data.loading import Loading
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.errors import ConfigError, StoppedError, listed, spelled, summary
from paddle_mnist.metrics.console import console_level, log_to_console
from paddle_mnist.nn.numerics import Numerics
from paddle_mnist.parallel.processes import Processes, processes_to_start
from paddle_mnist.parallel.world import spawn
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.environment import (
    open_standard_descriptors,
    refuse_second_import,
    usable_home,
)
from paddle_mnist.training.arguments import Evaluating, FitArguments, StartFrom, where_it_belongs
from paddle_mnist.training.build import build_training
from paddle_mnist.training.callbacks import Callback, FitResult, Training
from paddle_mnist.training.compare import code_comparison
from paddle_mnist.training.initialize import find_start
from paddle_mnist.training.proving import in_scratch
from paddle_mnist.training.rehearsal import rehearse
from paddle_mnist.training.results import as_fit_result, log_result, make_result, result_entries
from paddle_mnist.training.resume import resume_or_start
from paddle_mnist.training.session import load_final_weights, open_run, run_entries, train_epochs
from paddle_mnist.training.steps import Loss, Metrics, Step

log = logging.getLogger("paddle_mnist")

_running = threading.Lock()  # held while fit runs in this process


Fit = TypeVar("Fit", bound=Callable[..., FitResult])


def _explains_unknown(function: Fit) -> Fit:
    """Raise a TypeError for an unknown keyword argument, with a hint where it belongs."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> FitResult:
        for name in kwargs.keys() - function.__annotations__.keys():
            hint = where_it_belongs(name, kwargs[name])
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}; {hint}")
        return function(*args, **kwargs)

    return cast(Fit, call)


@_explains_unknown
def fit(
    model: Union[nn.Layer, Callable[[], nn.Layer]],
    train: Any,
    valid: Any = None,
    *,
    optimizer: Union[paddle.optimizer.Optimizer, Callable[..., paddle.optimizer.Optimizer]],
    loss: Optional[Loss] = None,
    metrics: Optional[Metrics] = None,
    step: Optional[Step] = None,
    epochs: int,
    batch_size: int = 32,
    seed: int = 0,
    output: Union[str, Path],
    name: str = "",
    monitor: Optional[str] = None,
    mode: Optional[Literal["max", "min"]] = None,
    device: str = "auto",
    state: Optional[Mapping[str, object]] = None,
    resume: Union[str, Path] = "auto",
    start_epoch: Optional[int] = None,
    fresh: bool = False,
    override: Union[str, Sequence[str]] = (),
    must_match: Optional[Mapping[str, object]] = None,
    callbacks: Sequence[Callback] = (),
    saving: Saving = Saving(),
    loading: Loading = Loading(),
    evaluating: Evaluating = Evaluating(),
    start: Optional[StartFrom] = None,
    processes: Processes = Processes(),
    numerics: Numerics = Numerics(),
) -> FitResult:
    """Train a net and write everything to a run directory, from which a later call resumes.

    Call `fit` again with the same arguments: an unfinished run resumes, with bit-identical
    results, and a finished run returns its result at once. If the arguments differ, `fit` raises
    ConfigError with a list of the differences.

    The net and its task
        model: a `paddle.nn.Layer`, or a function that builds one.
        optimizer: a `paddle.optimizer`, or a function that builds one from a list of parameters:
            the model's, and then those of a loss that is a `Layer`. If the function has a parameter
            named `plan`, or a second one without a default, it also gets the length of the run:
            `plan.steps`, `plan.steps_per_epoch` and `plan.epochs`.
        loss: (outputs, labels) -> mean loss []. A batch is (inputs, labels), or (input, input,
            ..., labels) for a model with several inputs.
        metrics: a dict of metrics by name. Each is a `paddle.metric`; a function (outputs, labels)
            that returns the mean over the batch, a `Mean` or `Sums`; or `Gathered(metric)`.
        step: (model, batch) -> {"loss": ..., and metrics by name}, instead of loss and metrics, for
            batches of any structure. It is also used for evaluation.
    The data
        train, valid: `paddle.io.Dataset`s, whose samples may be nested in dicts and tuples; a list
            is a dataset of samples. Their order depends only on seed and epoch, and the random
            numbers of a batch only on these and its position. Or a `paddle.io.DataLoader`, an
            `IterableDataset`, or a function that returns an iterator over batches (`lambda:
            iter(batches)` for a list of them): with these, a run resumes from the end of an epoch,
            and inside an epoch only with a `ResumableBatchSampler` or
            `Loading(steps_per_epoch=...)`. valid may be a dict of several, by split name.
        batch_size: the number of samples per step.
        loading (`Loading`): shuffling, collate_fn, worker processes, how many steps to train.
    Training
        epochs: the number of epochs.
        seed: the seed of all random numbers.
        numerics (`Numerics`): accumulation of gradients, the moving average of the weights, mixed
            precision, when to advance the schedule.
        evaluating (`Evaluating`): when to evaluate, and in which batches.
        monitor: the tag of the metric that determines the best checkpoint; by default "valid/loss".
        mode: whether "min" or "max" of `monitor` is the best.
        state: a dict of extra objects with `state_dict` and `set_state_dict` to save and restore,
            such as a teacher, or a discriminator and its optimizer (docs/en/any-net.md).
        device: "cpu", "gpu:0" or another that Paddle reports, such as "npu:0"; "auto": the first
            GPU, or the CPU if there is none.
    The run directory
        output: the path of the directory.
        name: the prefix of its files; by default the model's `checkpoint_name`, or "model".
        fresh: move an existing run aside, and start over.
        resume: "auto", "off", or the path of a checkpoint, or of a .pdparams and .pdopt that
            `paddle.save` wrote.
        start_epoch: the number of epochs after which these two files were saved; by default from
            their name, 1 for `net_epoch0`.
        override: values that may differ from the run's, by flat name, such as "epochs,optimizer".
        must_match: a dict of extra values that must be the same on resume; "code": True for the
            code of the model, the loss, step, metrics and data.
        start (`StartFrom`): another run to start from.
        saving (`Saving`): when to save, which checkpoints to keep, and where to keep a copy
            (docs/en/checkpoints.md).
    Around the training
        callbacks: instances of `Callback`, called in this order. `EarlyStopping`, `Watch`,
            `Profile` and `PrintLayers` come with the package; so do `Console`, `VisualDL` and
            `Figures`, which are added by default unless one of the same class is given
            (docs/en/looking-inside.md).
        processes (`Processes`): how many, their GPUs, and how they divide a batch.

    Before the first step of a new run, `fit` rehearses a resume: it trains a few steps, evaluates
    one batch of each split, calls the callbacks' `on_epoch_start`, `after_step` and `after_epoch`,
    and undoes all of this. It then saves any other state on which the steps depend, or raises
    ConfigError if that is not possible (docs/en/any-net.md). `Saving(rehearse=False)` turns it off.
    If steps have effects outside the program, see `is_rehearsal`.

    A change of the arguments, the net, the loss or the data raises ConfigError. A change of your
    code logs a warning, or raises with must_match={"code": True} (docs/en/any-net.md).

    Raises ConfigError, DataError, CheckpointError, DeviceError, DivergedError, OutputError or
    RunLockedError. After SIGTERM, SIGINT, SIGUSR1, SIGHUP or SIGXCPU, raises StoppedError once
    everything is saved; if your code does not catch it, the program ends with exit code 128 + the
    signal's number. Your own handlers for the last three signals are kept.
    """
    arguments = in_scratch(FitArguments(**locals()))  # parses arguments of several types
    refuse_second_import()
    if not _running.acquire(blocking=False):
        raise ConfigError(
            "another fit is running in this process, and both would use the same random-number "
            "generators; run one at a time, or each in its own process"
        )
    try:
        with _prepared(arguments.saving):
            nprocs = processes_to_start(arguments.processes, arguments.device, arguments.batch_size)
            if nprocs > 1:
                return _fit_in_processes(arguments, nprocs)
            return _fit(arguments)
    except StoppedError as error:  # uncaught it ends the program silently, as a SystemExit
        log.info("%s", error)
        raise
    finally:
        _running.release()


def _fit_in_processes(arguments: FitArguments, nprocs: int) -> FitResult:
    """Train in several processes, which exchange plain values."""
    entries = spawn(
        _fit_plainly,
        (arguments.for_processes(), log_to_console().level),
        nprocs,
        arguments.processes.gpus,
        hang_timeout=arguments.processes.hang_timeout,
        device=arguments.device,
    )
    run = RunDirectory(arguments.output, arguments.name or None)
    if entries is None:  # not plain
        entries = run.read_result()
    return as_fit_result(run, entries)


def _fit_plainly(arguments: FitArguments, level: int) -> dict[str, object]:
    """Train in one of several processes; return the result as plain values.

    level: the lowest level of the log lines on the console.
    """
    with _prepared(arguments.saving), console_level(level):
        return _fit(arguments).as_dict()


@contextlib.contextmanager
def _prepared(saving: Saving) -> Iterator[None]:
    """Prepare this process for training, and restore it afterwards."""
    log_to_console()
    heartbeat.start()
    open_standard_descriptors()
    handlers = signals.handlers_installed(saving.stop_signals)
    with usable_home(), generators_restored(), handlers:
        yield


def _fit(arguments: FitArguments) -> FitResult:
    """Train in this process, which may be one of several."""
    lines = BufferingHandler(sys.maxsize)  # until train.log is open
    log.addHandler(lines)
    try:
        training = build_training(arguments)
    finally:
        log.removeHandler(lines)
    start = arguments.start
    if start and arguments.fresh:  # raises before the old run is moved
        training.world.run_on_main(lambda: bool(find_start(start)))  # not sent to all processes
    with open_run(training, lines.buffer):
        opened = list[Callback]()
        with _closing(opened):
            for callback in training.callbacks:
                opened.append(callback)
                callback.run_opened(training)
            finished = resume_or_start(training)
            return _repeat(training, finished) if finished else _train(training)


@contextlib.contextmanager
def _closing(callbacks: Sequence[Callback]) -> Iterator[None]:
    """Close all callbacks at the end of the context, in order, even if some raise.

    Raises the first error, of the context or of a `close`, and logs later errors of `close`.
    """
    error: Optional[BaseException] = None
    try:
        yield
    except BaseException as raised:
        error = raised
    for callback in callbacks:
        try:
            callback.close()
        except Exception as raised:  # whatever the caller's code raises
            if error:
                log.warning("%s.close: %s", type(callback).__name__, summary(raised))
            else:
                error = raised
    try:
        if error:
            raise error
    finally:
        del error  # its traceback refers to this frame


def _repeat(training: Training, result: FitResult) -> FitResult:
    """Log the result of a finished run, and have the callbacks write missing files."""
    log_result(training, result)
    with signals.interruptible():
        for callback in training.callbacks:
            callback.already_finished(training, result)
    compared = [*code_comparison(training, training.origin)]
    log.info(
        "this run is finished; to train longer, raise epochs and use %s; %s; %s compared",
        spelled("override", "epochs"),
        " or ".join(training.run.to_start_over()),
        f"only the code of {listed(compared)} was" if compared else "no code was",
    )
    return result


def _warn_of_unknown_hooks(callbacks: Sequence[Callback]) -> None:
    """Log methods that are named as in Keras or Lightning, which nothing calls here."""
    for callback in callbacks:
        methods = inspect.getmembers(type(callback), inspect.isroutine)
        hooks = [name for name, _ in methods if name.startswith("on_")]
        if unknown := [name for name in hooks if not hasattr(Callback, name)]:
            log.warning(
                "%s has %s, which fit never calls; expected methods of paddle_mnist.Callback, such "
                "as after_step and after_epoch",
                type(callback).__name__,
                listed(unknown),
            )


def _train(training: Training) -> FitResult:
    """Train the remaining epochs, evaluate, and report."""
    run, world, about = training.run, training.world, run_entries(training)
    if not training.resumed_from:
        if isinstance(training.arguments.model, nn.Layer):
            log.info(
                "the model is an instance, built before fit seeded the generators: unless "
                "paddle.seed came first, the same script gives other results each time; a function "
                "that builds the model gives the same"
            )
        _warn_of_unknown_hooks(training.arguments.callbacks)
        if training.arguments.saving.rehearse:  # on a resume, the checkpoint lists extra state
            rehearse(training)
    for callback in training.callbacks:
        callback.before_first_step(training)
    train_epochs(training, about)
    for callback in training.callbacks:
        callback.after_last_step(training)
    checkpoint_name = load_final_weights(training)
    result = make_result(training, checkpoint_name)
    entries = result_entries(training, result)
    world.run_on_main(lambda: run.write_result(entries))
    heartbeat.end()  # the run is finished: figures, for example, may take long
    log_result(training, result)
    with signals.interruptible():  # the result is already saved
        for callback in training.callbacks:
            callback.after_training(training, result)
    return result

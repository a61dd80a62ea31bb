"""Show metrics on the console, as log lines and, on a terminal, a progress bar."""

import contextlib
import datetime
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Optional, TextIO

from tqdm import tqdm

from paddle_mnist.errors import OutputError
from paddle_mnist.interfaces import Writer
from paddle_mnist.metrics.writers import LEARNING_RATE
from paddle_mnist.system.environment import encodable, printable
from paddle_mnist.train_state import TrainState

log = logging.getLogger("paddle_mnist")


class LogWriter(Writer):
    """Writes log lines through the logger `paddle_mnist`.

    epochs, total_steps: their numbers in the run; None if unknown.
    """

    def __init__(self, epochs: Optional[int], total_steps: Optional[int] = None):
        self.epochs = epochs
        self.total_steps = total_steps

    def write_epoch(self, state: TrainState, values: Mapping[str, float]) -> None:
        """Write one line after an epoch, with the newest metrics of all splits."""
        splits = dict.fromkeys(tag.partition("/")[0] for tag in values if tag.endswith("/loss"))
        metrics = (f"{'' if s == 'train' else f'{s} '}{_named(values, s)}" for s in splits)
        log.info(f"epoch {state.epoch}{_of(self.epochs)} {' '.join(metrics)}")

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        # Metrics are written during an epoch (position > 0) or right after one.
        epoch = f"epoch {state.epoch + (state.position > 0)}{_of(self.epochs)}"
        step = f"step {state.step}{_of(self.total_steps)}"
        splits = dict.fromkeys(tag.partition("/")[0] for tag in values if tag.endswith("/loss"))
        for split in splits:
            if split == "train" and not values.get("speed/ips", 1):
                continue  # steps before a resume, which this process has not timed
            line = f"{epoch} {step}"
            if split == "train" and LEARNING_RATE in values:  # a callback may have a loss, too
                log.info(f"{line} {_training_metrics(values)}{self._eta(state, values)}")
            else:
                log.info(f"{line} {split} {_named(values, split)}")

    def _eta(self, state: TrainState, values: Mapping[str, float]) -> str:
        if not self.total_steps:
            return ""
        seconds = round((self.total_steps - state.step) * values["speed/batch_cost"])
        return f" eta {datetime.timedelta(seconds=seconds)!s:0>8}"


def _of(total: Optional[int]) -> str:
    return f"/{total}" if total else ""


def _training_metrics(values: Mapping[str, float]) -> str:
    return (
        f"lr {values[LEARNING_RATE]:.5f} {_named(values, 'train')} "
        f"reader_cost {values['speed/reader_cost']:.4f}s "
        f"batch_cost {values['speed/batch_cost']:.4f}s ips {values['speed/ips']:.0f} samples/s"
    )


def _named(values: Mapping[str, float], split: str) -> str:
    """Format the metrics of a split, "loss 0.0412 acc 0.9900", without its learning rate."""
    metrics = {
        tag.partition("/")[2]: value
        for tag, value in values.items()
        if tag.startswith(f"{split}/") and tag != LEARNING_RATE
    }
    return " ".join(f"{name} {_number(value)}" for name, value in metrics.items())


def _number(value: float) -> str:
    """Format a metric with four decimals, or with an exponent if its first three are zeros."""
    return f"{value:.4f}" if not value or abs(value) >= 0.001 else f"{value:.3e}"


def is_notebook() -> bool:
    """Return whether this process runs the cells of a notebook."""
    module = sys.modules.get("IPython")
    return module is not None and hasattr(module.get_ipython(), "kernel")


def progress_bar(step: int, total: Optional[int], unit: str = "step") -> "tqdm[Any]":
    """Return a progress bar, such as that of a run's steps.

    It only shows on a terminal and, unless log lines are off there, in a notebook.
    """
    options = {"initial": step, "total": total, "unit": unit, "dynamic_ncols": True}
    if not is_notebook():
        # None: hidden unless it is a terminal
        return tqdm(disable=None if sys.stderr else True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets, it is a line of text
        from tqdm.auto import tqdm as notebook_bar
    handler = _console_handler()
    is_quiet = handler is not None and handler.level > logging.INFO
    return notebook_bar(file=sys.stdout, disable=is_quiet, **options)


class _TqdmHandler(logging.StreamHandler):  # type: ignore[type-arg]  # has them from 3.11
    """Prints log lines above a progress bar instead of through it.

    Escapes characters that the stream cannot encode. A stream that was closed before Python started
    is None; then nothing is printed. chosen: the stream; None for stdout as it is at each line.
    """

    def __init__(self, chosen: Optional[TextIO]):
        logging.Handler.__init__(self)  # that of the base class would set `stream`
        self.chosen = chosen

    @property
    def stream(self) -> TextIO:
        return self.chosen or sys.stdout

    @stream.setter
    def stream(self, stream: Optional[TextIO]) -> None:
        self.chosen = stream

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is None:
            return
        try:
            encoding = getattr(self.stream, "encoding", None)
            text = encodable(printable(self.format(record)), encoding)
            tqdm.write(text, file=self.stream)
            self.flush()
        except OSError as error:  # a full disk, or a broken pipe
            raise OutputError(
                f"the console: cannot write ({error.strerror}); run again to resume"
            ) from error


def log_to_console(stream: Optional[TextIO] = None, level: int = logging.INFO) -> _TqdmHandler:
    """Print this package's log lines, to stdout by default; a second call changes nothing.

    They no longer propagate to the root logger: Paddle's handler there would print them again.

    level: the lowest level to print; `console_level` changes it for a while.
    Returns the handler that prints them.
    """
    handler = _console_handler()
    if not handler:
        handler = _TqdmHandler(stream)
        handler.setLevel(level)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return handler


@contextlib.contextmanager
def console_logs(stream: TextIO) -> Iterator[None]:
    """Print this package's log lines to `stream` inside the context, not where they went before."""
    existing = _console_handler()
    handler = log_to_console(stream)
    previous, handler.chosen = handler.chosen, stream
    try:
        yield
    finally:
        handler.chosen = previous
        if not existing:
            log.removeHandler(handler)


@contextlib.contextmanager
def console_level(level: int) -> Iterator[None]:
    """Show only log lines of `level` and above on the console inside the context.

    Other handlers, such as that of a run's `train.log`, still get all lines.
    """
    handler = log_to_console()
    previous = handler.level
    handler.setLevel(level)
    try:
        yield
    finally:
        handler.setLevel(previous)


def _console_handler() -> Optional[_TqdmHandler]:
    return next((handler for handler in log.handlers if isinstance(handler, _TqdmHandler)), None)


def console_writer(epochs: Optional[int], steps_per_epoch: Optional[int]) -> LogWriter:
    """Return a writer of log lines to the console, the default of a trainer."""
    log_to_console()
    return LogWriter(epochs, epochs * steps_per_epoch if epochs and steps_per_epoch else None)

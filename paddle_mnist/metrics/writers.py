"""Where metrics go: console lines and a progress bar, JSON lines; VisualDL is in `visual`."""

import contextlib
import datetime
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Optional, TextIO

from tqdm import tqdm

from paddle_mnist.errors import OutputError
from paddle_mnist.state import TRAIN_TAGS, TrainState, Writer
from paddle_mnist.system.files import Journal, write_atomically

log = logging.getLogger("paddle_mnist")


class LogWriter:
    """Log lines for people, through the logger `paddle_mnist`."""

    def __init__(self, epochs: int, steps_per_epoch: Optional[int] = None):
        self.epochs = epochs
        self.total = steps_per_epoch and steps_per_epoch * epochs

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        # Values come during an epoch (position > 0) or right after one.
        epoch = f"epoch {state.epoch + (state.position > 0)}/{self.epochs}"
        step = f"step {state.step}" + (f"/{self.total}" if self.total else "")
        for name in ("valid", "replay"):
            if f"{name}/loss" in values:
                loss, accuracy = values[f"{name}/loss"], values[f"{name}/acc"]
                log.info(f"{epoch} {step} {name} loss {loss:.4f} acc {accuracy:.4f}")
        if "train/loss" in values:
            log.info(f"{epoch} {step} {_training(values)}{self._eta(state, values)}")

    def _eta(self, state: TrainState, values: Mapping[str, float]) -> str:
        if not self.total:
            return ""
        seconds = round((self.total - state.step) * values["speed/batch_cost"])
        return f" eta {datetime.timedelta(seconds=seconds)!s:0>8}"

    def advance(self, state: TrainState) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def _training(values: Mapping[str, float]) -> str:
    return (
        f"lr {values['train/lr']:.5f} loss {values['train/loss']:.4f} "
        f"acc {values['train/acc']:.4f} reader_cost {values['speed/reader_cost']:.4f}s "
        f"batch_cost {values['speed/batch_cost']:.4f}s ips {values['speed/ips']:.0f} samples/s"
    )


class BarWriter:
    """A progress bar over the steps of the whole training, on a terminal only."""

    def __init__(self, total: int):
        self.bar = tqdm(total=total, unit="step", dynamic_ncols=True, disable=None)

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        if "train/loss" in values:
            self.bar.set_postfix(loss=f"{values['train/loss']:.4f}", refresh=False)

    def advance(self, state: TrainState) -> None:
        self.bar.update(state.step - self.bar.n)

    def close(self) -> None:
        self.bar.close()


class JsonlWriter:
    """`metrics.jsonl`: one object a line, {"step", "epoch", "tag", "value", "time"}.

    epoch is 0-based, time in seconds since 1970. Speeds are left out: they differ each time, and
    the rest of a resumed run's file equals an unbroken run's but for `time`. What a full disk does
    not take is written later; raises OutputError from `close` if it could not be.

    `lines` counts what was written, with the lines that were there before.
    """

    def __init__(self, path: Path):
        self.lines = path.read_bytes().count(b"\n") if path.exists() else 0
        self.journal = Journal(path)

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        epoch = state.epoch if state.position else state.epoch - 1
        lines = [
            {"step": state.step, "epoch": epoch, "tag": tag, "value": value, "time": time.time()}
            for tag, value in values.items()
            if not tag.startswith("speed/")
        ]
        self.journal.append("".join(f"{json.dumps(line)}\n" for line in lines))
        self.lines += len(lines)

    def advance(self, state: TrainState) -> None:
        """Nothing to do."""

    def close(self) -> None:
        self.journal.close()


def cut_jsonl(path: Path, state: TrainState, count: Optional[int] = None) -> None:
    """Drop the lines of `metrics.jsonl` that a training which resumes from `state` writes again.

    A torn last line goes too. count: the lines that the file had when the state was saved; None
    for checkpoints of versions that did not count them.
    """
    if not path.exists():
        return
    kept = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
        try:
            values = json.loads(line)
            if count is None:
                keep = _written_before(state, **values)
            else:
                keep = number < count and not _written_again(state, **values)
            if keep and line.endswith(b"\n"):
                kept.append(line)
        except (ValueError, TypeError, KeyError):
            log.warning("%s: dropping a torn line, %.60r", path, line)
    write_atomically(path, b"".join(kept))


def _written_again(state: TrainState, step: int, tag: str, **_: object) -> bool:
    """Whether a line that was there when a state was saved is written anew after it.

    A training that breaks off while it writes the figures of its newest step, or of the evaluation
    after it, writes all of them when it resumes.
    """
    if step != state.step or not state.position:
        return False
    return tag in state.metrics or (tag in TRAIN_TAGS and state.running_sums.samples > 0)


def _written_before(state: TrainState, step: int, tag: str = "", **_: object) -> bool:
    """Whether a line was written before a state was saved, as far as its step and tag tell."""
    if step != state.step or not state.position:
        return step <= state.step
    # Saved inside the epoch, after its step: a line of training had been written if nothing had
    # come together since, one of the watch in any case; those of the epoch's end come later, also
    # where this is its last step.
    return tag.startswith("watch/") or (tag in TRAIN_TAGS and not state.running_sums.samples)


class NewestMetrics:
    """Holds the newest value of every tag."""

    def __init__(self):
        self.values: dict[str, float] = {}

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        self.values.update(values)

    def advance(self, state: TrainState) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class ManyWriters:
    """Hands everything to each of several writers, in order."""

    def __init__(self, writers: Sequence[Writer]):
        self.writers = writers

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        for writer in self.writers:
            writer.write(state, values)

    def advance(self, state: TrainState) -> None:
        for writer in self.writers:
            writer.advance(state)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each, whatever happens to the others
            for writer in reversed(self.writers):
                stack.callback(writer.close)


class _TqdmHandler(logging.StreamHandler):
    """Prints lines above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=self.stream)
            self.flush()
        except OSError as error:  # a full disk, or the reader of a pipe is gone
            raise OutputError(
                f"the console: cannot write ({error.strerror}); run the same command again to go on"
            ) from error


def log_to_console(stream=None) -> None:
    """Print this package's log lines, to stdout by default; a second call changes nothing.

    They no longer reach the root logger, where Paddle puts a handler that would print them again.
    """
    if not _console_handler():
        log.addHandler(_TqdmHandler(stream or sys.stdout))
        log.setLevel(logging.INFO)
        log.propagate = False


@contextlib.contextmanager
def console_logs(stream: TextIO) -> Iterator[None]:
    """Print this package's log lines to `stream` inside the context, wherever they went before."""
    existing = _console_handler()
    log_to_console(stream)
    handler = _console_handler()
    previous, handler.stream = handler.stream, stream
    try:
        yield
    finally:
        handler.stream = previous
        if not existing:
            log.removeHandler(handler)


def _console_handler() -> Optional[_TqdmHandler]:
    return next((handler for handler in log.handlers if isinstance(handler, _TqdmHandler)), None)


def console_writer(epochs: int, steps_per_epoch: Optional[int]) -> LogWriter:
    """Log lines on the console, for a trainer that was given no writer."""
    log_to_console()
    return LogWriter(epochs, steps_per_epoch)

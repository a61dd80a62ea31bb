"""What the steps between two lines of the log come to, and where their time goes."""

import time
from collections.abc import Iterable, Iterator

from paddle_mnist.state import TrainState, Window, Writer


class Progress:
    """Writes the figures of the steps every `log_every` steps and at an epoch's end."""

    def __init__(self, writer: Writer, log_every: int):
        self.writer = writer
        self.log_every = log_every
        self._clear()

    def _clear(self) -> None:
        self._steps = self._samples = 0
        self._reader_seconds = 0.0
        self._started = self._counted = time.perf_counter()

    def timed(self, batches: Iterable) -> Iterator:
        """The same batches, with the time spent waiting for them kept."""
        self._clear()
        iterator = iter(batches)
        while True:
            started = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._reader_seconds += time.perf_counter() - started
            self._steps += 1
            yield batch

    def add(self, samples: int) -> None:
        """Count the samples of a step."""
        self._samples += samples

    def after_step(self, state: TrainState) -> None:
        """Count its time, and write a line if one is due. Raises DivergedError."""
        now = time.perf_counter()
        state.train_seconds += now - self._counted
        self._counted = now
        if state.step % self.log_every == 0:
            self.flush(state)
        self.writer.advance(state)

    def flush(self, state: TrainState) -> None:
        """Write what has come together since the last line. Raises DivergedError."""
        state.settle()
        window = state.window
        if not window.samples:
            return
        seconds = time.perf_counter() - self._started
        values = {
            "train/loss": window.loss_sum / window.samples,
            "train/acc": window.num_correct / window.samples,
            "train/lr": window.lr,
            # since this process began, which may have been inside the window
            "speed/reader_cost": self._reader_seconds / max(1, self._steps),
            "speed/batch_cost": seconds / max(1, self._steps),
            "speed/ips": self._samples / seconds,
        }
        self._clear()
        self.writer.write(state, values)
        state.window = Window()  # not before: what could not be written is still to be

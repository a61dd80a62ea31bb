"""Large checkpoints are written by a thread, from a copy, while the training continues."""

import errno
import logging
import signal
import threading
import time
from pathlib import Path

import forked
import numpy as np
import paddle
import pytest
from faulty_disk import at, fail, watched
from paddle import nn

from paddle_mnist.checkpoint.checkpointer import Checkpointer
from paddle_mnist.checkpoint.manifest import PARAMS
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import OutputError, StoppedError
from paddle_mnist.train_state import TrainState


class Training:
    """A net, an optimizer and a checkpointer, for single steps; the state is 36 MB."""

    def __init__(self, folder: Path):
        self.store = CheckpointStore(folder / "checkpoints")
        self.net = nn.Linear(1500, 2000)
        self.optimizer = paddle.optimizer.Adam(0.1, parameters=self.net.parameters())
        saving = Saving(every_steps=1)
        self.checkpointer = Checkpointer(self.store, self.net, self.optimizer, saving)
        self.state = TrainState()
        self.weights: list[np.ndarray] = []  # after each step

    def step(self) -> None:
        self.net(paddle.rand([1, 1500])).square().mean().backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.state.step += 1
        self.state.position += 1
        self.weights.append(self.net.weight.numpy())
        self.checkpointer.after_step(self.state)

    def end(self) -> None:
        self.checkpointer.at_end(self.state)

    def stop(self) -> None:
        self.checkpointer.after_error(StoppedError(signal.SIGTERM), self.state)

    def saved(self) -> dict[str, np.ndarray]:
        """The saved weights, by the name of their checkpoint, each of which is whole."""
        return {
            checkpoint.name: checkpoint.load(PARAMS)["weight"] for checkpoint in self.store.all()
        }


class Gate:
    """Holds the writer of a checkpoint before each operation on the disk until it is open."""

    def __init__(self):
        self.reached, self.open = threading.Event(), threading.Event()
        self.threads: set = set()

    def __call__(self, operation) -> None:
        self.threads.add(threading.current_thread())
        self.reached.set()
        assert self.open.wait(60)


def test_step_continues_while_a_checkpoint_is_written(tmp_path):
    """The checkpoint has the values of its own step; the next one waits for it."""
    training, gate = Training(tmp_path), Gate()
    with watched(tmp_path, gate):
        training.step()
        assert gate.reached.wait(60)
        assert not training.store.all() and threading.main_thread() not in gate.threads
        second = threading.Thread(target=training.step)
        second.start()
        while len(training.weights) < 2 and second.is_alive():
            time.sleep(0.01)
        second.join(0.2)
        assert second.is_alive() and len(training.weights) == 2  # trained, and waits to save
        gate.open.set()
        second.join()
        training.end()
    assert len(gate.threads) == 2  # a thread for each; at the end nothing was left to save
    saved = training.saved()
    assert list(saved) == ["model_epoch0_step1", "model_epoch0_step2"]
    assert all(map(np.array_equal, saved.values(), training.weights))


@pytest.mark.parametrize("then", ["step", "end", "stop"])
def test_checkpoint_that_the_thread_could_not_write_is_logged_and_saved_next(
    tmp_path, then, caplog
):
    caplog.set_level(logging.WARNING)
    training = Training(tmp_path)
    with watched(tmp_path, at(3, fail(errno.ENOSPC))):
        training.step()
        assert not caplog.records
        getattr(training, then)()
        training.end()
    [record] = caplog.records
    assert "model_epoch0_step1 is not saved; training continues" in record.getMessage()
    names = {"step": "step2", "end": "step1", "stop": "step1_breakpoint"}
    assert list(training.saved()) == [f"model_epoch0_{names[then]}"]


def mistake(operation):
    raise ZeroDivisionError("a mistake in the program")


@pytest.mark.parametrize(
    ("fault", "error"), [(fail(errno.ENOSPC), OutputError), (mistake, ZeroDivisionError)]
)
def test_end_raises_the_error_of_the_thread(tmp_path, fault, error):
    training = Training(tmp_path)
    with watched(tmp_path, fault):
        training.step()
        with pytest.raises(error):
            training.end()


def train_one_step(folder: Path) -> None:
    Training(folder).step()


def test_program_that_ends_waits_for_the_thread(tmp_path):
    process = forked.forks().Process(target=train_one_step, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert CheckpointStore(tmp_path / "checkpoints").newest().name == "model_epoch0_step1"

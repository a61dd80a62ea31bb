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

from paddle_mnist.checkpoint import checkpointer
from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
from paddle_mnist.checkpoint.manifest import PARAMS
from paddle_mnist.checkpoint.policy import Saving
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import OutputError, StoppedError
from paddle_mnist.progress import TrainState

EACH_STEP = Saving(every_steps=1, keep_last=9)


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    """However small, it is large enough for the thread."""
    monkeypatch.setattr(checkpointer, "BACKGROUND_BYTES", 0)


class Training:
    """A net, an optimizer and a checkpointer, for single steps."""

    def __init__(self, folder: Path):
        self.store = CheckpointStore(folder / "checkpoints")
        self.checkpointer = StoreCheckpointer(self.store, EACH_STEP)
        self.net = nn.Linear(40, 30)
        self.optimizer = paddle.optimizer.Adam(0.1, parameters=self.net.parameters())
        self.state = TrainState()
        self.weights: list[np.ndarray] = []  # after each step

    def step(self) -> None:
        self.net(paddle.rand([8, 40])).square().mean().backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.state.step += 1
        self.state.position += 1
        self.weights.append(self.net.weight.numpy())
        self.checkpointer.after_step(self.state, self.net, self.optimizer)

    def end(self) -> None:
        self.checkpointer.at_end(self.state, self.net, self.optimizer)

    def stop(self) -> None:
        error = StoppedError(signal.SIGTERM)
        self.checkpointer.after_error(error, self.state, self.net, self.optimizer)

    def saved(self) -> dict[str, np.ndarray]:
        """The saved weights, by the name of their checkpoint, each of which is whole."""
        return {one.name: one.load(PARAMS)["weight"] for one in self.store.all()}


class Gate:
    """Holds whoever writes a checkpoint, ahead of the operations on the disk, until it is open."""

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
        second.join(0.2)
        assert second.is_alive() and len(training.weights) == 2  # trained, and waits to save
        gate.open.set()
        second.join()
        training.end()
    assert len(gate.threads) == 2  # a thread for each; at the end nothing was left to save
    saved = training.saved()
    assert list(saved) == ["model_epoch0_step1", "model_epoch0_step2"]
    assert all(map(np.array_equal, saved.values(), training.weights))


@pytest.mark.parametrize("then", ["end", "stop"])
def test_end_waits_for_the_thread_and_saves_nothing_twice(tmp_path, then):
    training, gate = Training(tmp_path), Gate()
    with watched(tmp_path, gate):
        training.step()
        ending = threading.Thread(target=getattr(training, then))
        ending.start()
        ending.join(0.2)
        assert ending.is_alive()
        gate.open.set()
        ending.join()
    assert list(training.saved()) == ["model_epoch0_step1"]


@pytest.fixture
def warnings(caplog):
    """What was warned of so far."""
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def test_error_of_the_thread_is_logged_at_the_next_step_which_is_saved(tmp_path, warnings):
    def fail_and_note(operation):
        writers.append(threading.current_thread())
        fail(errno.ENOSPC)(operation)

    training, writers = Training(tmp_path), []
    with watched(tmp_path, at(3, fail_and_note)):
        training.step()
        while not writers:
            time.sleep(0.01)
        writers[0].join()
        assert warnings() == []
        training.step()
        training.end()
    (warning,) = warnings()
    assert "model_epoch0_step1 is not saved; training continues" in warning
    assert list(training.saved()) == ["model_epoch0_step2"]


@pytest.mark.parametrize("then", ["end", "stop"])
def test_end_saves_what_could_not_be_written(tmp_path, then):
    training = Training(tmp_path)
    with watched(tmp_path, at(3, fail(errno.ENOSPC))):
        training.step()
        getattr(training, then)()
    name = "model_epoch0_step1" + "_breakpoint" * (then == "stop")
    assert list(training.saved()) == [name]


def mistake(operation):
    raise ZeroDivisionError("a mistake in the program")


@pytest.mark.parametrize(
    ("fault", "error"), [(fail(errno.ENOSPC), OutputError), (mistake, ZeroDivisionError)]
)
def test_end_raises_what_the_thread_raised(tmp_path, fault, error):
    training = Training(tmp_path)
    with watched(tmp_path, fault):
        training.step()
        with pytest.raises(error):
            training.end()


def test_stop_logs_a_mistake_in_the_thread_and_saves(tmp_path, caplog):
    training = Training(tmp_path)
    with watched(tmp_path, at(0, mistake)):
        training.step()
        training.stop()
    assert "ZeroDivisionError: a mistake" in caplog.text
    assert list(training.saved()) == ["model_epoch0_step1_breakpoint"]


def test_checkpoint_is_written_at_once_where_no_thread_starts(tmp_path, monkeypatch, warnings):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    training = Training(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    training.step()
    assert list(training.saved()) == ["model_epoch0_step1"]
    (warning,) = warnings()
    assert "RuntimeError: can't start new thread" in warning


def train_and_exit(folder: Path) -> None:
    checkpointer.BACKGROUND_BYTES = 0  # also in this process
    Training(folder).step()


def test_program_that_ends_waits_for_the_thread(tmp_path):
    process = forked.forks().Process(target=train_and_exit, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert CheckpointStore(tmp_path / "checkpoints").newest().name == "model_epoch0_step1"

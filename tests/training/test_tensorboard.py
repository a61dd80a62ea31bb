"""`TensorBoard`: what TensorBoard itself reads of a run that was stopped."""

import importlib
import shutil

import pytest
from fit_rows import EndsAfterEpoch, ProgramError, StopsAt, bits, history, stop, train

from paddle_mnist import TensorBoard
from paddle_mnist.errors import ConfigError

ROW = "SGD with clipping"  # five steps an epoch
pytest.importorskip("tensorboardX", reason="no tensorboardX (extra tensorboard)")
accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard"
)


def train_board(run, *callbacks, **options):
    options = {"save_every_steps": 5, "save_on_exception": False, "epochs": 4, **options}
    return train(ROW, run, callbacks=[TensorBoard(), *callbacks], **options)


def points(run, split, name):
    """Return the steps and values of a chart's line, as TensorBoard shows it."""
    events = accumulator.EventAccumulator(str(run / "tensorboard" / split))
    events.Reload()
    scalars = events.Scalars(name)
    return [event.step for event in scalars], [event.value for event in scalars]


def assert_one_curve(run):
    for split in ("train", "valid"):
        for name in ("loss", "acc"):
            steps, values = history(run, f"{split}/{name}")
            shown = points(run, split, name)
            assert shown == (steps, pytest.approx(values, rel=1e-6)), (split, name)


def test_killed_run_is_one_curve(tmp_path):
    """Step 10 is saved, and evaluated after it, before the run ends."""
    run, unbroken = tmp_path / "run", train_board(tmp_path / "unbroken")
    for end in (StopsAt(3, stop), StopsAt(8, stop), EndsAfterEpoch(2), StopsAt(13, stop)):
        with pytest.raises(ProgramError):
            train_board(run, end)
    assert bits(train_board(run)) == bits(unbroken)
    assert_one_curve(run)
    assert points(run, "valid", "loss")[0] == [5, 10, 15, 20]
    steps, _ = points(run, "train", "speed/ips")
    assert steps == sorted({*steps}) and set(steps) <= {*points(run, "train", "loss")[0]}


def test_lost_files_are_written_again_from_the_history(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(ProgramError):
        train_board(run, StopsAt(13, stop))
    shutil.rmtree(run / "tensorboard")
    train_board(run)
    assert_one_curve(run)


def test_folder_that_cannot_be_written_is_one_warning(tmp_path, lines):
    (tmp_path / "file").touch()
    result = train(ROW, tmp_path / "run", callbacks=[TensorBoard(tmp_path / "file")])
    assert result.stopped == "finished"
    (line,) = [line for line in lines() if "TensorBoard" in line]
    assert line.startswith("TensorBoard is off until the next start; training continues: ")


def test_without_its_library_it_raises_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(importlib.sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match="pip install tensorboardX"):
        train_board(tmp_path / "run")
    assert not (tmp_path / "run").exists()

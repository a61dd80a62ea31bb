"""Figures are drawn by another process as by this one."""

import multiprocessing
import os
import signal
from functools import partial

import numpy as np
import pytest
from test_plots import HISTORY

from paddle_mnist.errors import OutputError
from paddle_mnist.plots import figure
from paddle_mnist.plots.curves import figures_of, learning_rate
from paddle_mnist.plots.drawing_process import drawing_process, save_figures

RATE = {"rate": partial(learning_rate, HISTORY)}


def killed_elsewhere(here):
    """Draw a figure, but in another process than this one stand for one that the system kills."""
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return learning_rate(HISTORY)


def test_drawing_process_saves_the_same_files_and_returns_the_same_pixels(tmp_path):
    figures = {**figures_of(HISTORY), "own": learning_rate(HISTORY)}
    with drawing_process(True):
        pixels = save_figures(figures, tmp_path / "there")
    here = figure.save_figures(figures, tmp_path / "here")
    files = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "there").iterdir()) and len(files) == 6
    for name in files:
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert pixels.keys() == here.keys()
    assert all(np.array_equal(pixels[name], here[name]) for name in here)
    assert not multiprocessing.active_children()


def test_drawing_process_raises_the_error_of_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with drawing_process(True):
        with pytest.raises(OutputError, match="file"):
            save_figures(dict.fromkeys("abcd", *RATE.values()), tmp_path / "file/figures")
        assert save_figures(RATE, tmp_path).keys() == {"rate"}  # not an earlier answer


def failing():
    raise ValueError("a figure that fails")


def test_error_of_a_figure_is_raised_once_with_its_traceback(tmp_path, caplog, capfd):
    with drawing_process(True), pytest.raises(ValueError, match="a figure that fails") as error:
        save_figures({**RATE, "failing": failing}, tmp_path)
    assert error.traceback[-1].name == "failing" and error.value.__context__ is None
    assert not caplog.messages and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("names", [("killed", "rate"), ("rate", "killed")])
def test_figures_are_drawn_here_if_the_drawing_process_dies(names, tmp_path, caplog):
    functions = {"killed": partial(killed_elsewhere, os.getpid()), **RATE}
    figures = {name: functions[name] for name in names}  # the second has a process of its own
    with drawing_process(True):
        assert save_figures(figures, tmp_path).keys() == set(names)
        assert save_figures(RATE, tmp_path).keys() == {"rate"}
    assert {path.name for path in tmp_path.iterdir()} >= {"killed.png", "rate.png"}
    assert [*caplog.messages] == [
        "a process that draws figures has failed; drawing them in this process"
    ]


def test_drawing_process_imports_nothing_from_the_current_folder(tmp_path, monkeypatch, caplog):
    for name in ("random", "multiprocessing", "matplotlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    with drawing_process(True):
        save_figures(RATE, tmp_path / "figures")
    assert not caplog.messages

"""Restarts of real runs that die, hang, are stopped, or whose supervisor dies."""

import os
import re
import signal
import sys
import time

import forked
import psutil
import pytest
from conftest import ROOT
from fit_rows import bits
from fit_rows import train as fit_points

from paddle_mnist.system.children import supervise
from paddle_mnist.system.heartbeat import START_SECONDS

SLOW, RELEASE = pytest.mark.slow, pytest.mark.release
KILL = "os.kill(os.getpid(), signal.SIGKILL)"

# A script that calls `fit`, in which something happens after a given step.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from fit_rows import train
from paddle_mnist import Callback, is_rehearsal
from paddle_mnist.system.heartbeat import is_supervised

class Trouble(Callback):
    def after_step(self, view):
        if is_rehearsal():
            return
        step, once = view.step, Path(f"trouble{{view.step}}")
        {trouble}

train("EMA", "run", callbacks=[Trouble()], save_every_steps=1, **{options})
"""
# What follows the last step: a callback that draws, say, and the script's own work.
SLOW_END = """
import time
from fit_rows import train
from paddle_mnist import Callback

class Draws(Callback):
    def after_training(self, training, result):
        time.sleep(12)

train("EMA", "run", callbacks=[Draws()])
print("fit has returned", flush=True)
time.sleep(12)
print("the script ends", flush=True)
"""
ONCE = "if step == 6 and not once.exists(): once.touch(); "
# A script that runs that one in a process of its own.
WRAPPER = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "training.py"]))
"""
LONG = {"epochs": 5000, "keep_last": 1}


@pytest.fixture
def supervised(tmp_path):
    """Start a supervised script with some trouble in it; gives the process."""

    def start(trouble, *args, wrapper=None, **options):
        script, training = tmp_path / "script.py", tmp_path / "training.py"
        training.write_text(SCRIPT.format(trouble=trouble, options=options))
        script.write_text(wrapper or training.read_text())
        program = [sys.executable, ROOT / "paddle_mnist/__main__.py", "supervise"]
        command = [*program, *args, "run", script]
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        return forked.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})

    return start


@SLOW
@pytest.mark.parametrize(
    ("trouble", "restarts", "hang_timeout", "wrapper"),
    [
        (f"if step in (3, 7) and not once.exists(): once.touch(); {KILL}", 2, 60, None),
        (f"{ONCE} os.kill(os.getpid(), signal.SIGSTOP)", 1, 3, None),
        (f"{ONCE} os.kill(os.getpid(), signal.SIGSTOP)", 1, 3, WRAPPER),
    ],
    ids=["dies", "stops", "stops in a wrapper"],
)
def test_training_that_dies_or_hangs_is_restarted_to_the_same_bits(
    supervised, tmp_path, trouble, restarts, hang_timeout, wrapper
):
    options = ["--max_restarts", "3", "--hang_timeout", hang_timeout]
    process = supervised(f"assert is_supervised()\n        {trouble}", *options, wrapper=wrapper)
    output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert output.count("the training ended with") == restarts
    assert f"restart {restarts} of 3" in output
    assert (f"no heartbeat for {hang_timeout} s; killing it" in output) == (hang_timeout == 3)
    unbroken = bits(fit_points("EMA", tmp_path / "unbroken", save_every_steps=1))
    # Finished by the script, the run is only read here.
    assert bits(fit_points("EMA", tmp_path / "run", save_every_steps=1)) == unbroken


def test_start_that_hangs_is_killed_and_the_log_has_its_longer_limit(lines):
    command = [sys.executable, "-c", "import time; time.sleep(999)"]
    code = supervise(lambda is_restart: command, lambda: 0, 0, hang_timeout=0.5 - START_SECONDS)
    assert code == 128 + signal.SIGKILL
    assert "no heartbeat for 0.5 s; killing it" in lines()


@SLOW
def test_work_after_the_training_is_no_hang_of_it(supervised, tmp_path):
    """Neither in a callback after the result is written, nor in the script after fit."""
    process = supervised("", "--max_restarts", "1", "--hang_timeout", "10", wrapper=SLOW_END)
    output, error = process.communicate(timeout=240)
    assert process.returncode == 0, output + error
    assert output.count("the script ends") == 1 and "the training ended" not in output


@SLOW
@pytest.mark.parametrize(
    ("trouble", "max_restarts", "code", "ends", "message"),
    [
        (f"if step == 6: {KILL}", 9, 93, 3, "restarted 3 times without getting beyond step 5"),
        ("if step == 6: sys.exit(6)", 9, 6, 0, ""),  # which a restart would not change
        pytest.param(f"if step > 5: {KILL}", 1, 137, 2, "no restart is left", marks=RELEASE),
    ],
    ids=["no progress", "diverges", "no restart left"],
)
def test_training_that_dies_again_and_again_ends_with_its_code(
    supervised, trouble, max_restarts, code, ends, message
):
    process = supervised(trouble, "--max_restarts", max_restarts)
    output, error = process.communicate(timeout=240)
    assert process.returncode == code, error
    assert message in output + error
    assert output.count("the training ended with") == ends, output


def wait_for(is_there, process):
    deadline = time.monotonic() + 240
    while not is_there():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_epoch(number, folder, process):
    """Wait for the checkpoint of an epoch, or of a later one: it may keep only the newest."""

    def is_there():
        names = os.listdir(folder) if folder.is_dir() else []
        found = (re.fullmatch(r"\w+_epoch(\d+)\.json", name) for name in names)
        return any(saved and int(saved[1]) >= number for saved in found)

    wait_for(is_there, process)


def child_of(process):
    """The training that a supervisor watches."""
    [child] = psutil.Process(process.pid).children()
    return child


def is_gone(child):
    """Return whether a process ends, in 60 s at most."""
    for _ in range(600):
        if not child.is_running() or child.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


def test_signal_is_forwarded_and_ends_the_training(supervised, tmp_path):
    process = supervised("pass", "--stop_signals", "USR2", stop_signals=["USR2"], **LONG)
    wait_for_epoch(1, tmp_path / "run/checkpoints", process)
    child = child_of(process)
    process.send_signal(signal.SIGUSR2)
    output, error = process.communicate(timeout=240)
    assert process.returncode == 140 and is_gone(child), error
    assert "restart " not in output
    assert "run again to resume from it" in output


@SLOW
@pytest.mark.parametrize(
    ("hangs", "wrapper"),
    [(False, None), (False, WRAPPER), pytest.param(True, None, marks=RELEASE)],
    ids=["trains", "trains in a wrapper", "hangs"],
)
def test_supervisor_that_is_killed_leaves_no_orphan(supervised, tmp_path, hangs, wrapper):
    trouble = "if step == 6: time.sleep(9999)" if hangs else "pass"
    process = supervised(trouble, wrapper=wrapper, **LONG)
    wait_for_epoch(0, tmp_path / "run/checkpoints", process)
    child = child_of(child_of(process) if wrapper else process)
    time.sleep(0.5)  # until it hangs
    process.kill()
    assert is_gone(child)
    assert hangs or "the process that started this one is gone; stopping" in process.stdout.read()


# ------------------------------------------------------------------ the option of `train`


@SLOW
def test_restart_of_a_fresh_training_does_not_start_over_again(tmp_path, tiny, tool):
    """--fresh and --resume off are for the first start."""
    small = "--recipe default --batch_size 32 --visualdl false --figures false".split()
    tool("train", *small, "--data", tiny, "--epochs", "1", "--output", "run")
    fresh = ["--fresh", "--resume", "off", "--max_restarts", "3", "--epochs", "20"]
    command = [sys.executable, ROOT / "tools/train.py", *small, "--data", tiny, *fresh]
    process = forked.Popen([*command, "--output", "run"], cwd=tmp_path)
    wait_for((tmp_path / "run.1").exists, process)
    wait_for_epoch(1, tmp_path / "run/checkpoints", process)
    child_of(process).kill()
    output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert output.count("moved") == 1 and "restart 1 of 3" in output
    assert "resuming after step" in output
    assert {path.name for path in tmp_path.glob("run*")} == {"run", "run.1"}

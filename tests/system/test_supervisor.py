"""Restarts: real trainings that die, hang, are stopped, and whose supervisor dies."""

import os
import signal
import sys
import time

import forked
import psutil
import pytest
from conftest import ROOT
from fit_rows import bits
from fit_rows import train as fit_points

SLOW, RELEASE = pytest.mark.slow, pytest.mark.release
KILL = "os.kill(os.getpid(), signal.SIGKILL)"

# A script that calls `fit`, in which something happens after a given step.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from fit_rows import train
from paddle_mnist import Callback, is_rehearsal

class Trouble(Callback):
    def after_step(self, view):
        if is_rehearsal():
            return
        step, once = view.step, Path(f"trouble{{view.step}}")
        {trouble}

train("EMA", "run", callbacks=[Trouble()], save_every_steps=1, **{options})
"""
ONCE = "if step == 6 and not once.exists(): once.touch(); "
LONG = {"epochs": 5000, "keep_last": 1}


@pytest.fixture
def supervised(tmp_path):
    """Start a supervised script with some trouble in it; gives the process."""

    def start(trouble, *args, **options):
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(trouble=trouble, options=options))
        command = [sys.executable, ROOT / "tools/supervise.py", *args, "run", script]
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        return forked.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})

    return start


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return bits(fit_points("EMA", tmp_path_factory.mktemp("unbroken") / "run", save_every_steps=1))


def is_unbroken(folder, unbroken):
    """Finished by the script, the run is only read here."""
    return bits(fit_points("EMA", folder / "run", save_every_steps=1)) == unbroken


@SLOW
@pytest.mark.parametrize(
    ("trouble", "restarts", "hang_timeout"),
    [
        (f"if step in (3, 7) and not once.exists(): once.touch(); {KILL}", 2, 60),
        (f"{ONCE} os.kill(os.getpid(), signal.SIGSTOP)", 1, 3),
        pytest.param(f"{ONCE} raise ValueError('mine')", 1, 60, marks=RELEASE),
        pytest.param(f"{ONCE} time.sleep(9999)", 1, 3, marks=RELEASE),
    ],
    ids=["dies", "stops", "an error", "sleeps"],
)
def test_training_that_dies_or_hangs_is_restarted_to_the_same_bits(
    supervised, tmp_path, unbroken, trouble, restarts, hang_timeout
):
    process = supervised(trouble, "--max_restarts", "3", "--hang_timeout", hang_timeout)
    output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert output.count("the training ended with") == restarts
    assert f"restart {restarts} of 3" in output
    assert (f"no heartbeat for {hang_timeout} s; killing it" in output) == (hang_timeout == 3)
    assert is_unbroken(tmp_path, unbroken)


@SLOW
@pytest.mark.parametrize(
    ("trouble", "max_restarts", "code", "message"),
    [
        (f"if step == 6: {KILL}", 9, 93, "restarted 3 times without getting beyond step 5"),
        # A disk, or a mirror, may have room or answer later, so all restarts are used.
        pytest.param("if step == 6: os._exit(7)", 4, 7, "no restart is left", marks=RELEASE),
        pytest.param(
            f"if step > 5: {KILL}", 1, 128 + signal.SIGKILL, "no restart is left", marks=RELEASE
        ),
    ],
    ids=["no progress", "cannot write", "no restart left"],
)
def test_training_that_dies_again_and_again_ends_with_its_code(
    supervised, trouble, max_restarts, code, message
):
    process = supervised(trouble, "--max_restarts", max_restarts)
    output, error = process.communicate(timeout=240)
    assert process.returncode == code, error
    assert message in output + error
    assert output.count("the training ended with") == {93: 3, 7: 5}.get(code, 2)


@SLOW
def test_exit_code_that_a_restart_would_not_change_ends_the_supervisor(supervised):
    process = supervised("if step == 6: sys.exit(6)", "--max_restarts", "9")
    output, error = process.communicate(timeout=240)
    assert process.returncode == 6, error
    assert "restart " not in output


def wait_for(path, process):
    deadline = time.monotonic() + 240
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def child_of(process):
    """The training that a supervisor watches."""
    deadline = time.monotonic() + 240
    while not (children := psutil.Process(process.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return children[0]


def is_gone(child):
    """Return whether a process ends, in 60 s at most."""
    for _ in range(600):
        if not child.is_running() or child.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    ("name", "code"), [("TERM", 143), pytest.param("USR2", 140, marks=RELEASE)]
)
def test_signal_is_forwarded_and_ends_the_training(supervised, tmp_path, name, code):
    process = supervised("pass", "--stop_signals", "USR2", stop_signals=["USR2"], **LONG)
    wait_for(tmp_path / "run/checkpoints/model_epoch1.json", process)
    child = child_of(process)
    process.send_signal(signal.Signals[f"SIG{name}"])
    output, error = process.communicate(timeout=240)
    assert process.returncode == code and is_gone(child), error
    assert "restart " not in output
    assert "run again to resume from it" in output


# Prints the signals that it gets, and ends after the second as one that it stopped.
TWO_SIGNALS = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
print("ready", flush=True)
for _ in range(2):
    number = signal.sigwait([signal.SIGINT, signal.SIGTERM])
    print(number, flush=True)
sys.exit(128 + number)
"""


def test_second_signal_is_forwarded_too(tmp_path):
    """It may end a wait of the training's after the first."""
    (tmp_path / "script.py").write_text(TWO_SIGNALS)
    command = [
        sys.executable,
        ROOT / "tools/supervise.py",
        tmp_path / "run",
        tmp_path / "script.py",
    ]
    with forked.Popen(command) as process:
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            assert process.stdout.readline() == f"{int(number)}\n"
    assert process.returncode == 143


@SLOW
@pytest.mark.parametrize("hangs", [True, pytest.param(False, marks=RELEASE)])
def test_supervisor_that_is_killed_leaves_no_orphan(supervised, tmp_path, hangs):
    process = supervised("if step == 6: time.sleep(9999)" if hangs else "pass", **LONG)
    wait_for(tmp_path / "run/checkpoints/model_epoch0.json", process)
    child = child_of(process)
    time.sleep(0.5)  # until it hangs
    process.kill()
    assert is_gone(child)
    assert hangs or "the supervisor is gone; stopping" in process.stdout.read()


# ------------------------------------------------------------------ the option of `train`


@SLOW
@pytest.mark.parametrize("at_once", [False, pytest.param(True, marks=RELEASE)])
def test_restart_of_a_fresh_training_does_not_start_over_again(tmp_path, tiny, at_once, tool):
    """--fresh and --resume off are for the first start, unless it dies before it moved the run."""
    small = "--recipe default --batch_size 32 --visualdl false --figures false".split()
    tool("train", *small, "--data", tiny, "--epochs", "1", "--output", "run")
    fresh = ["--fresh", "--resume", "off", "--max_restarts", "3", "--epochs", "20"]
    command = [sys.executable, ROOT / "tools/train.py", *small, "--data", tiny, *fresh]
    process = forked.Popen([*command, "--output", "run"], cwd=tmp_path)
    if not at_once:
        wait_for(tmp_path / "run.1", process)
        wait_for(tmp_path / "run/checkpoints/mnist_epoch1.json", process)
    child_of(process).kill()
    output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert output.count("moved") == 1 and "restart 1 of 3" in output
    assert ("resuming after step" in output) == (not at_once)
    assert {path.name for path in tmp_path.glob("run*")} == {"run", "run.1"}

"""Restarts: real trainings that die, hang, are stopped, and whose supervisor dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest

SMALL = [
    "--recipe",
    "default",
    "--epochs",
    "3",
    "--batch_size",
    "32",
    "--visualdl",
    "false",
    "--figures",
    "false",
]
RUN = "work/output/default"

# tools/train.py, in which something happens at the start of a given step: {at: what}.
TROUBLE = """
import os, signal, sys, time, warnings
from pathlib import Path
warnings.filterwarnings("ignore", message="No ccache found")
from paddle_mnist.commands import run_script, train
from paddle_mnist.system import heartbeat
if heartbeat.is_supervised() or not {supervised}:  # the supervisor itself needs no Paddle
    from paddle_mnist.training import session
    reseed = session.reseed
    def troubled(seed, step, shard):
        once = Path(f"trouble{{step}}")
        {what}
        reseed(seed, step, shard)
    session.reseed = troubled
run_script(train.main)
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
TROUBLES = {
    "dies": f"if step in (4, 13, 14) and not once.exists(): once.touch(); {KILL}",
    "an error": "if step == 13 and not once.exists(): once.touch(); raise ValueError('mine')",
    "stops": "if step == 13 and not once.exists(): once.touch(); "
    "os.kill(os.getpid(), signal.SIGSTOP)",
    "sleeps": "if step == 13 and not once.exists(): once.touch(); time.sleep(9999)",
}


@pytest.fixture
def train(tmp_path, tiny):
    """Start a training with some trouble in it; gives the process."""

    def start(what, *args):
        script = tmp_path / "train_with_trouble.py"
        script.write_text(TROUBLE.format(what=what, supervised="--max_restarts" in args))
        command = [sys.executable, script, *SMALL, "--data", tiny, *args]
        return subprocess.Popen(
            [*map(str, command)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, tool_in, tiny):
    folder = tmp_path_factory.mktemp("unbroken")
    tool_in(folder)("train", *SMALL, "--data", tiny)
    return (folder / RUN / "mnist.pdparams").read_bytes()


SLOW = pytest.mark.slow
RELEASE = pytest.mark.release


@pytest.mark.slow
@pytest.mark.parametrize(
    "trouble",
    ["dies", "stops", *(pytest.param(name, marks=RELEASE) for name in ("an error", "sleeps"))],
)
def test_training_that_dies_or_hangs_is_restarted_to_the_same_bits(
    train, tmp_path, unbroken, trouble
):
    hangs = trouble in ("stops", "sleeps")
    # The others must not be taken for hanging where the machine is busy.
    limit = 3 if hangs else 60
    process = train(TROUBLES[trouble], "--max_restarts", "3", "--hang_timeout", str(limit))
    output, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    restarts = 3 if trouble == "dies" else 1
    assert output.count("the training ended with") == restarts
    assert f"restart {restarts} of 3" in output
    assert (f"no heartbeat for {limit} s; killing it" in output) == hangs
    assert (tmp_path / RUN / "mnist.pdparams").read_bytes() == unbroken


@RELEASE
def test_budget_of_restarts(train, tmp_path):
    """It gets further each time, and dies each time."""
    process = train(f"if step in (12, 22, 23): {KILL}", "--max_restarts", "1")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGKILL
    assert output.count("restart 1 of 1") == 1 and "no restart is left" in output


@pytest.mark.slow
def test_no_progress_is_exit_93(train):
    process = train(f"if step == 12: {KILL}", "--max_restarts", "9")
    output, error = process.communicate(timeout=120)
    assert process.returncode == 93
    assert "restarted 3 times without getting beyond step 10" in error
    assert output.count("the training ended with SIGKILL") == 3


@pytest.mark.slow
def test_supervisor_of_a_training_that_cannot_write_restarts_to_the_last(train):
    """A disk, or a mirror, may have room or answer later."""
    full = "if step == 12: from paddle_mnist.errors import OutputError; raise OutputError('full')"
    process = train(full, "--max_restarts", "4")
    output, error = process.communicate(timeout=120)
    assert process.returncode == 7, error
    assert "restart 4 of 4" in output and "no restart is left" in output


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--weight_decay_layers", "nope"], 2, "the net's layers are"),
        pytest.param(["--data", "nope"], 3, "no such file", marks=RELEASE),
        pytest.param(
            ["--learning_rate", "1e30", "--optimizer", "sgd"], 6, "the loss is", marks=RELEASE
        ),
    ],
)
def test_what_a_restart_would_not_change_is_not_tried_again(train, args, code, said):
    process = train("pass", "--max_restarts", "9", *args)
    output, error = process.communicate(timeout=120)
    assert process.returncode == code and said in error
    assert "restart" not in output


def child_of(process):
    """The one process that a supervisor watches."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while not (children := path.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(children[0])


def wait_for(path, process):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)


def gone(pid, seconds=15):
    """Return whether a process ends, in so many seconds at most."""
    for _ in range(100 * seconds):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


LONG = ("--epochs", "500", "--max_restarts", "3")


@pytest.mark.parametrize(
    ("signum", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=RELEASE),
        pytest.param(signal.SIGUSR1, 138, marks=RELEASE),
        pytest.param(signal.SIGUSR2, 140, marks=RELEASE),
    ],
)
def test_signals_are_handed_on(train, tmp_path, signum, code):
    process = train("pass", *LONG, "--stop_signals", "USR2")
    wait_for(tmp_path / RUN / "checkpoints/mnist_epoch1.json", process)
    child = child_of(process)
    process.send_signal(signum)
    output, error = process.communicate(timeout=60)
    assert process.returncode == code and gone(child)
    assert "restart" not in output
    assert "run again to resume from it" in output
    assert error.count("error: stopped by") == 1


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
SUPERVISOR = """
import sys
from paddle_mnist.system.supervisor import supervise
sys.exit(supervise(lambda _: [sys.executable, "-c", sys.argv[1]], lambda: 0, 1, 60))
"""


def test_a_second_signal_is_handed_on_too():
    """It may end a wait of the training's after the first."""
    command = [sys.executable, "-c", SUPERVISOR, TWO_SIGNALS]
    with forked.Popen(command) as process:
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            assert process.stdout.readline() == f"{number}\n"
    assert process.returncode == 143


@RELEASE
def test_supervisor_that_is_killed_leaves_no_orphan(train, tmp_path):
    process = train("pass", *LONG)
    wait_for(tmp_path / RUN / "checkpoints/mnist_epoch1.json", process)
    child = child_of(process)
    process.kill()
    assert gone(child)
    assert "the supervisor is gone; stopping" in process.stdout.read()


@pytest.mark.slow
def test_supervisor_that_is_killed_leaves_no_orphan_that_hangs(train, tmp_path):
    process = train("if step == 13: time.sleep(9999)", *LONG)
    wait_for(tmp_path / RUN / "checkpoints/mnist_epoch0.json", process)
    child = child_of(process)
    time.sleep(0.5)  # it sleeps now
    process.kill()
    assert gone(child, seconds=30)


@RELEASE
def test_restart_starts_over_if_the_first_start_died_before_it_could(train, tmp_path):
    assert train("pass", "--epochs", "1").wait(60) == 0
    process = train("pass", "--fresh", "--max_restarts", "2")
    os.kill(child_of(process), signal.SIGKILL)  # it has not even been imported
    output, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert output.count("moved") == 1 and "this run is finished" not in output
    assert (tmp_path / "work/output/default.1").exists()


@pytest.mark.slow
def test_restart_does_not_start_over_again(train, tmp_path, unbroken):
    """--fresh and --resume off are for the first start."""
    options = ("--fresh", "--resume", "off", "--max_restarts", "3")
    assert train("pass", "--epochs", "1").wait(60) == 0
    process = train(TROUBLES["dies"], *options)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert output.count("moved") == 1
    assert sorted(os.listdir(tmp_path / "work/output")) == ["default", "default.1"]
    assert (tmp_path / RUN / "mnist.pdparams").read_bytes() == unbroken

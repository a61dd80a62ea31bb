"""SIGTERM and its like, really sent, to real processes, in every phase of a training."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import forked
import pytest
from conftest import ROOT

from paddle_mnist.checkpoint.policy import Saving
from paddle_mnist.errors import ConfigError
from paddle_mnist.system import signals

SMALL = ["--recipe", "default", "--epochs", "3", "--batch_size", "32", "--log_every", "4"]
SMALL += ["--visualdl", "false", "--figures", "false", "--ema", "0.9", "--dropout", "0.1"]
RUN = "work/output/default"
SLOW, RELEASE = pytest.mark.slow, pytest.mark.release
SENT = [(signal.SIGTERM, 1), (signal.SIGINT, 3)]
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
OF_SCHEDULERS = {"USR1": 138, "HUP": 129, "XCPU": 152}

# A training that sends itself a signal, where `moment` says. Its parts are Paddle's and ours; only
# the moment is set.
PROGRAM = """
import os, signal, sys, warnings
warnings.filterwarnings("ignore", message="No ccache found")
signum, times, moment = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def send(*_):
    for _ in range(times):
        os.kill(os.getpid(), signum)

def before(owner, name, at=1, at_once=False, rehearsal=False):
    # at_once: it must not come so far. rehearsal: to count calls in the rehearsal, not others.
    calls, real = [], getattr(owner, name)
    def wrapped(*args, **kwargs):
        calls.extend([1] * (is_rehearsal() == rehearsal))
        if len(calls) == at and is_rehearsal() == rehearsal:
            send()
            if at_once:
                os._exit(9)
        return real(*args, **kwargs)
    setattr(owner, name, wrapped)

import paddle
from paddle_mnist import is_rehearsal
from paddle_mnist.mnist import run_report, setup
from paddle_mnist.training import initialize
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.model import MNIST
if moment == "reading data":
    before(setup, "open_data", at_once=True)
elif moment == "rehearsal":  # its second step
    before(paddle.optimizer.Momentum, "step", at=2, rehearsal=True)
elif moment == "warm-up":  # the first forward pass
    before(MNIST, "forward")
elif moment == "training":
    before(paddle.optimizer.Momentum, "step", at=5)
# Five reads come before the first step: a batch of each split is tried, and samples are hashed.
elif moment == "data loading":  # the batch after the fifth step
    before(MnistDataset, "batch", at=5 + 6, at_once=True)
elif moment == "evaluation":  # 10 training batches came first
    before(MnistDataset, "batch", at=5 + 11, at_once=True)
elif moment == "epoch 3's evaluation":  # 30 training batches and two evaluations came first
    before(MnistDataset, "batch", at=5 + 33, at_once=True)
elif moment.startswith("saving"):  # the N-th such operation of the first save
    commit, (_, name, number) = CheckpointStore.commit, moment.split()
    def armed(*args, **kwargs):
        CheckpointStore.commit = commit
        before(os, name, at=int(number))
        return commit(*args, **kwargs)
    CheckpointStore.commit = armed
elif moment == "loading":  # of a checkpoint
    before(initialize, "load_checkpoint")
elif moment == "the last evaluation":
    before(run_report, "evaluate")
sys.argv[1:] = sys.argv[4:]
from paddle_mnist.commands import run_script, train
run_script(train.main)
"""

# moment: what is saved then, None: nothing was done that a checkpoint does not hold
MOMENTS = {
    "reading data": None,
    "rehearsal": None,
    "warm-up": "mnist_epoch0_step1_breakpoint",
    "training": "mnist_epoch0_step5_breakpoint",
    "data loading": "mnist_epoch0_step5_breakpoint",
    "evaluation": "mnist_epoch0_step10_breakpoint",
    "saving write 1": None,
    "saving fsync 2": None,
    "saving replace 3": None,
    "the last evaluation": None,
}


def stop_at(folder, tiny, moment, signum, times=1, args=()):
    command = [sys.executable, "-c", PROGRAM, str(int(signum)), str(times), moment, *SMALL]
    return forked.run([*command, "--data", str(tiny), *args], cwd=folder, timeout=120)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, tiny):
    folder = tmp_path_factory.mktemp("unbroken")
    assert stop_at(folder, tiny, "never", signal.SIGTERM).returncode == 0
    return end_of(folder)


def end_of(folder):
    names = ["mnist.pdparams", *(f"checkpoints/mnist_epoch2.{s}" for s in ("pdopt", "pdtrain"))]
    lines = (folder / RUN / "metrics.jsonl").read_text()
    history = re.sub(r', "time": [\d.]+', "", lines)
    return [(folder / RUN / name).read_bytes() for name in names] + [history]


# the weightiest moments at once, each with one signal in CI, each with either before a release
@pytest.mark.parametrize(
    ("moment", "signum", "times"),
    [
        ("training", *SENT[0]),
        ("rehearsal", *SENT[1]),
        ("saving fsync 2", *SENT[1]),
        ("evaluation", *SENT[0]),
        *(
            pytest.param(moment, *sent, marks=SLOW if number % 2 == by else RELEASE)
            for by, sent in enumerate(SENT)
            for number, moment in enumerate(MOMENTS)
        ),
    ],
)
def test_signal_saves_and_the_run_goes_on_to_the_same_bits(
    tmp_path, tiny, unbroken, moment, signum, times
):
    """Sent three times, the later ones come during the end and the save, and tear nothing."""
    done = stop_at(tmp_path, tiny, moment, signum, times)
    assert done.returncode == CODES[signum], done.stderr
    assert done.stderr == f"error: stopped by {signum.name}; run again to resume\n"
    saved = [path.stem for path in (tmp_path / RUN / "checkpoints").glob("*_breakpoint.json")]
    assert saved == ([MOMENTS[moment]] if MOMENTS[moment] else [])
    if saved:
        assert f"saved {saved[0]}; run again to resume from it" in done.stdout
        manifest = json.loads((tmp_path / RUN / f"checkpoints/{saved[0]}.json").read_text())
        assert manifest["state"]["train_seconds"] > 0  # of the line that was not due yet, too
    again = stop_at(tmp_path, tiny, "never", signum)
    assert again.returncode == 0 and (f"{saved[0]}.json" in again.stdout if saved else True)
    assert end_of(tmp_path) == unbroken


IMPORT = """
import os, runpy, signal, sys
class Sends:
    "Finds nothing, but is asked for every module."
    def find_spec(self, name, path, target=None):
        if name == "MODULE":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Sends())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["paddle.version", pytest.param("paddle.tensor", marks=RELEASE)])
def test_signal_while_paddle_is_imported(tmp_path, tiny, module):
    """It is no fault of the import. Nothing has begun, so nothing is lost.

    Paddle's own handler, there from the middle of its import on, ends the process by the signal.
    """
    tool = ROOT / "tools/train.py"
    done = subprocess.run(
        [sys.executable, "-c", IMPORT.replace("MODULE", module), tool, *SMALL, "--data", tiny],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == (143 if module == "paddle.version" else -signal.SIGTERM), done.stderr
    assert "cannot be imported" not in done.stderr and "Traceback (most" not in done.stderr
    assert not (tmp_path / RUN).exists()


def test_signal_in_the_last_evaluation_and_nothing_left_to_train(tmp_path, tiny):
    """The last state is saved even if the process that comes to the end did no step of it."""
    rare = ("--save_every_epochs", "2", "--keep_best", "false")
    assert stop_at(tmp_path, tiny, "epoch 3's evaluation", 15, args=rare).returncode == 143
    assert stop_at(tmp_path, tiny, "never", 15, args=rare).returncode == 0
    assert (tmp_path / RUN / "checkpoints/mnist_epoch2.json").exists()
    assert "this run is finished" in stop_at(tmp_path, tiny, "never", 15, args=rare).stdout


@pytest.mark.slow
def test_signal_while_a_checkpoint_is_loaded(tmp_path, tiny, unbroken):
    stop_at(tmp_path, tiny, "training", signal.SIGTERM)
    done = stop_at(tmp_path, tiny, "loading", signal.SIGTERM)
    assert done.returncode == 143
    assert "nothing was done since the newest checkpoint" in done.stdout
    assert stop_at(tmp_path, tiny, "never", signal.SIGTERM).returncode == 0
    assert end_of(tmp_path) == unbroken


@pytest.mark.slow
def test_signals_at_any_time_one_after_the_other(tmp_path, tiny, unbroken):
    """Until the run is done; each start gets further, or had not begun."""
    draw = random.Random(7)
    codes = []
    for _ in range(40):
        command = [sys.executable, ROOT / "tools/train.py", *SMALL, "--data", tiny]
        process = forked.Popen(command, cwd=tmp_path)
        # It reads its data, or trains; the first signal surely comes before the run is done.
        lines = ["data:", "data:", "epoch"] if codes else ["data:"]
        for line in process.stdout:
            if line.startswith(draw.choice(lines)):
                break
        time.sleep(draw.uniform(0, 0.3) if codes else 0)
        signum = draw.choice(list(CODES))
        process.send_signal(signum)
        _, error = process.communicate(timeout=60)
        assert process.returncode in (CODES[signum], 0), error
        assert "Traceback" not in error
        codes.append(process.returncode)
        if process.returncode == 0:
            break
    else:
        assert stop_at(tmp_path, tiny, "never", signal.SIGTERM).returncode == 0
    assert len(codes) > 1
    assert end_of(tmp_path) == unbroken


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGHUP, marks=RELEASE)],
    ids=lambda one: one.name,
)
def test_ignored_signals_stay_ignored(tmp_path, tiny, number):
    """As in a shell's background job, or under nohup."""
    ignoring = [sys.executable, "-c", "import os, signal, sys; "
                f"signal.signal({int(number)}, signal.SIG_IGN); "
                "os.execv(sys.executable, sys.argv[1:])"]  # fmt: skip
    program = [sys.executable, "-c", PROGRAM, str(int(number)), "1", "training", *SMALL]
    done = subprocess.run(
        [*ignoring, *program, "--data", str(tiny)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "code", "args"),
    [
        ("USR1", OF_SCHEDULERS["USR1"], ()),
        ("USR2", 140, ("--stop_signals", "USR2,SIGPWR")),
        *(pytest.param(name, OF_SCHEDULERS[name], (), marks=RELEASE) for name in ("HUP", "XCPU")),
        pytest.param("PWR", 158, ("--stop_signals", "USR2,SIGPWR"), marks=RELEASE),
    ],
)
def test_signals_of_schedulers_save_as_sigterm_does(tmp_path, tiny, unbroken, name, code, args):
    number = getattr(signal, f"SIG{name}")
    done = stop_at(tmp_path, tiny, "training", number, 3, args)
    assert done.returncode == code == 128 + number, done.stderr
    assert done.stderr == f"error: stopped by SIG{name}; run again to resume\n"
    assert (tmp_path / RUN / "checkpoints/mnist_epoch0_step5_breakpoint.json").exists()
    assert stop_at(tmp_path, tiny, "never", number).returncode == 0
    assert end_of(tmp_path) == unbroken


@pytest.mark.parametrize("names", ["KILL", "STOP,USR2", "SIGFOO", "SEGV", "9"])
def test_signals_that_can_stop_nothing_are_refused(names):
    with pytest.raises(ConfigError, match="is no signal that can stop a training"):
        Saving(stop_signals=names.split(","))


def test_names_of_signals():
    assert Saving(stop_signals=["usr2", "SIGPWR", 12]).stop_signals == (
        "SIGUSR2",
        "SIGPWR",
        "SIGUSR2",
    )


def test_own_handlers_of_a_program_stay(lines):
    """But for SIGTERM and SIGINT, which stop a training whatever the program does with them."""
    seen = []
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: seen.append("own")) for number in numbers}
    try:
        with signals.handlers_installed(["SIGUSR2", "SIGPWR"]), signals.deferred():
            assert ["SIGUSR2" in line for line in lines()] == [True]
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                os.kill(os.getpid(), number)
            assert seen == ["own", "own"] and signals.pending() is None
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGPWR)
            assert signals.pending() == signal.SIGTERM and signals.stopped_by(158) == signal.SIGPWR
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == ["own"] * 3 and signal.getsignal(signal.SIGPWR) is signal.SIG_DFL
        assert signals.stopped_by(158) is None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------ the library, without a command

LIBRARY = """
import os, signal, sys, threading, paddle
from paddle_mnist import MNIST, BatchLoader, MnistDataset, Trainer
class Net(MNIST):
    steps = 0
    def forward(self, *args):
        self.steps += 1
        if self.steps == 6:
            WHAT
        return super().forward(*args)
model = Net()
loader = BatchLoader(MnistDataset("train", "digits", 128), 32)
optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
Trainer("m.pdparams", model, optimizer).train(loader, 0, 3, "c")
"""


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("raise ValueError('mine')", "ValueError: mine"),
        ("os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt"),
        ("sys.exit(3)", ""),
    ],
)
def test_exceptions_save_and_are_raised_on(tmp_path, what, error):
    done = forked.run([sys.executable, "-c", LIBRARY.replace("WHAT", what)], cwd=tmp_path)
    assert done.returncode != 0 and error in done.stderr
    assert "saved mnist_epoch1_step5_breakpoint" in done.stdout
    assert (tmp_path / "c/mnist_epoch1_step5_breakpoint.json").exists()


def test_interruptible_work_in_another_thread_does_not_break_off_what_the_main_thread_holds():
    entered, leave = threading.Event(), threading.Event()

    def evaluate():
        with signals.interruptible():
            entered.set()
            leave.wait(60)

    with signals.handlers_installed(), signals.deferred():
        thread = threading.Thread(target=evaluate)
        thread.start()
        try:
            assert entered.wait(60)
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.pending() == signal.SIGTERM
        finally:
            leave.set()
            thread.join()
            signals.clear()

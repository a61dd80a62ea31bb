"""SIGTERM and its like, really sent, in every phase of a run.

Most runs are in this process, which sends the signals to itself.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
from conftest import ROOT
from faulty_disk import at, tried, watched
from fit_rows import StopsAt, bits, train
from process_jobs import start_job
from small_nets import Points, with_dropout

from paddle_mnist import Callback, Saving, is_rehearsal
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import ConfigError, StoppedError

SMALL = ["--recipe", "default", "--epochs", "3", "--batch_size", "32", "--log_every", "4"]
SMALL += ["--visualdl", "false", "--figures", "false"]


def reach(phase):
    """Send the signals that are due in this phase, as `SENT_IN` says.

    In the environment, since a rehearsal takes back what it changes in objects.
    """
    due, _, signals = os.environ.get("SENT_IN", "").partition(" ")
    if due == phase:
        del os.environ["SENT_IN"]
        for number in signals.split():
            os.kill(os.getpid(), int(number))
        os.environ["WENT_ON"] = phase


class WatchedPoints(Points):
    def __getitem__(self, index):
        reach("rehearsal" if is_rehearsal() else "reading")
        return super().__getitem__(index)


def watched_net():
    net = with_dropout()
    net.register_forward_pre_hook(note_forward)
    return net


def note_forward(net, inputs):
    if not is_rehearsal():
        reach("training" if net.training else "evaluation")


def fit_points(output, callbacks=(), **options):
    """Train two epochs of five steps, each with an evaluation; save at the end, or at a stop."""
    options = {"keep_best": False, "save_every_epochs": 2, "save_at_start": False, **options}
    data = {"model": watched_net, "train": WatchedPoints(), "ema": 0.9}
    return train("SGD with clipping", output, callbacks=callbacks, **data, **options)


def terminate(*_):
    os.kill(os.getpid(), signal.SIGTERM)


def checkpoints(output):
    store = CheckpointStore(Path(output, "checkpoints"))
    return [checkpoint.name for checkpoint in store.all()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return bits(fit_points(tmp_path_factory.mktemp("unbroken") / "run"))


# Where signals come: the phase, after which step, which ones, whether they end the phase at once,
# and the breakpoint that is saved.
PHASES = {
    "the rehearsal": ("rehearsal", 0, [signal.SIGINT] * 3, False, None),
    "the first step": ("training", 0, [signal.SIGTERM], False, "model_epoch0_step1"),
    "a step": ("training", 6, [signal.SIGINT] * 3, False, "model_epoch1_step7"),
    "reading data": ("reading", 3, [signal.SIGTERM], True, "model_epoch0_step3"),
    "an evaluation": ("evaluation", 0, [signal.SIGTERM] * 3, True, "model_epoch0_step5"),
    "the last evaluation": ("evaluation", 6, [signal.SIGINT], True, "model_epoch1_step10"),
}


@pytest.mark.parametrize("where", PHASES)
def test_signal_saves_and_the_run_resumes_to_the_same_bits(tmp_path, monkeypatch, unbroken, where):
    """The later ones come during the save and the end, and change nothing."""
    phase, step, sent, ends_at_once, saved = PHASES[where]
    due = {"SENT_IN": f"{phase} {' '.join(str(int(number)) for number in sent)}"}
    monkeypatch.setenv("WENT_ON", "")
    monkeypatch.setenv("SENT_IN", due["SENT_IN"] if step == 0 else "")
    with pytest.raises(StoppedError) as stopped:
        fit_points(tmp_path / "run", [StopsAt(step, lambda: os.environ.update(due))])
    assert stopped.value.code == 128 + sent[0]
    assert bool(os.environ["WENT_ON"]) == (not ends_at_once)
    assert checkpoints(tmp_path / "run") == ([f"{saved}_breakpoint"] if saved else [])
    assert bits(fit_points(tmp_path / "run")) == unbroken


def test_signal_ahead_of_any_call_of_the_system_tears_nothing(tmp_path, unbroken, pytestconfig):
    """Every twelfth of the calls on the run directory; the offset depends on the commit."""
    with watched(tmp_path / "unbroken") as calls:
        fit_points(tmp_path / "unbroken")
    for number in tried(range(len(calls)), 12, pytestconfig):
        run = tmp_path / str(number)
        # The last ones come too late to stop it.
        with watched(run, at(number, terminate)), contextlib.suppress(StoppedError):
            fit_points(run)
        store = CheckpointStore(run / "checkpoints")
        assert not store.find_damaged() and not store.orphaned_files(), calls[number]
        assert bits(fit_points(run)) == unbroken, calls[number]


class SendsAtTheEnd(Callback):
    """Sends SIGTERM once the training is over. place: the method. to: a rank, or their parent."""

    def __init__(self, place, to="0"):
        self.place, self.to = place, to

    def after_training(self, training, result):
        self.send("after_training")

    def already_finished(self, training, result):
        self.send("already_finished")

    def close(self):
        self.send("close")

    def send(self, place):
        receivers = {os.environ.get("PADDLE_TRAINER_ID", "0"): os.getpid()}
        if "0" in receivers:
            receivers["parent"] = os.getppid()
        if place == self.place and self.to in receivers:
            os.kill(receivers[self.to], signal.SIGTERM)


@pytest.mark.parametrize("place", ["after_training", "close", "mirror", "already_finished"])
def test_signal_after_the_last_step_is_raised_and_the_run_is_finished(
    tmp_path, unbroken, place, request
):
    options = {}
    if place == "already_finished":
        fit_points(tmp_path / "run")
    if place == "mirror":
        pytest.importorskip("fsspec", reason="needs the extra mirror")
        log, waits = logging.getLogger("paddle_mnist"), logging.Handler()
        waits.emit = lambda line: "completing the copy" in line.getMessage() and terminate()
        log.addHandler(waits)
        request.addfinalizer(lambda: log.removeHandler(waits))
        options = {"mirror": str(tmp_path / "copy")}
    with pytest.raises(StoppedError) as stopped:
        fit_points(tmp_path / "run", [SendsAtTheEnd(place)], **options)
    assert stopped.value.code == 143
    result = fit_points(tmp_path / "run")
    assert result.stopped == "already finished" and bits(result) == unbroken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "to"), [("after_training", "1"), ("close", "0"), ("close", "parent")]
)
def test_signal_after_the_last_step_of_several_processes_is_raised(tmp_path, place, to):
    with pytest.raises(StoppedError) as stopped:
        train("SGD with clipping", tmp_path, callbacks=[SendsAtTheEnd(place, to)], nprocs=2)
    assert stopped.value.code == 143
    assert train("SGD with clipping", tmp_path).stopped == "already finished"


@pytest.mark.parametrize(
    ("name", "options"),
    [("USR1", {}), ("HUP", {}), ("XCPU", {}), ("PWR", {"stop_signals": ["USR2", "SIGPWR"]})],
)
def test_signal_of_a_scheduler_saves_as_sigterm_does(tmp_path, name, options):
    number = signal.Signals[f"SIG{name}"]
    with pytest.raises(StoppedError) as stopped:
        fit_points(tmp_path, [StopsAt(3, lambda: os.kill(os.getpid(), number))], **options)
    assert stopped.value.code == 128 + number
    assert checkpoints(tmp_path) == ["model_epoch0_step3_breakpoint"]


def test_signal_that_is_ignored_stays_ignored(tmp_path, unbroken):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = fit_points(tmp_path, [StopsAt(3, lambda: os.kill(os.getpid(), signal.SIGHUP))])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert bits(result) == unbroken


def test_handlers_of_a_program_stay_except_those_of_sigterm_and_sigint(tmp_path, lines):
    seen = []
    own = {number: lambda *_: seen.append("own") for number in (signal.SIGUSR1, signal.SIGUSR2)}
    own[signal.SIGTERM] = lambda *_: seen.append("SIGTERM")
    before = {number: signal.signal(number, handler) for number, handler in own.items()}
    try:
        callbacks = [
            StopsAt(2, lambda: os.kill(os.getpid(), signal.SIGUSR1)),
            StopsAt(3, lambda: os.kill(os.getpid(), signal.SIGUSR2)),
            StopsAt(4, terminate),
        ]
        with pytest.raises(StoppedError):
            fit_points(tmp_path, callbacks, stop_signals=["USR2"])
        assert seen == ["own", "own"] and any("SIGUSR2" in line for line in lines())
        assert checkpoints(tmp_path) == ["model_epoch0_step4_breakpoint"]
        assert {number: signal.getsignal(number) for number in own} == own
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_saving_takes_names_and_numbers_of_signals_that_can_stop():
    names = Saving(stop_signals=["usr2", "SIGPWR", 12]).stop_signals
    assert names == ("SIGUSR2", "SIGPWR", "SIGUSR2")
    for name in ("KILL", "STOP", "SIGFOO", "SEGV", "9"):
        with pytest.raises(ConfigError, match="such as USR2"):
            Saving(stop_signals=["USR2", name])


@pytest.mark.parametrize(
    ("end", "error"), [(lambda: 1 // 0, ZeroDivisionError), (sys.exit, SystemExit)]
)
def test_exception_in_fit_saves_and_is_raised(tmp_path, unbroken, end, error):
    with pytest.raises(error):
        fit_points(tmp_path, [StopsAt(8, end)])
    assert checkpoints(tmp_path) == ["model_epoch1_step7_breakpoint"]  # the last whole step
    assert bits(fit_points(tmp_path)) == unbroken


# ------------------------------------------------------------------ processes


def test_command_stopped_by_a_signal_exits_with_its_code(tmp_path, tiny, tool):
    train = [*SMALL, "--data", tiny, "--output"]
    command = [sys.executable, ROOT / "tools/train.py", *train, "run"]
    process = forked.Popen(command, tmp_path)
    assert any(line.startswith("epoch 1/3 step 4") for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 143
    assert not error and "stopped by SIGTERM; run again to resume\n" in output
    [saved] = (tmp_path / "run/checkpoints").glob("*_breakpoint.json")
    assert f"saved {saved.stem}; run again to resume from it" in output
    assert saved.name in tool("train", *train, "run").stdout
    tool("train", *train, "unbroken")
    for name in ("mnist.pdparams", "checkpoints/mnist_epoch2.pdopt"):
        unbroken = (tmp_path / "unbroken" / name).read_bytes()
        assert (tmp_path / "run" / name).read_bytes() == unbroken, name


OUTSIDE_FIT = """
import os, sys
from paddle_mnist.commands import run_command, run_script

def command(argv):
    os.kill(os.getpid(), int(sys.argv[1]))
    print("the command continues")

run_script(lambda argv: run_command(command, argv))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_outside_fit_ends_a_command_at_once(number):
    done = forked.run([sys.executable, "-c", OUTSIDE_FIT, str(int(number))])
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


IMPORT = """
import os, runpy, signal, sys
class Sends:
    "Finds nothing, but is asked for every module."
    def find_spec(self, name, path, target=None):
        if name == module:
            sys.meta_path.remove(self)
    def __del__(self):  # where Python drops an exception, as in callbacks of importlib's locks
        os.kill(os.getpid(), int(number))
module, number, *sys.argv = sys.argv[1:]
sys.meta_path.insert(0, Sends())
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_at_any_moment_of_the_import_is_not_reported_as_its_error(tmp_path, tiny, number):
    """Paddle's C++ runs Python, and turns what a handler raises there into an ImportError."""
    command = [sys.executable, ROOT / "tools/train.py", *SMALL, "--data", tiny]
    command += ["--epochs", "100000"]  # only the signal ends it
    for tenth in range(3, 9):
        process = start_job(command, tmp_path, subprocess.PIPE)
        time.sleep(tenth / 10)
        process.send_signal(number)
        for _ in range(10):
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, errors = process.communicate(timeout=6)
                break
            # CPython drops a KeyboardInterrupt that meets a callback of its own import locks,
            # without a word before it has a stderr; a user presses the keys again.
            if number == signal.SIGINT:
                process.send_signal(number)
        process.kill()
        assert process.returncode in (128 + number, -number), errors
        assert "cannot be imported" not in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "number", "code"),
    [
        ("numpy", signal.SIGINT, -signal.SIGINT),  # reported by Python: no command runs yet
        ("paddle_mnist.mnist.config", signal.SIGINT, 130),
        ("paddle_mnist.mnist.setup", signal.SIGTERM, 143),
        ("paddle.version", signal.SIGTERM, 143),
    ],
)
def test_signal_during_an_import_exits_with_its_code(tmp_path, tiny, module, number, code):
    """It is neither lost nor reported as an error of the import. No step is done yet."""
    command = [sys.executable, "-c", IMPORT, module, str(int(number)), ROOT / "tools/train.py"]
    process = start_job([*command, *SMALL, "--data", tiny], tmp_path, subprocess.PIPE)
    _, errors = process.communicate()
    assert process.returncode == code, errors
    assert "Error" not in errors and ("Traceback" in errors) == (code < 0)
    assert not (tmp_path / "work").exists()

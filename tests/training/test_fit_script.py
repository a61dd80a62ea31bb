"""`fit` in a script of a user's own: stopped, killed, supervised, and in several processes."""

import signal
import sys

import forked
import pytest
from conftest import ROOT

from paddle_mnist.checkpoint.weights import load

SCRIPT = ROOT / "tests" / "fit_script.py"


def run(folder, *args, expect=0, script=SCRIPT):
    done = forked.run([sys.executable, script, *args], cwd=folder, timeout=240)
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def same_weights(run, other):
    weights, expected = load(run / "model.pdparams"), load(other / "model.pdparams")
    return all((weights[name] == expected[name]).all() for name in expected)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    done = run(folder, folder / "run")
    assert done.stdout.splitlines()[-1].startswith("finished ")
    assert "Warning" not in done.stderr
    return folder / "run"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_script_stopped_twice_resumes_twice_to_the_same_bits(name, tmp_path, unbroken):
    number, words = getattr(signal, name), [tmp_path / "run", f"5:{name}", f"8:{name}"]
    expected = -number if name == "SIGKILL" else 128 + number
    for saved in (3, 6) if name == "SIGKILL" else (5, 8):
        stopped = run(tmp_path, *words, expect=expected)
        if name != "SIGKILL":
            assert f"stopped by {name}; run again to resume" in stopped.stdout
            assert "Traceback" not in stopped.stderr
        saves = (tmp_path / "run" / "checkpoints").glob("*.json")
        assert f"_step{saved}" in max(saves, key=lambda path: path.stat().st_mtime_ns).name
    assert f"resuming after step {saved}" in run(tmp_path, *words).stdout
    assert same_weights(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_script_stopped_in_two_processes_of_fit_resumes_to_the_same_bits(tmp_path, unbroken):
    words = ["--nprocs=2", tmp_path / "run", "7:SIGTERM"]
    run(tmp_path, *words, expect=143)
    for end in ("finished ", "already finished "):
        assert run(tmp_path, *words).stdout.splitlines()[-1].startswith(end)
    assert same_weights(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_script_started_by_paddles_launch_keeps_the_bits(tmp_path, unbroken):
    args = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", "log"]
    code = f"import runpy, sys; sys.argv[:] = ['launch', *{args[2:]!r}, *sys.argv[1:]]; "
    code += "runpy.run_module('paddle.distributed.launch', run_name='__main__')"
    command = [sys.executable, "-c", code, SCRIPT, tmp_path / "run"]
    done = forked.run(command, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert same_weights(tmp_path / "run", unbroken)
    again = run(tmp_path, tmp_path / "run").stdout  # in a process that hashes strings otherwise
    assert "already finished" in again and "has changed since" not in again


@pytest.mark.slow
def test_script_without_a_guard_raises_before_it_trains(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        f"from fit_script import main\nmain({str(tmp_path / 'run')!r}, nprocs=2)\n"
    )
    done = run(tmp_path, script=script, expect=1)
    assert 'expected the call under `if __name__ == "__main__":`' in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_value_that_only_the_main_process_changes_is_left_out(tmp_path):
    script = tmp_path / "counting.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
from fit_rows import train
from paddle_mnist import Callback

class Counter(Callback):
    count = 0

    def before_training(self, training):
        self.is_main = training.world.is_main_process

    def after_step(self, view):
        self.count += self.is_main

if __name__ == "__main__":
    train("BatchNorm", {str(tmp_path / "run")!r}, callbacks=[Counter()], nprocs=2)
"""
    )
    log = run(tmp_path, script=script).stdout
    line = next(line for line in log.splitlines() if line.startswith("not saved, since"))
    assert "callbacks['Counter'].count, which differs between the processes" in line


@pytest.mark.slow
def test_workers_of_a_killed_script_hold_no_lock(tmp_path, unbroken):
    words = ["--num_workers=2", tmp_path / "run", "7:SIGKILL"]
    run(tmp_path, *words, expect=-signal.SIGKILL)
    run(tmp_path, *words)
    assert same_weights(tmp_path / "run", unbroken)


def test_supervise_without_a_script_names_the_missing_file(tool):
    refused = tool("supervise", "run", "missing.py", expect=2)
    assert "missing.py: no such script; expected the path of a Python program" in refused.stderr

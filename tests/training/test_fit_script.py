"""`fit` in a script of a user's own: stopped, killed, supervised, and in several processes."""

import contextlib
import signal
import sys
import time
from pathlib import Path

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
def test_the_same_script_goes_on(name, tmp_path, unbroken):
    number = getattr(signal, name)
    stopped = run(
        tmp_path,
        tmp_path / "run",
        f"7:{name}",
        expect=-number if name == "SIGKILL" else 128 + number,
    )
    if name != "SIGKILL":
        assert f"stopped by {name}; run again to resume" in stopped.stdout
        assert "Traceback" not in stopped.stderr
    resumed = run(tmp_path, tmp_path / "run", f"7:{name}")
    assert f"resuming after step {6 if name == 'SIGKILL' else 7}" in resumed.stdout
    assert same_weights(tmp_path / "run", unbroken)
    again = run(tmp_path, tmp_path / "run", f"7:{name}").stdout.splitlines()
    assert again[-1].replace("already ", "") == resumed.stdout.splitlines()[-1]


@pytest.mark.slow
def test_two_processes_started_by_fit(tmp_path, unbroken):
    run(tmp_path, "--nprocs=2", tmp_path / "run", "7:SIGTERM", expect=143)
    done = run(tmp_path, "--nprocs=2", tmp_path / "run")
    assert done.stdout.splitlines()[-1].startswith("finished ")
    assert same_weights(tmp_path / "run", unbroken)
    last = run(tmp_path, "--nprocs=2", tmp_path / "run").stdout.splitlines()[-1]
    assert last.startswith("already finished ")


def test_two_processes_started_by_paddles_launch(tmp_path, unbroken):
    args = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", "log"]
    code = f"import runpy, sys; sys.argv[:] = ['launch', *{args[2:]!r}, *sys.argv[1:]]; "
    code += "runpy.run_module('paddle.distributed.launch', run_name='__main__')"
    command = [sys.executable, "-c", code, SCRIPT, tmp_path / "run"]
    done = forked.run(command, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert same_weights(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        f"from fit_script import main\nmain({str(tmp_path / 'run')!r}, nprocs=2)\n"
    )
    done = run(tmp_path, script=script, expect=1)
    assert 'expected the call under `if __name__ == "__main__":`' in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_workers_of_a_killed_script_end_and_hold_no_lock(tmp_path, unbroken):
    words = ["--num_workers=2", tmp_path / "run", "7:SIGKILL"]
    run(tmp_path, *words, expect=-signal.SIGKILL)
    deadline = time.monotonic() + 60
    while others := [one for one in Path("/proc").glob("[0-9]*") if is_of(one, tmp_path)]:
        assert time.monotonic() < deadline, f"still alive: {others}"
        time.sleep(0.1)
    run(tmp_path, *words)
    assert same_weights(tmp_path / "run", unbroken)


def is_of(process, folder):
    """Return whether a process, a folder of /proc, was started with the path of a folder."""
    with contextlib.suppress(OSError):
        return str(folder).encode() in (process / "cmdline").read_bytes()
    return False


@pytest.mark.slow
def test_supervised_script_is_started_again(tmp_path, unbroken):
    words = [tmp_path / "run", SCRIPT, tmp_path / "run", "4:SIGKILL", "8:SIGKILL"]
    command = [sys.executable, ROOT / "tools" / "supervise.py", "--max-restarts", "2", *words]
    done = forked.run(command, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    output = done.stdout + done.stderr
    assert "the training ended with SIGKILL at step 3; restart 1 of 2" in output
    assert "the training ended with SIGKILL at step 6; restart 2 of 2" in output
    assert same_weights(tmp_path / "run", unbroken)


def test_supervise_needs_a_script(tool):
    refused = tool("supervise", "run", "missing.py", expect=2)
    assert "missing.py: no such script; expected the path of a Python program" in refused.stderr

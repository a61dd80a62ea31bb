"""Runs that are killed at random moments, from their first instruction to their last."""

import contextlib
import random
import subprocess
import sys
import time

import pytest
from conftest import ROOT

# The newest checkpoint is the only one kept.
COMMAND = """
    tools/train.py --recipe digits --epochs 12 --visualdl false --figures false --log_every 1
    --save_every_steps 7 --keep_last 1 --keep_epochs false --keep_best false
""".split()
KILLS = 8


def start(run):
    """Start a training; return its process and the file of what it prints."""
    log = run.with_suffix(".log")
    with open(log, "wb") as output:
        command = [sys.executable, *COMMAND, "--output", str(run)]
        return subprocess.Popen(command, cwd=ROOT, stdout=output), log


def wait_for_moment(process, log, draw):
    """Wait for any moment since the start, or more often for one since the first step."""
    in_start_up = draw.random() < 0.2
    while not in_start_up and process.poll() is None and b"/456 lr" not in log.read_bytes():
        time.sleep(0.005)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(draw.uniform(0, 5 if in_start_up else 1.2))


@pytest.mark.release
@pytest.mark.timeout(900)
def test_kills_change_nothing(tmp_path):
    """The same command goes on until it has trained; then another run begins."""
    draw, kills, runs, resumes = random.Random(1), 0, 0, 0
    assert start(tmp_path / "unbroken")[0].wait() == 0
    expected = (tmp_path / "unbroken/mnist.pdparams").read_bytes()
    while kills < KILLS or not runs:
        run = tmp_path / f"run{runs}"
        process, log = start(run)
        if kills < KILLS:
            wait_for_moment(process, log, draw)
            process.kill()
        code = process.wait()
        resumes += "resuming after step" in log.read_text()
        kills += code != 0
        if code == 0:
            assert (run / "mnist.pdparams").read_bytes() == expected
            runs += 1
    assert resumes >= KILLS // 4  # or the kills all came too early to test anything
    assert not list(tmp_path.glob("run*/checkpoints/quarantine/*"))

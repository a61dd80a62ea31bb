"""Runs that are killed at moments of the clock, from their first instruction to their last."""

import random
import subprocess
import sys
import time

import pytest
from conftest import ROOT

# The newest checkpoint is the only one kept, and no step is without a line of the log.
COMMAND = """
    tools/train.py --recipe digits --epochs 12 --visualdl false --figures false --log_every 1
    --save_every_steps 7 --keep_last 1 --keep_epochs false --keep_best false
""".split()
KILLS = 12


@pytest.mark.release
@pytest.mark.timeout(900)
def test_kills_change_nothing(tmp_path):
    """The same command goes on until it has trained; then another run begins."""

    def start(name):
        command = [sys.executable, *COMMAND, "--output", str(tmp_path / name)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)

    draw, began, kills, runs = random.Random(1), time.monotonic(), 0, 0
    assert start("unbroken").wait() == 0
    seconds = time.monotonic() - began
    expected = (tmp_path / "unbroken/mnist.pdparams").read_bytes()
    while kills < KILLS:
        process = start(f"run{runs}")
        try:
            assert process.wait(draw.uniform(0, 1.2 * seconds)) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        else:
            assert (tmp_path / f"run{runs}/mnist.pdparams").read_bytes() == expected
            runs += 1
    logs = [log.read_text() for log in tmp_path.glob("run*/train.log")]
    assert runs and sum(log.count("resuming after step") for log in logs) >= KILLS // 4
    assert not list(tmp_path.glob("run*/checkpoints/quarantine/*"))

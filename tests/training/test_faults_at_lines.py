"""Faults at some lines of a run; `python tests/faults.py` tries all of them."""

import re
import sys

import forked
import pytest
from conftest import ROOT


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "options",
    [
        ["--file", "whole_steps.py", "--kind", "raise", "--sample", 15],
        pytest.param(["--sample", 60], marks=pytest.mark.slow),
        pytest.param(["--sample", 600, "--seed", 2], marks=pytest.mark.release),
        pytest.param(["--sample", 4, "--processes", 2], marks=pytest.mark.release),
    ],
    ids=str,
)
def test_faults_at_lines_of_a_run_change_nothing(tmp_path, options):
    """The program itself compares the resumed runs with the unbroken one (exit code 1)."""
    command = [sys.executable, ROOT / "tests/faults.py", *map(str, options)]
    done = forked.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    count = options[options.index("--sample") + 1]
    assert re.match(f"{count} of {count} points hold; they left [1-9]", done.stdout)

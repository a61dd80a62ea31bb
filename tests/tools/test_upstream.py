"""`make upstream`: which defects of Paddle and VisualDL are fixed."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("pass", "fixed"),
        ("assert 1 > 2, 'it is'", "still there"),
        ("import os; os.abort()", "still there"),
        ("import signal, os; os.kill(os.getpid(), signal.SIGALRM)", "still there"),
        (
            "import no_such_module",
            "cannot tell: exit code 1, ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("import os; os.kill(os.getpid(), 9)", "cannot tell: exit code 137, "),
    ],
)
def test_make_upstream_tells_a_defect_from_another_failure(tmp_path, script, state):
    file = tmp_path / "defect.py"
    file.write_text(script)
    command = ["make", "-o", ".venv/.installed-test", "upstream", f"ARGS={file}", "VENV=.venv"]
    command.append(f"RUN={os.path.dirname(sys.executable)}")
    # Not as a part of the `make` that runs the tests, whose options it would take.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == f"{file}: {state}".strip()

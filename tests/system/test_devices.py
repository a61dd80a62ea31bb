"""The effects of a Paddle on the process that imports it."""

import subprocess
import sys

import paddle
import pytest
from conftest import ROOT

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import paddle
from pathlib import Path
from paddle_mnist.metrics.visualdl import VisualDLWriter
from paddle_mnist.plots.figure import new_figure, save_figures
save_figures({"empty": new_figure(2.0)[0]}, Path("figures"))
print(Path("figures/empty.png").read_bytes()[1:4])
VisualDLWriter(Path("vdl"), ["images"]).close()
"""


@pytest.mark.slow
def test_figures_are_drawn_where_paddle_is_imported_first(tmp_path):
    """Paddle 2.6.2 breaks a zlib that is imported after it."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "b'PNG'" in done.stdout
    if paddle.__version__.startswith("2."):
        assert "expected `import zlib` before `import paddle`" in done.stderr
    else:
        assert done.returncode == 0, done.stderr

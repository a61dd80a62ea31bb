"""Each row of the table "you know it as / here", as code that runs."""

import re
import sys

import forked
import pytest
from conftest import ROOT
from pages import blocks

PAGE = ROOT / "docs/en/coming-from.md"
TABLE = PAGE.read_text().partition("| you know it as | here |\n|---|---|")[2].partition("\n\n")[0]
ROWS = re.findall(r"^\| .+ \| `(.+?)`.* \|$", TABLE, re.MULTILINE)

RUNS = """
    import json
    import runpy
    import traceback
    from paddle.nn import *
    from paddle.optimizer import *
    from paddle.optimizer.lr import *
    from paddle.static import InputSpec
    from sklearn.model_selection import KFold
    import paddle_mnist
    from paddle_mnist import *

    Swa = runpy.run_path(EXAMPLE)["Swa"]
    usual = dict(model=build, train=train, valid=valid, loss=loss, optimizer=adam, epochs=2)

    for number, code in enumerate(ROWS):
        def fit(*arguments, **options):
            assert arguments == (...,)
            return paddle_mnist.fit(**{"output": f"rows/{number}", **usual, **options})

        try:
            exec(code, {**globals(), "fit": fit})
        except BaseException:
            print("FAILED", code, traceback.format_exc())
        else:
            print("RAN", code)
"""


@pytest.mark.release
@pytest.mark.timeout(900)
def test_each_row_runs_with_the_program_before_it(tmp_path):
    pytest.importorskip("tensorboardX")
    program = blocks(PAGE, "python")[0]
    example = f"    EXAMPLE, ROWS = {str(ROOT / 'examples/callbacks.py')!r}, {ROWS!r}\n"
    (tmp_path / "program.py").write_text(program + example + RUNS)
    done = forked.run([sys.executable, tmp_path / "program.py"], cwd=tmp_path, timeout=800)
    lines = done.stdout.splitlines()
    assert [line[4:] for line in lines if line.startswith("RAN ")] == ROWS, (
        done.stdout + done.stderr
    )
    assert len(ROWS) >= 25
    assert (tmp_path / "rows/2").exists() is False  # it reads the history of the program's run

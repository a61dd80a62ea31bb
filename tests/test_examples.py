"""The examples: short, better than their baseline, and the same bits after a kill."""

import re
import signal
import sys
import time

import forked
import pytest
from conftest import ROOT
from fit_rows import ROWS

from paddle_mnist.checkpoint.store import CheckpointStore

SERVERS = ROOT / "examples/parameter_servers.py"  # has a test of its own
EXAMPLES = sorted({*(ROOT / "examples").glob("*.py")} - {SERVERS})
KILLED_AT = 25  # steps; each example has more, in several epochs
LOWER_IS_BETTER = {"gan", "log_to_mlflow", "regression"}

# Before a release, all of them.
one_in_two = pytest.mark.parametrize(
    "example",
    [*EXAMPLES[::2], *(pytest.param(path, marks=pytest.mark.release) for path in EXAMPLES[1::2])],
    ids=lambda path: path.stem,
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@one_in_two
def test_example_beats_its_baseline_and_resumes_to_the_same_bits(example, tmp_path):
    if example.stem == "log_to_mlflow":
        pytest.importorskip("mlflow", reason="needs mlflow-skinny")
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    done = forked.run([sys.executable, example, unbroken], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, baseline, net = map(float, re.findall(r"\d\.\d{3}", done.stdout.splitlines()[-1]))
    if example.stem == "from_hapi":  # chance comes last there, and paddle.Model is not a baseline
        baseline, net = net, baseline
    assert net < baseline if example.stem in LOWER_IS_BETTER else net > baseline

    process = forked.Popen([sys.executable, example, killed], cwd=tmp_path)
    while steps_of(killed) < KILLED_AT:
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (killed / "result.json").exists()

    again = forked.run([sys.executable, example, killed], cwd=tmp_path)
    assert again.returncode == 0 and "resuming after step" in again.stdout, again.stderr
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
    weights = [(run / "model.pdparams").read_bytes() for run in (killed, unbroken)]
    assert weights[0] == weights[1]


def steps_of(run):
    """Return the step of the newest checkpoint."""
    checkpoints = CheckpointStore(run / "checkpoints").all()
    return max((checkpoint.step for checkpoint in checkpoints), default=0)


def test_page_lists_each_training_of_the_matrix():
    page = (ROOT / "docs/en/any-net.md").read_text()
    lines = page.partition("<!-- matrix -->")[2].partition("<!-- end -->")[0].strip().splitlines()
    listed = [name for line in lines for name in line.partition(": ")[2].split("; ")]
    assert sorted(listed) == sorted(ROWS)

"""The examples: short, better than their baseline, and the same bits after a kill."""

import re
import runpy
import signal
import sys
import time

import forked
import numpy as np
import paddle
import pytest
from conftest import ROOT
from fit_rows import ROWS

from paddle_mnist.checkpoint.store import CheckpointStore

SERVERS = ROOT / "examples/parameter_servers.py"  # has a test of its own
EXAMPLES = sorted({*(ROOT / "examples").glob("*.py")} - {SERVERS})
KILLED_AT = 25  # steps; each example has more, in several epochs
LOWER_IS_BETTER = {"gan", "log_to_mlflow", "log_to_wandb", "regression"}

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
    if example.stem.startswith("log_to_"):
        pytest.importorskip(example.stem.removeprefix("log_to_"))
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    done = forked.run([sys.executable, example, unbroken], cwd=tmp_path)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stdout + done.stderr
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


def test_texts_of_similar_length_share_a_batch_and_padding_changes_no_answer():
    example = runpy.run_path(str(ROOT / "examples/text.py"))
    lengths = np.array([5, 9, 2, 7, 2, 9, 5, 3, 6])
    order = example["by_length"](lengths, 2)
    orders = [order(epoch).tolist() for epoch in range(9)]
    assert all(sorted(samples) == [*range(9)] for samples in orders)
    firsts = {tuple(sorted(lengths[samples[:2]])) for samples in orders}
    assert firsts <= {(2, 2), (3, 5), (5, 6), (7, 9)}
    assert orders[0] == order(0).tolist() and len({*map(tuple, orders)}) > 1
    model, reviews = example["Classifier"](), example["Reviews"](4, 0)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # a bias, which begins as 0
            parameter.set_value(paddle.ones_like(parameter))
    samples = [reviews[index] for index in range(4)]
    alone = [example["pad"]([sample])[0] for sample in samples]
    together, labels = example["pad"](samples, length=200)
    assert together.shape == (4, 201) and labels.shape == (4, 1)
    answers = np.concatenate([model(paddle.to_tensor(batch)).numpy() for batch in alone])
    assert np.allclose(model(paddle.to_tensor(together)).numpy(), answers, atol=1e-6)


def steps_of(run):
    """Return the step of the newest checkpoint."""
    checkpoints = CheckpointStore(run / "checkpoints").all()
    return max((checkpoint.step for checkpoint in checkpoints), default=0)


def test_page_lists_each_training_of_the_matrix():
    page = (ROOT / "docs/en/any-net.md").read_text()
    lines = page.partition("<!-- matrix -->")[2].partition("<!-- end -->")[0].strip().splitlines()
    listed = [name for line in lines for name in line.partition(": ")[2].split("; ")]
    assert sorted(listed) == sorted(ROWS)

"""Each recipe reaches what its header promises.

The quick ones are trained here, in full, from their command. What the page of the reproduction
trains with several seeds is held against the worst of these.
"""

import json
import re
import shlex
import statistics

import pytest
from reproduce import ALL
from reproduction.claims import Workspace

from paddle_mnist.mnist.config import recipes

MEASURED = {  # where the page measures a recipe with several seeds: the claim, and its row
    "default": ("default", "default"),
    "tutorial": ("claimed", "adam"),
    "tutorial-resume": ("rate", "stepped"),
    "best": ("best", "best"),
}
TRAINED = ("default", "digits", "fast")


def promised(name):
    """The command, the accuracy and the data in a recipe's header."""
    command, expect = recipes()[name].read_text().splitlines()[:2]
    accuracy, dataset = re.match(r"# expect: eval accuracy >= ([\d.]+) on (\w+);", expect).groups()
    return command, float(accuracy), dataset


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "fast" else pytest.mark.release) for name in TRAINED],
)
def test_recipe_reaches_what_its_header_promises(tool, tmp_path, real_data, name):
    command, accuracy, dataset = promised(name)
    plain = ("--figures", "false", "--visualdl", "false")
    arguments = shlex.split(command)[3:]
    tool("train", *arguments, *plain, timeout=1800, PADDLE_MNIST_DATA=str(real_data))
    result = json.loads((tmp_path / "work/output" / name / "result.json").read_text())
    assert result["dataset"] == dataset
    assert result["eval_acc"] >= accuracy


def test_headers_promise_no_more_than_the_worst_seed_gave():
    assert {*TRAINED, *MEASURED} == set(recipes())
    for name, (claim, row) in MEASURED.items():
        scores = ALL[claim].report(Workspace())[row]["eval_acc"]
        _, accuracy, dataset = promised(name)
        assert dataset == "mnist" and accuracy <= min(scores), name
    best = [100 * score for score in ALL["best"].report(Workspace())["best"]["eval_acc"]]
    mean, sd = statistics.mean(best), statistics.stdev(best)
    line = f"# eval accuracy {mean:.3f}%, mean of {len(best)} seeds, sd {sd:.3f}%.\n"
    assert line in recipes()["best"].read_text()

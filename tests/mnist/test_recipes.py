"""Each recipe reaches what its header promises.

The quick ones are trained here, in full, from their command. What the page of the reproduction
trains with several seeds is held against the worst of these.
"""

import json
import re
import shlex
import statistics

import pytest
from reproduce import CLAIMS, RESULTS
from reproduction.ladder import BEST
from reproduction.workspace import Workspace

from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.config import recipes

CLAIMED = {one.id: one for one in CLAIMS}
MEASURED = {  # where the page measures a recipe with several seeds: the claim, and its row
    "default": ("default", "default"),
    "tutorial": ("claimed", "adam"),
    "tutorial-resume": ("rate", "stepped"),
    "best": ("best", "best"),
}
TRAINED = ("default", "digits", "fast")


def test_every_recipe_is_trained_here_or_measured():
    assert {*TRAINED, *MEASURED} == set(recipes())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "fast" else pytest.mark.release) for name in TRAINED],
)
def test_recipe_reaches_what_its_header_promises(tool, tmp_path, request, name):
    command, accuracy, dataset = promised(name)
    data = (
        {}
        if dataset == "digits"
        else {"PADDLE_MNIST_DATA": str(request.getfixturevalue("real_data"))}
    )
    plain = ("--figures", "false", "--visualdl", "false")
    tool("train", *shlex.split(command)[3:], *plain, timeout=1800, **data)
    result = json.loads((tmp_path / "work/output" / name / "result.json").read_text())
    assert result["dataset"] == dataset
    assert result["eval_acc"] >= accuracy


def promised(name):
    """The command, the accuracy and the data in a recipe's header."""
    command, expect = recipes()[name].read_text().splitlines()[:2]
    accuracy, dataset = re.match(r"# expect: eval accuracy >= ([\d.]+) on (\w+);", expect).groups()
    return command, float(accuracy), dataset


def test_header_of_the_best_tells_what_was_measured(real_data, tmp_path):
    workspace = Workspace(open_data(str(real_data)), RESULTS, tmp_path)
    scores = [100 * result["eval_acc"] for result in BEST.results(workspace)["best"]]
    mean, sd = statistics.mean(scores), statistics.stdev(scores)
    line = f"# eval accuracy {mean:.3f}%, mean of {len(scores)} seeds, sd {sd:.3f}%.\n"
    assert line in recipes()["best"].read_text()


@pytest.mark.parametrize("name", MEASURED)
def test_header_promises_no_more_than_the_worst_seed_gave(real_data, tmp_path, name):
    """Whose results are void once the code computes something else."""
    claim, row = MEASURED[name]
    workspace = Workspace(open_data(str(real_data)), RESULTS, tmp_path)
    results = CLAIMED[claim].results(workspace)[row]
    assert results, "tools/reproduce.py makes them"
    _, accuracy, dataset = promised(name)
    assert dataset == "mnist" and accuracy <= min(result["eval_acc"] for result in results)

"""Each recipe reaches what its header promises: trained here, in full, from its command."""

import json
import re
import shlex

import pytest
from conftest import ROOT
from reproduction.ladder import BEST
from reproduction.trainings import Results

from paddle_mnist.config import recipes
from paddle_mnist.data import open_data


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(recipes().keys() - {"best"}))  # takes long
def test_recipe_reaches_what_its_header_promises(tool, tmp_path, request, name):
    command, accuracy, dataset = promised(name)
    data = (
        {}
        if dataset == "digits"
        else {"PADDLE_MNIST_DATA": str(request.getfixturevalue("real_data"))}
    )
    arguments = shlex.split(command)[3:]
    if name.startswith("tutorial"):  # whose own is Paddle's: slower, and the same to rounding
        arguments += ["--fast_conv", "on"]
    tool("train", *arguments, timeout=1800, **data)
    result = json.loads((tmp_path / "work/output" / name / "result.json").read_text())
    assert result["dataset"] == dataset
    assert result["eval_acc"] >= accuracy


def promised(name):
    """The command, the accuracy and the data in a recipe's header."""
    command, expect = recipes()[name].read_text().splitlines()[:2]
    accuracy, dataset = re.match(r"# expect: eval accuracy >= ([\d.]+) on (\w+);", expect).groups()
    return command, float(accuracy), dataset


def test_best_promises_no_more_than_its_worst_seed_gave(real_data):
    results = Results(ROOT / "docs/reproduction/trainings.json")
    found = BEST.results(results, open_data(str(real_data)))["best"]
    assert found
    _, accuracy, dataset = promised("best")
    assert dataset == "mnist" and accuracy <= min(result["eval_acc"] for result in found)

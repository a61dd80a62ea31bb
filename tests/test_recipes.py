"""Each recipe reaches what its header promises: trained here, in full, from its command."""

import json
import re
import shlex

import pytest

from paddle_mnist.config import recipes


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", recipes())
def test_recipe_reaches_what_its_header_promises(tool, tmp_path, request, name):
    command, expect = recipes()[name].read_text().splitlines()[:2]
    accuracy, dataset = re.match(r"# expect: eval accuracy >= ([\d.]+) on (\w+);", expect).groups()
    data = (
        {}
        if dataset == "digits"
        else {"PADDLE_MNIST_DATA": str(request.getfixturevalue("real_data"))}
    )
    arguments = shlex.split(command)[3:]
    tool("train", *arguments, timeout=1800, **data)
    result = json.loads((tmp_path / "work/output" / name / "result.json").read_text())
    assert result["dataset"] == dataset
    assert result["eval_acc"] >= float(accuracy)

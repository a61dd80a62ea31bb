"""The notebook runs from top to bottom, on each source, and is kept without outputs."""

import json
import os
import re

import pytest
from conftest import ROOT

NOTEBOOK = ROOT / "notebooks/mnist.ipynb"


def cells():
    return json.loads(NOTEBOOK.read_text())["cells"]


def test_outputs_are_stripped():
    for cell in cells():
        assert not cell.get("outputs") and not cell.get("execution_count"), cell["id"]
        assert set(cell["metadata"]) == set()


def test_it_defines_nothing_the_package_has():
    code = "".join("".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code")
    assert not re.search(r"^\s*(class|def) ", code, re.MULTILINE)


def test_headings_are_english_and_text_is_chinese():
    for cell in cells():
        if cell["cell_type"] == "markdown":
            heading, _, text = "".join(cell["source"]).partition("\n")
            assert re.fullmatch(r"##? [A-Za-z ]+", heading), heading
            assert re.search("[\u4e00-\u9fff]", text)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", ["embedded", "mnist"])
def test_it_runs_from_top_to_bottom(tmp_path, request, source):
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebook")
    client = pytest.importorskip("nbclient", reason="needs the extra notebook")
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    if source == "mnist":
        environment["PADDLE_MNIST_DATA"] = str(request.getfixturevalue("real_data"))
    notebook = nbformat.read(NOTEBOOK, 4)
    runner = client.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": tmp_path}}
    )
    runner.execute(env=environment)
    assert_results(notebook.cells, "mnist" if source == "mnist" else "digits")


def assert_results(cells, name):
    """What the cells of an executed notebook print, with the data of this name."""
    texts = [output.get("text", "") for cell in cells for output in cell.get("outputs", [])]
    output = "\n".join(map("".join, texts))  # in a file, a text is a list of its lines
    assert f"{name} 来自" in output
    assert re.search(r"^\{1: '(\w+)', 2: '\1'\} 相同$", output, re.MULTILINE)
    accuracy = float(re.search(r"导出的模型：([\d.]+)%", output)[1])
    assert accuracy > (97 if name == "mnist" else 85)
    assert re.search(r"^7 0\.\d+ ", output, re.MULTILINE)  # the picture that it draws

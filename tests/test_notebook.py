"""The notebook, which is kept without outputs, runs with the answers to its exercises."""

import json
import os
import re

import pytest
from conftest import ROOT

NOTEBOOK = ROOT / "notebooks/mnist.ipynb"
CHINESE = re.compile("[\u4e00-\u9fff]")
# What `check_shape` prints, in the tutorial's format.
SHAPES = re.compile(r"#{10} print |(conv|max_pool|fc)\d?-- |(inputs|outputs\d)_shape: ")
ANSWER = re.compile(r"<details>\n<summary>[^\n]+</summary>\n\n(.*?)\n\n</details>", re.DOTALL)


def source_of(cell):
    return "".join(cell["source"])  # in a file, a text is a list of its lines


def answers(text):
    """The code of the answers that a cell's text hides."""
    return re.findall(r"```python\n(.*?)```", "".join(ANSWER.findall(text)), re.DOTALL)


def test_notebook_is_kept_without_outputs_and_hides_its_answers():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        assert not cell.get("outputs") and not cell.get("execution_count"), cell["id"]
    text = "\n\n".join(source_of(cell) for cell in cells if cell["cell_type"] == "markdown")
    assert re.findall(r"^### 练习 (\d)：", text, re.MULTILINE) == ["1", "2", "3"]
    assert len(answers(text)) == 3
    assert "```python" not in ANSWER.sub("", text)  # none is visible


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("source", ["embedded", pytest.param("mnist", marks=pytest.mark.release)])
def test_notebook_runs_from_top_to_bottom_with_its_answers(tmp_path, request, source):
    """On MNIST, before a release, twice in one kernel, as learners do."""
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebook")
    client = pytest.importorskip("nbclient", reason="needs the extra notebook")
    environment = {name: text for name, text in os.environ.items() if name != "MPLBACKEND"}
    notebook = nbformat.read(NOTEBOOK, 4)
    with_answers = []
    for cell in notebook.cells:
        hidden = answers(cell.source) if cell.cell_type == "markdown" else []
        with_answers += [cell, *map(nbformat.v4.new_code_cell, hidden)]
    runs = [with_answers]
    if source == "mnist":
        environment["PADDLE_MNIST_DATA"] = str(request.getfixturevalue("real_data"))
        runs.append([nbformat.from_dict(cell) for cell in notebook.cells])
    notebook.cells = [cell for run in runs for cell in run]
    resources = {"metadata": {"path": tmp_path}}
    client.NotebookClient(notebook, timeout=600, resources=resources).execute(env=environment)
    for run in runs:
        assert_results(run, "mnist" if source == "mnist" else "digits")
    trial, answer = re.findall(r"^验证集准确率 ([\d.]+)%", printed(with_answers), re.MULTILINE)
    assert float(answer) > float(trial)


def printed(cells):
    """Return what executed cells print."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return "".join("".join(output.get("text", "")) for output in outputs)


def assert_results(cells, name):
    """Check what the cells of an executed notebook show, with the data of this name."""
    for cell in cells:
        pictures = 0
        for output in cell.get("outputs", []):
            assert output.get("name") != "stderr", output
            pictures += "image/png" in output.get("data", {})
        if cell["cell_type"] == "code":
            expected = len(re.findall(r"plt\.show\(\)|^display\(", source_of(cell), re.MULTILINE))
            assert pictures == expected, source_of(cell)
    output = printed(cells)
    for line in output.splitlines():
        assert not line or CHINESE.search(line) or SHAPES.match(line), line  # no log lines
    assert f"数据集：{name}，来自" in output
    assert "参数总数：20,350" in output
    resumed, uninterrupted = re.findall(r"权重的 SHA-256：(\w+)", output)
    assert resumed == uninterrupted
    assert re.search(r"^1 个进程：(\w+)，2 个进程：\1\n权重相同$", output, re.MULTILINE)
    accuracy = float(re.search(r"导出的模型在评估集上的准确率：([\d.]+)%", output)[1])
    assert accuracy > (97 if name == "mnist" else 85)
    assert "识别结果：7，" in output  # the picture that it draws

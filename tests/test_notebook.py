"""The notebook in both languages: the same code, stored pictures, and it runs with its answers."""

import ast
import json
import os
import re

import pytest
from conftest import ROOT

NOTEBOOKS = {"zh": ROOT / "notebooks/mnist.ipynb", "en": ROOT / "notebooks/mnist.en.ipynb"}
CHINESE = re.compile("[\u4e00-\u9fff]")
# What `check_shape` prints, in the tutorial's format.
SHAPES = re.compile(r"#{10} print |(conv|max_pool|fc)\d?-- |(inputs|outputs\d)_shape: ")
ANSWER = re.compile(r"<details>\n<summary>[^\n]+</summary>\n\n(.*?)\n\n</details>", re.DOTALL)
# What is printed in both languages.
PRINTED = {
    "zh": {
        "data": "数据集：{}，来自",
        "parameters": "参数总数：20,350",
        "weights": r"权重的 SHA-256：(\w+)",
        "processes": r"^1 个进程：(\w+)，2 个进程：\1\n权重相同$",
        "exported": r"导出的模型在评估集上的准确率：([\d.]+)%",
        "reading": "识别结果：7，",
        "trial": r"^验证集准确率 ([\d.]+)%",
    },
    "en": {
        "data": "data: {}, from",
        "parameters": "parameters: 20,350",
        "weights": r"SHA-256 of the weights (\w+)",
        "processes": r"^1 process: (\w+), 2 processes: \1\nthe same weights$",
        "exported": r"accuracy of the exported model: ([\d.]+)%",
        "reading": "it reads 7,",
        "trial": r"^validation accuracy ([\d.]+)%",
    },
}
in_either_language = pytest.mark.parametrize("language", NOTEBOOKS)


def cells_of(language):
    return json.loads(NOTEBOOKS[language].read_text(encoding="utf-8"))["cells"]


def source_of(cell):
    return "".join(cell["source"])  # in a file, a text is a list of its lines


def answers(text):
    """The code of the answers that a cell's text hides."""
    return re.findall(r"```python\n(.*?)```", "".join(ANSWER.findall(text)), re.DOTALL)


@in_either_language
def test_notebook_stores_its_pictures_and_hides_its_answers(language):
    cells = cells_of(language)
    for cell in cells:
        if cell["cell_type"] == "code":
            assert_pictures(cell)
    text = "\n\n".join(source_of(cell) for cell in cells if cell["cell_type"] == "markdown")
    assert re.findall(r"^### (?:练习|Exercise) (\d)", text, re.MULTILINE) == ["1", "2", "3"]
    assert len(answers(text)) == 3
    assert "```python" not in ANSWER.sub("", text)  # none is visible


def test_both_languages_have_the_same_code():
    """Except for comments and for the words in strings."""

    def code_of(cell):
        sources = [source_of(cell)] if cell["cell_type"] == "code" else answers(source_of(cell))
        trees = [ast.parse(source) for source in sources]
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_name = node.value.isascii() and " " not in node.value
                node.value = node.value if is_name else ""
            if isinstance(node, ast.JoinedStr):
                node.values = [part for part in node.values if not isinstance(part, ast.Constant)]
        return [cell["cell_type"], cell["id"], *map(ast.dump, trees)]

    assert [*map(code_of, cells_of("zh"))] == [*map(code_of, cells_of("en"))]
    assert not CHINESE.search(NOTEBOOKS["en"].read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("zh", "embedded"),
        pytest.param("en", "embedded", marks=pytest.mark.release),
        pytest.param("zh", "mnist", marks=pytest.mark.release),
    ],
)
def test_notebook_runs_from_top_to_bottom_with_its_answers(tmp_path, request, language, source):
    """Run it on MNIST before a release, twice in one kernel, as learners do."""
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebook")
    client = pytest.importorskip("nbclient", reason="needs the extra notebook")
    environment = {name: text for name, text in os.environ.items() if name != "MPLBACKEND"}
    notebook = nbformat.read(NOTEBOOKS[language], 4)
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
        assert_results(run, "mnist" if source == "mnist" else "digits", language)
    pattern = PRINTED[language]["trial"]
    trial, answer = re.findall(pattern, printed(with_answers), re.MULTILINE)
    assert float(answer) > float(trial)


def printed(cells):
    """Return what executed cells print."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return "".join("".join(output.get("text", "")) for output in outputs)


def assert_pictures(cell):
    """Check that a code cell has the pictures that it shows, and no errors."""
    pictures = 0
    for output in cell["outputs"]:
        assert output["output_type"] != "error" and output.get("name") != "stderr", output
        pictures += "image/png" in output.get("data", {})
    expected = len(re.findall(r"plt\.show\(\)|^display\(", source_of(cell), re.MULTILINE))
    assert pictures == expected, source_of(cell)


def assert_results(cells, name, language="zh"):
    """Check what the cells of an executed notebook show, with the data of this name."""
    for cell in cells:
        if cell["cell_type"] == "code":
            assert_pictures(cell)
    expected, output = PRINTED[language], printed(cells)
    for line in output.splitlines() if language == "zh" else ():
        assert not line or CHINESE.search(line) or SHAPES.match(line), line  # no log lines
    assert expected["data"].format(name) in output
    assert expected["parameters"] in output
    resumed, uninterrupted = re.findall(expected["weights"], output)
    assert resumed == uninterrupted
    assert re.search(expected["processes"], output, re.MULTILINE)
    accuracy = float(re.search(expected["exported"], output)[1])
    assert accuracy > (97 if name == "mnist" else 85)
    assert expected["reading"] in output  # the picture that it draws


TRAINING = """
import sys
sys.path.insert(0, {tests!r})
from fit_rows import train
from small_nets import Points, perceptron
from paddle_mnist import predict_run
train("SGD with clipping", {run!r}, log_every=1)
outputs = predict_run({run!r}, perceptron, Points())
print("outputs", outputs.shape)
"""


@pytest.mark.slow
def test_training_in_a_notebook_shows_a_bar_and_one_line_an_epoch(tmp_path):
    nbformat, client = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    code = TRAINING.format(tests=str(ROOT / "tests"), run=str(tmp_path / "run"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    resources = {"metadata": {"path": tmp_path}}
    client.NotebookClient(notebook, timeout=300, resources=resources).execute()
    text = printed(notebook.cells)
    lines = re.split(r"[\r\n]+", text)
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs] == ["1/2", "2/2"]
    pattern = r"epoch ./2 loss [\d.]+ acc [\d.]+ valid loss [\d.]+ acc [\d.]+"
    assert all(re.fullmatch(pattern, line) for line in epochs), epochs
    outputs = str(notebook.cells[0].outputs)
    assert "10/10" in outputs and "5/5" in outputs  # steps, and batches of `predict_run`
    assert "outputs (33, 3)" in text

"""The benchmark's machinery, on small data; its figures are for people, not for tests."""

import json
import re

import baseline_tutorial
import benchmark
import numpy as np
import pytest
from benchmarks import promises
from benchmarks.headlines import headlines
from benchmarks.promises.measuring import FOLDER, FRAMEWORKS, STEPS, Trainings, code_lines
from conftest import ROOT
from markdown_tables import copy_tables
from synthetic_data import as_lists, tiny_splits

from paddle_mnist import MNIST, MnistDataset
from paddle_mnist.system.machine import usable_cpus


def test_data_benchmark_gives_the_three_ratios(tool, tiny):
    report = json.loads(tool("benchmark", "data", "--data", tiny, "--rounds", 1, "--json").stdout)
    assert report["cold_ratio"] == report["seconds"]["stdlib"] / report["seconds"]["cold"]
    assert report["cached_ratio"] == report["seconds"]["stdlib"] / report["seconds"]["cached"]
    assert report["memory_ratio"] == report["peak_mib"]["stdlib"] / report["peak_mib"]["cold"]
    assert all(value > 0 for kind in ("seconds", "peak_mib") for value in report[kind].values())


def test_peak_memory_is_that_of_the_child(tool, tiny):
    """However much this process, which starts it, has had."""
    assert len(b"x" * (300 * 2**20)) > 0
    report = json.loads(tool("benchmark", "data", "--data", tiny, "--rounds", 1, "--json").stdout)
    assert report["peak_mib"]["stdlib"] < 100


def test_all_runs_each_in_a_process_of_its_own(monkeypatch, capfd):
    monkeypatch.setattr(benchmark, "BENCHMARKS", {"data": None})  # nothing that could run here
    assert benchmark.main(["--quick", "all", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["cold_ratio"] > 0


def test_all_ends_with_the_code_of_the_first_that_fails(monkeypatch, capfd):
    monkeypatch.setattr(benchmark, "BENCHMARKS", {"data": None, "infer": None})
    assert benchmark.main(["all", "--data", "digits"]) == 2
    assert "expected an AI Studio JSON file" in capfd.readouterr().err


def test_data_benchmark_needs_a_json_file(tool):
    assert "expected an AI Studio JSON file" in tool("benchmark", "data", expect=2).stderr


@pytest.mark.slow
def test_checkpoint_benchmark_gives_the_two_shares(tool):
    run = tool("benchmark", "checkpoint", "--data", "digits", "--rounds", 1, "--json")
    report = json.loads(run.stdout)
    save, step = report["save_seconds"], report["step_seconds"]
    assert report["every_50_steps_share"] == save / (save + 50 * step)
    assert report["every_epoch_share"] == save / (save + 19 * step)
    assert report["steps_an_epoch"] == 19 and save > 0 and step > 0


@pytest.mark.slow
def test_table_is_written_into_the_readme(tool, real_data, tmp_path):
    for name in ("README.md", "README.zh-CN.md"):
        (tmp_path / name).write_text("a\n<!-- benchmark data -->\nold\n<!-- end -->\nb\n")
    tool("benchmark", "data", "--rounds", 1, "--docs", tmp_path, PADDLE_MNIST_DATA=str(real_data))
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("a\n<!-- benchmark data -->\n| images ready") and "old" not in text
    assert text.endswith("<!-- end -->\nb\n")


@pytest.mark.slow
def test_watch_benchmark_gives_a_share_for_each_kind(tool):
    report = json.loads(
        tool("benchmark", "watch", "--data", "digits", "--rounds", 1, "--json").stdout
    )
    kinds = ("off", "removed again", "every 100 steps", "every step")
    assert tuple(report["share"]) == kinds and report["share"]["off"] == 0
    assert report["steps"] == 200 and report["step_seconds"] > 0


def test_infer_benchmark_compares_engines_that_agree(tool):
    report = json.loads(tool("benchmark", "infer", "--rounds", 1, "--json").stdout)
    assert {"Paddle, the net in Python", "Paddle Inference"} <= set(report["engines"])
    assert len(report["engines"]) + len(report["missing"]) == 4
    for engine in report["engines"].values():
        assert 0 < engine["p50_ms"] <= engine["p99_ms"] and engine["images_per_second"] > 0
        assert engine["difference"] < 1e-3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("what", "first"),
    [
        ("train", "| Paddle's layers, the bare loop, 1 thread | "),
        ("time-to-accuracy", "| the tutorial's loop, its five epochs | "),
        ("feeding", "| `paddle.io.TensorDataset` | "),
        ("ladder", "| the tutorial's loop | "),
        ("clocks", "| `tools/train.py --help` | "),
        ("memory", "| the tutorial's loop | "),
        ("evaluate", "| the tutorial's: image by image from lists, batches of 100 | "),
        ("operators", "| the image: stored and listed | "),
        ("rehearsal", "| the recipe `digits` | "),
        ("conv-blocks", "| LeNet-5's blocks, 1x28x28 | "),
        ("signal", "| median of 20 | "),
        ("pictures", "| plain | "),
        ("log", "data: digits, from scikit-learn's digits"),
    ],
)
def test_rehearsal_of_each_table(tool, tmp_path, what, first):
    page = tmp_path / "page.md"
    page.write_text(f"<!-- benchmark {what} -->\nstale\n<!-- end -->\n")
    arguments = (what, "--quick", "--docs", tmp_path, "--json")
    report = json.loads(tool("benchmark", *arguments, timeout=900).stdout)
    assert f"\n{first}" in page.read_text() and "stale" not in page.read_text()
    assert report["machine"]["cores"] == str(usable_cpus())
    if what == "operators":
        assert 0 < sum(report["loops"].values()) < report["step"]
    if what == "evaluate":
        accuracies = report["accuracy"].values()
        assert max(accuracies) - min(accuracies) < 1e-6


def test_tutorials_loop_is_the_recipe(tool, tiny, tmp_path):
    """It learns what can be learned, and its net is ours."""
    output = tool("baseline_tutorial", "--data", tiny, "--epochs", 3).stdout
    assert "epoch 2 batch 0 loss" in output
    assert re.search(r"^eval accuracy [01]\.\d{4}$", output, re.MULTILINE)
    shapes = {name: p.shape for name, p in baseline_tutorial.Net().named_parameters()}
    assert shapes == {name: p.shape for name, p in MNIST().named_parameters()}
    (images, labels), *others = baseline_tutorial.load_data(as_lists(tiny_splits()), "eval")()
    assert not others and images.shape == (70, 1, 28, 28) and labels.shape == (70, 1)
    expected, _ = MnistDataset("eval", str(tiny)).batch(np.arange(70))
    assert np.allclose(images, expected, atol=1e-6)


def test_sparse_benchmark_compares_both_gradients(tool):
    report = json.loads(tool("benchmark", "sparse", "--rounds", 1, "--json").stdout)
    assert set(report["seconds"]) == {"2000", "20000", "200000"}
    assert all(set(step) == {"dense", "sparse"} for step in report["seconds"].values())


RESUMED = {"code": 0, "step": STEPS, "same bits": True}
EXACT = {"loss": 1e-8, "accuracy": 0.0}
KEPT = {
    "lines": 20,
    "repeats": True,
    "finished": RESUMED,
    "killed": [{**RESUMED, "step": 70}],
    "killed without dropout": [{**RESUMED, "step": 70}],
    "terminated": {**RESUMED, "step": 73, "exit code": 143},
    "disk full": {**RESUMED, "step": 70, "exit code": 1},
    "damaged": {**RESUMED, "step": 60, "is said": True},
    "with code": {"code": 0, "reason": "", "is run": False},
    "another batch size": {"code": 1, "reason": "ConfigError"},
    "two processes": {"same bits": True, "metric errors": EXACT},
    "metric errors": EXACT,
}


def test_promises_of_a_framework_that_is_not_installed_are_left_open():
    broken = {
        **KEPT,
        "killed": [{**RESUMED, "step": 60, "same bits": False}, {"code": 1, "reason": "OSError"}],
        "metric errors": {"loss": 0.25, "accuracy": 0.0},
        "another batch size": RESUMED,
    }
    report = {"kills": 2, "frameworks": {"`fit`": KEPT, "hapi": broken, "Lightning": None}}
    rows = [line.strip("| ").split(" | ") for line in promises.table(report).splitlines()]
    cells = {row[0]: row[1:] for row in rows if len(row) == 4}
    assert {row[-1] for row in cells.values()} == {"not installed"}
    assert cells["SIGKILL inside an epoch, called again"][:2] == [
        "on from step 70, same bits",
        "on from step 60, other bits<br>the second call fails",
    ]
    assert cells["metrics, over a short last batch"][:2] == ["exact", "off: loss by 0.25"]
    assert cells["called again with another `batch_size`"][:2] == ["refused", "trains on with it"]
    assert cells["called again when finished"][0] == "trains nothing"


def test_lines_of_code_are_those_of_a_script_without_its_frame(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n\n\ndef build():\n    # a comment\n\n    return (\n        1\n    )\n\n\n"
        "class Digits:\n    pass\n\n\nclass Net:\n    x = 1\n\n\nprint(build())\n"
    )
    assert code_lines(script) == 6
    assert 20 < code_lines(FOLDER / "with_fit.py") < code_lines(FOLDER / "with_lightning.py")


@pytest.mark.slow
def test_fit_is_measured_to_keep_its_promises(tmp_path):
    trainings = Trainings(FRAMEWORKS["`fit`"], tmp_path / "fit")
    names = ("finished", "killed", "damaged")
    assert trainings.outcomes(kills=1, names=names) == {name: KEPT[name] for name in names}


def test_page_says_of_fit_what_is_measured():
    page = (ROOT / "docs/en/any-net.md").read_text().partition("<!-- benchmark promises -->")[2]
    rows = [line.strip("| ").split(" | ")[:2] for line in page.partition("\n\n")[0].splitlines()]
    promised = promises.table({"kills": 1, "frameworks": {"`fit`": KEPT}}).splitlines()
    expected = [line.strip("| ").split(" | ")[:2] for line in promised[2:]]
    assert [row for row in rows[3:] if row[0] != "lines of code"] == expected[1:-2]
    lines = code_lines(FOLDER / "with_fit.py")
    assert ["lines of code", str(lines)] in rows


def test_tables_of_a_translation_are_written_by_its_glossary(tmp_path):
    """Whole phrases only, the longest first, any figures; what the glossary lacks stays."""
    english, chinese = (tmp_path / language for language in ("en", "zh"))
    note = "Measured on: seconds, 1,000 of 2.5 steps, rows 3, 4."
    for folder, text in ((english, f"| seconds a step | 3 |\n\n{note}"), (chinese, "x")):
        folder.mkdir()
        (folder / "speed.md").write_text(f"a\n<!-- benchmark train -->\n{text}\n<!-- end -->\nb\n")
    (english / "other.md").write_text("<!-- benchmark data -->\ny\n<!-- end -->\n")
    figures = "', {} of {} steps, ': '，{1} 步中的 {0}，'\nrows {}.: 第 {} 行。\n"
    words = "seconds: 秒\nseconds a step: 每步秒数\nsec: 短\n"
    (chinese / "tables.yaml").write_text(words + figures)
    copy_tables(english, chinese)
    table = "| 每步秒数 | 3 |\n\nMeasured on: 秒，2.5 步中的 1,000，第 3、4 行。"
    written = f"a\n<!-- benchmark train -->\n{table}\n<!-- end -->\nb\n"
    assert (chinese / "speed.md").read_text() == written
    assert not (chinese / "other.md").exists()


def test_headlines_are_cells_of_their_tables():
    """Or ratios of cells, of one thread each; a rival that is not installed has no figure."""
    rows = [
        "| who trains | images a second | times Paddle's | times PyTorch's best |",
        "|---|---|---|---|",
        "| Paddle's layers, the bare loop, 1 thread | 1,100 (1,024 to 1,130) | 1.00 |  |",
        "| this package's training step, 1 thread | 12,892 (12,684 to 12,980) | 11.72 |  |",
        "| this package's training step, 2 threads | 23,322 (22,665 to 23,362) | 21.19 |  |",
        "| PyTorch eager, channels last, 1 thread | not installed |  |  |",
    ]
    assert headlines("train", "\n".join(rows)) == {"times-paddle": "11.72"}
    assert headlines("data", "\n".join(rows)) == {}

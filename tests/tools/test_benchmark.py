"""The benchmark's machinery, on small data; its figures are for people, not for tests."""

import json
import re

import baseline_tutorial
import benchmark
import numpy as np
import pytest
from benchmarks.commands import DATA, PARSED, WARM
from benchmarks.headlines import TORCH
from benchmarks.steps import STEP_1, TORCH_1
from benchmarks.timing import config_of, timed_training
from conftest import ROOT
from markdown_tables import marked, marked_tables
from synthetic_data import as_lists, tiny_splits

from paddle_mnist import MNIST, MnistDataset
from paddle_mnist.system.environment import usable_cpus


def test_data_benchmark_compares_ways_to_open_a_file_in_a_page(tool, tiny, tmp_path):
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- benchmark data -->\nold\n<!-- end -->\nb\n")
    options = ("--data", tiny, "--rounds", 2, "--json", "--docs", tmp_path)
    report = json.loads(tool("benchmark", "data", *options).stdout)
    assert report["rounds"] == 2 and list(report["samples"]) == list(DATA)
    for figures in report["samples"].values():
        assert all(len(values) == 2 and min(values) > 0 for values in figures.values())
    assert report["samples"][PARSED]["peak_mib"][0] < 100  # the child's, not this process's
    text, machine = page.read_text(), report["machine"]
    assert text.startswith("a\n<!-- benchmark data -->\n| images ready") and "old" not in text
    measured = f", commit {machine['commit']}, date {machine['date']}.\n<!-- end -->\nb\n"
    assert machine["cores"] == str(usable_cpus()) and text.endswith(measured)


def cell(table, title, column):
    """Return the number in a table of docs/en/speed.md."""
    text = marked_tables((ROOT / "docs/en/speed.md").read_text())[f"benchmark {table}"]
    head, _, *rows = (line.strip("| ").split(" | ") for line in text.splitlines() if "|" in line)
    (row,) = (row for row in rows if row[0] == title)
    return row[head.index(column)].split()[0].replace(",", "")


def quoted(mark):
    return marked(f"benchmark {mark}").search((ROOT / "README.md").read_text())["text"]


@pytest.mark.parametrize(
    ("mark", "table", "title", "column"),
    [
        ("faster-fast", "time-to-accuracy", WARM, "times faster"),
        ("faster-torch", "time-to-accuracy", TORCH, "times faster"),
        ("accuracy-fast", "time-to-accuracy", WARM, "eval accuracy"),
        ("times-paddle", "train", STEP_1, "times Paddle's"),
    ],
)
def test_readme_quotes_cells_of_the_pages(mark, table, title, column):
    assert quoted(mark) == cell(table, title, column)


def test_readme_quotes_the_ratio_of_two_cells():
    rates = [float(cell("train", title, "images a second")) for title in (STEP_1, TORCH_1)]
    assert float(quoted("times-torch")) == pytest.approx(rates[0] / rates[1], abs=0.006)


def test_timed_training_warns_of_nothing_and_times_each_step(tmp_path, lines):
    options = {"epochs": 1, "visualdl": False, "figures": False}
    seconds = timed_training(config_of("digits", **options, output=str(tmp_path / "run")))
    assert {len(values) for values in seconds.values()} == {38}
    assert sum(seconds["step"]) >= sum(seconds["forward"]) + sum(seconds["backward"])
    assert not any("has changed" in line for line in lines())


@pytest.mark.release
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", [name for name in benchmark.BENCHMARKS if name != "data"])
def test_quick_run_writes_each_table(tool, tmp_path, what):
    page = tmp_path / "page.md"
    page.write_text(f"<!-- benchmark {what} -->\nold\n<!-- end -->\n")
    tool("benchmark", what, "--quick", "--docs", tmp_path, timeout=1800)
    table = marked_tables(page.read_text())[f"benchmark {what}"]
    assert len(table.splitlines()) > 3 and "old" not in table.splitlines()


def test_tutorials_loop_trains_the_net_of_the_package(tool, tiny):
    output = tool("baseline_tutorial", "--data", tiny, "--epochs", 1).stdout
    assert re.search(r"^eval accuracy [01]\.\d{4}$", output, re.MULTILINE)
    shapes = {name: p.shape for name, p in baseline_tutorial.Net().named_parameters()}
    assert shapes == {name: p.shape for name, p in MNIST().named_parameters()}
    ((images, labels),) = baseline_tutorial.load_data(as_lists(tiny_splits()), "eval")()
    expected, _ = MnistDataset("eval", str(tiny)).batch(np.arange(70))
    assert np.allclose(images, expected, atol=1e-6) and labels.shape == (70, 1)

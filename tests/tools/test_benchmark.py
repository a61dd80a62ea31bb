"""The benchmark's machinery, on small data; its figures are for people, not for tests."""

import dataclasses
import functools
import json
import re
import statistics

import baseline_tutorial
import benchmark
import numpy as np
import pytest
from benchmarks import checkpoint, data, ladder, memory, sparse, time_to_accuracy, watch
from benchmarks.headlines import headlines
from benchmarks.promises import experiments as promises
from benchmarks.promises.experiments import FOLDER, FRAMEWORKS, Trainings, code_lines
from benchmarks.stale import CHANGED, code_hash, stale_tables, with_notes
from benchmarks.trainings import config_of
from benchmarks.turns import Benchmark, Report, Session, times_faster
from conftest import ROOT
from markdown_tables import copy_tables, marked_tables
from synthetic_data import as_lists, tiny_splits

from paddle_mnist import MNIST, MnistDataset
from paddle_mnist.commands import Parser
from paddle_mnist.commands._train_options import add_train_options, train_config
from paddle_mnist.system.machine import usable_cpus


def test_data_benchmark_compares_three_ways_to_open_a_file(tool, tiny):
    report = json.loads(tool("benchmark", "data", "--data", tiny, "--rounds", 2, "--json").stdout)
    assert report["rounds"] == 2 and list(report["samples"]) == list(data.KINDS)
    for figures in report["samples"].values():
        assert all(len(values) == 2 and min(values) > 0 for values in figures.values())


def test_peak_memory_is_that_of_the_child(tool, tiny):
    """However much this process, which starts it, has had."""
    assert len(b"x" * (300 * 2**20)) > 0
    report = json.loads(tool("benchmark", "data", "--data", tiny, "--rounds", 1, "--json").stdout)
    assert report["samples"][data.BASE]["peak_mib"][0] < 100


def session(tmp_path, **options):
    return Session("digits", **{"rounds": 3, "is_quick": False, "root": tmp_path, **options})


def test_kinds_take_turns_and_a_cell_is_their_median(tmp_path, capsys):
    """A turn that warms up does not count; a kind without its library is left out, and named."""
    turns = []

    def kinds(session):
        def quick():
            turns.append(("quick", session.number))
            return {"seconds": session.number}

        def slow():
            turns.append(("slow", session.number))
            return {"seconds": [4.0, 5.0]}

        def missing():
            raise ModuleNotFoundError("no torch")

        return {"quick": quick, "slow": slow, "missing": missing}

    one = Benchmark(
        "",
        kinds=kinds,
        head="kind",
        columns={"seconds": (".1f", "seconds"), "times faster": times_faster("slow")},
        note=lambda report: f"{report.rounds} rounds.",
        order=lambda kinds, number: kinds if number % 2 else kinds[::-1],
        warm_up=1,
    )
    report = one.measure(session(tmp_path))
    assert set(capsys.readouterr().err.splitlines()) == {"missing is left out: no torch"}
    assert turns == [
        (kind, number)
        for number in range(4)
        for kind in (("quick", "slow") if number % 2 else ("slow", "quick"))
    ]
    assert report.samples["quick"] == {"seconds": [1, 2, 3]}
    assert one.table(report).splitlines() == [
        "| kind | seconds | times faster |",
        "|---|---|---|",
        "| quick | 2.0 | 2.2 |",
        "| slow | 4.5 | 1.0 |",
        "| missing | not available |  |",
        "",
        "3 rounds.",
    ]
    quick = session(tmp_path, is_quick=True)
    assert one.measure(quick).samples["quick"] == {"seconds": [1]}
    shorter = dataclasses.replace(one, quick=["slow"]).measure(quick)
    assert shorter.samples == {"slow": {"seconds": [4.0, 5.0]}}


@pytest.mark.parametrize(
    ("one", "kinds", "first"),
    [
        (memory.BENCHMARK, [memory.BASE, *memory.KINDS], memory.COLD),
        (
            time_to_accuracy.BENCHMARK,
            [time_to_accuracy.BASE, "PyTorch", *time_to_accuracy.FAST.values()],
            time_to_accuracy.FAST["nothing cached"],
        ),
    ],
)
def test_what_finds_nothing_cached_has_the_first_turn(one, kinds, first):
    order = one.order(kinds, 1)
    assert order[0] == first and sorted(order) == sorted(kinds)


def test_options_of_each_kind_are_those_of_a_training():
    """Of kinds that no quick run measures, too."""
    for options in memory.KINDS.values():
        config_of("default", **options)
    parser = Parser()
    add_train_options(parser)
    for options in filter(None, ladder.STEPS.values()):
        train_config(parser.parse_args(["--recipe", *options]))


@pytest.mark.release
def test_all_runs_each_in_a_process_of_its_own(monkeypatch, capfd):
    monkeypatch.setattr(benchmark, "BENCHMARKS", {"data": Benchmark("")})  # measures nothing here
    assert benchmark.main(["--quick", "all", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["samples"][data.BASE]["seconds"][0] > 0


def test_all_ends_with_the_code_of_the_first_that_fails(monkeypatch, capfd):
    monkeypatch.setattr(benchmark, "BENCHMARKS", {"data": Benchmark(""), "infer": Benchmark("")})
    assert benchmark.main(["all", "--data", "digits"]) == 2
    assert "expected an AI Studio JSON file" in capfd.readouterr().err


def test_data_benchmark_needs_a_json_file(tool):
    assert "expected an AI Studio JSON file" in tool("benchmark", "data", expect=2).stderr


@pytest.mark.release
def test_checkpoint_benchmark_gives_the_two_shares(tool, tmp_path, monkeypatch):
    """Of digits an epoch has 19 steps."""
    plain = functools.partial(config_of, figures=False, visualdl=False)
    monkeypatch.setattr(checkpoint, "config_of", plain)
    page = tmp_path / "page.md"
    page.write_text("<!-- benchmark checkpoint -->\n<!-- end -->\n")
    options = ("--data", "digits", "--rounds", 1, "--json", "--docs", tmp_path)
    (samples,) = json.loads(tool("benchmark", "checkpoint", *options).stdout)["samples"].values()
    assert len(samples["save"]) == 4 and len(samples["step"]) == 11 * 19
    save, step = (statistics.median(samples[name]) for name in ("save", "step"))
    assert f"| after each epoch (19 steps) | {save / (save + 19 * step):.2%} |" in page.read_text()
    assert f"| every 50 steps | {save / (save + 50 * step):.2%} |" in page.read_text()


def test_table_is_written_into_the_readme(tool, tiny, tmp_path):
    for name in ("README.md", "README.zh-CN.md"):
        (tmp_path / name).write_text("a\n<!-- benchmark data -->\nold\n<!-- end -->\nb\n")
    tool("benchmark", "data", "--data", tiny, "--rounds", 1, "--docs", tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("a\n<!-- benchmark data -->\n| images ready") and "old" not in text
    assert text.endswith("<!-- end -->\nb\n")


@pytest.mark.release
def test_watch_benchmark_gives_a_share_for_each_kind(tool, monkeypatch):
    monkeypatch.setattr(watch, "BLOCK", 5)
    report = json.loads(
        tool("benchmark", "watch", "--data", "digits", "--rounds", 1, "--json").stdout
    )
    assert list(report["samples"]) == ["off", "removed again", "every 100 steps", "every step"]
    assert all(len(kind["seconds"]) == 40 for kind in report["samples"].values())


@pytest.mark.release
def test_infer_benchmark_compares_engines_that_agree(tool):
    report = json.loads(tool("benchmark", "infer", "--rounds", 1, "--json").stdout)
    engines = report["samples"]
    assert len(engines) == 4
    assert engines["Paddle, the net in Python"] and engines["Paddle Inference"]
    for seconds in filter(None, engines.values()):
        assert len(seconds["one"]) == 100 and max(seconds["difference"]) < 1e-3


@pytest.mark.release
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
        ("threads", "| batches of 64, 1 thread | "),
        ("rehearsal", "| the recipe `digits` | "),
        ("conv-blocks", "| LeNet-5's blocks, 1x28x28 | "),
        ("signal", "| median of 20 | "),
        ("pictures", "| plain | "),
        ("photographs", "| a sheet on a dark or patterned desk, in perspective | 10 | "),
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
        loops = report["samples"]["loops"].values()
        assert min(map(min, loops)) > 0
        assert sum(map(sum, loops)) < report["samples"]["step"]["step"][0]
    if what == "evaluate":
        assert "accuracies equal" in page.read_text()
    if what == "rehearsal":
        assert all(min(kind["steps"]) > 0 for kind in report["samples"].values())


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


@pytest.mark.release
def test_sparse_benchmark_compares_both_gradients(tool, monkeypatch):
    monkeypatch.setattr(sparse, "STEPS", 3)
    report = json.loads(tool("benchmark", "sparse", "--rounds", 1, "--json").stdout)
    assert set(report["samples"]) == {"2,000", "20,000", "200,000"}
    assert all(
        len(kind["dense"]) == len(kind["sparse"]) == 3 for kind in report["samples"].values()
    )


RESUMED = "resumed from step 70, same bits"
KEPT = {
    "lines of code": "20",
    "trained twice": "same bits",
    "SIGKILL inside an epoch, called again": RESUMED,
    "the same without dropout": RESUMED,
    "SIGTERM, called again": "exit code 143; resumed from step 73, same bits",
    "disk full in a save, called again": f"exit code 1; {RESUMED}",
    "a byte of the newest checkpoint changed": "says so, resumed from step 60, same bits",
    "called again with another `batch_size`": "refused",
    "called again when finished": "trains nothing",
    "metrics, over a short last batch": "exact",
    "metrics of two processes": "exact",
    "weights of two processes": "same bits",
    "code in a checkpoint's file": "is not run",
}


def test_promises_of_a_framework_that_is_not_installed_are_left_open():
    kept = {promise: [outcome] for promise, outcome in KEPT.items()}
    report = Report(1, {"`fit`": kept, "Lightning": {}}, {"kills": 2})
    rows = promises.BENCHMARK.rows(report)
    assert rows == {
        promise: {"`fit`": outcome, "Lightning": "not installed"}
        for promise, outcome in KEPT.items()
    }


def test_lines_of_code_are_those_of_a_script_without_its_frame(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n\n\ndef build():\n    # a comment\n\n    return (\n        1\n    )\n\n\n"
        "class Digits:\n    pass\n\n\nclass Net:\n    x = 1\n\n\nprint(build())\n"
    )
    assert code_lines(script) == 6
    assert 20 < code_lines(FOLDER / "with_fit.py") < code_lines(FOLDER / "with_lightning.py")


@pytest.mark.release
def test_fit_is_measured_to_keep_its_promises(tmp_path):
    trainings = Trainings(FRAMEWORKS["`fit`"], tmp_path / "fit")
    names = [
        "SIGKILL inside an epoch, called again",
        "a byte of the newest checkpoint changed",
        "called again when finished",
    ]
    assert trainings.outcomes(1, names) == {name: KEPT[name] for name in names}


def test_page_says_of_fit_what_is_measured():
    page = (ROOT / "docs/en/any-net.md").read_text()
    table = marked_tables(page)["benchmark promises"].partition("\n\n")[0]
    rows = dict(line.strip("| ").split(" | ")[:2] for line in table.splitlines()[2:])
    lines = code_lines(FOLDER / "with_fit.py")
    assert rows == {**KEPT, "lines of code": str(lines)}


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


MODULE = '"""Adds."""\n\n\ndef add(a, b):\n    """Return a sum."""\n    return a + b\n'


@pytest.mark.release
@pytest.mark.parametrize(
    ("changed", "is_stale"),
    [
        (MODULE, False),
        (MODULE.replace("Return a sum", "Give the sum"), False),
        (MODULE.replace('    """Return a sum."""\n', ""), False),
        (f"# A comment.\n{MODULE}", False),
        (MODULE.replace("a + b", "(a + b)"), False),
        (MODULE.replace("a + b", "b + a"), True),
        (MODULE.replace("return", "x ="), True),
    ],
)
def test_table_is_stale_once_code_has_changed_and_says_so(tmp_path, changed, is_stale):
    """In the language of its page, in one line, which is gone when it is measured again."""
    module, package = tmp_path / "tools/rivals.py", tmp_path / "paddle_mnist/nn"
    for folder in (module.parent, package):
        folder.mkdir(parents=True)
    (package / "sums.py").write_text(MODULE)
    page = tmp_path / "speed.md"

    def hashes():
        return {"train": code_hash(["paddle_mnist.nn", "rivals"], tmp_path)}

    def text(note=""):
        return (
            "a\n<!-- benchmark train -->\n| 1 |\n"
            f"<!-- measured at 0a1b, code {measured} -->\n{note}<!-- end -->\nb\n"
            "<!-- benchmark log -->\nline\n<!-- end -->\n"
        )

    module.write_text(MODULE)
    measured = hashes()["train"]
    page.write_text(text())
    for path in (module, package / "sums.py"):
        path.write_text(changed)
        stale = list(map(str, stale_tables([page], hashes())))
        assert stale == ([f"{page}: train, measured at 0a1b"] if is_stale else [])
        for _ in range(2):
            page.write_text(with_notes(page, hashes()))
            assert page.read_text() == text(f"{CHANGED}\n" if is_stale else "")
        path.write_text(MODULE)
    translation = tmp_path / "zh/speed.md"
    translation.parent.mkdir()
    (translation.parent / "tables.yaml").write_text(f"{CHANGED}: 变了。\n")
    translation.write_text(text())
    module.write_text(changed)
    assert with_notes(translation, hashes()) == text("变了。\n" if is_stale else "")


@pytest.mark.release
def test_table_without_a_record_is_stale(tmp_path):
    page = tmp_path / "speed.md"
    page.write_text("<!-- benchmark train -->\n| 1 |\n<!-- end -->\n")
    (stale,) = stale_tables([page], {"train": "0"})
    assert "there is no record" in stale.commit
    assert with_notes(page, {"train": "0"}) == page.read_text()


def test_columns_of_the_pages_are_those_of_their_benchmarks():
    tables: dict[str, str] = {}
    for page in (ROOT / "docs/en").glob("*.md"):
        tables.update(marked_tables(page.read_text()))
    for name, one in benchmark.BENCHMARKS.items():
        table = tables[f"benchmark {name}"]
        if one.columns:
            assert table.splitlines()[0] == f"| {' | '.join([one.head, *one.columns])} |"
        assert bool(re.search("^<!-- measured at ", table, re.MULTILINE)) == bool(one.code)


@pytest.mark.release
@pytest.mark.parametrize("language", ["en", "zh"])
def test_pages_say_which_tables_are_stale(language):
    """`python tools/benchmark.py stale --docs docs/en docs/zh` writes these lines."""
    codes = benchmark.codes()
    pages = sorted((ROOT / "docs" / language).glob("*.md"))
    assert [page.name for page in pages if with_notes(page, codes) != page.read_text()] == []


@pytest.mark.release
def test_stale_lists_tables_and_fails(tool, tmp_path):
    (tmp_path / "speed.md").write_text(
        "<!-- benchmark train -->\n| 1 |\n<!-- measured at 0a1b, code 0 -->\n<!-- end -->\n"
    )
    tool("benchmark", "stale", "--docs", tmp_path)
    assert f"-->\n{CHANGED}\n<!-- end" in (tmp_path / "speed.md").read_text()

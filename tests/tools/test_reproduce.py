"""Measurements of `tools/reproduce.py`, with one epoch each instead of several."""

import functools
import json
import re
import shlex
import shutil
from argparse import Namespace
from itertools import groupby

import markdown_tables
import numpy as np
import pytest
import reproduce
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from reproduction import accuracy, fingerprint, incremental, ladder, trainings
from reproduction import pretrained as pretraining
from reproduction.claims import Experiment
from reproduction.fingerprint import same
from reproduction.into_docs import INTO_DOCS, measure_for_docs
from reproduction.mistakes import mistakes
from reproduction.page import PAGES, Figures, all_figures, problems, stored_page, write_pages
from reproduction.significance import compare, holm
from reproduction.trainings import Training
from reproduction.workspace import Results, Workspace
from scipy import stats
from synthetic_data import tiny_splits, write_idx

from paddle_mnist import MNIST
from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.mnist import pretrained
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.config import read_recipe
from paddle_mnist.nn.ema import ExponentialMovingAverage


@pytest.mark.release
@pytest.mark.timeout(900)
def test_old_digits_are_forgotten_unless_they_are_replayed(tool, real_data, tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs/page.md"
    page.write_text("a\n<!-- reproduce forgetting -->\nold\n<!-- end -->\nb\n")
    other = tmp_path / "docs/folder/page.md"
    other.parent.mkdir()
    other.write_text(page.read_text())
    arguments = ("--only", "forgetting", "--data", real_data, "--docs", "docs", "--seeds", 1)
    tool("reproduce", *arguments, "--quick")
    report = json.loads((tmp_path / "docs/reproduction/forgetting.json").read_text())
    accuracy = report["accuracy"]
    (old, _), (lost, new), replayed = (
        [score for half in ("old", "new") for score in accuracy[name][half]]
        for name in ("old", "new", "new_replayed")
    )
    assert old >= 0.98 and new >= 0.97 and lost < 0.5 and min(replayed) >= 0.97
    assert page.read_text().startswith("a\n<!-- reproduce forgetting -->\n| trained on | acc")
    assert other.read_text() == page.read_text()
    again = tool("reproduce", *arguments, "--quick")
    assert again.stderr.count("this run is finished") == 3  # and is not trained again
    page.write_text("<!-- reproduce forgetting -->\n<!-- end -->\n")
    stored = tool("reproduce", *arguments, "--page-only")  # without any training
    assert "run is finished" not in stored.stderr and f"| {old:.2%} |" in page.read_text()
    assert (tmp_path / "docs/figures/forgetting.png").exists()


@pytest.mark.release
def test_what_a_continued_training_learns_is_stored(tiny, tmp_path, monkeypatch):
    """And a table is made of it, without training."""
    monkeypatch.setattr(incremental, "EPOCHS", {500: 2})
    page = tmp_path / "docs/page.md"
    page.parent.mkdir()
    page.write_text("<!-- reproduce continued -->\n<!-- end -->\n")
    args = Namespace(output=tmp_path / "out", docs=page.parent, seeds=1)
    measure_for_docs(args, "continued", open_data(str(tiny)))
    report = json.loads((page.parent / "reproduction/continued.json").read_text())
    measured = page.read_text()
    page.write_text("<!-- reproduce continued -->\n<!-- end -->\n")
    args.output = tmp_path / "other"
    measure_for_docs(args, "continued", None)
    assert page.read_text() == measured and not args.output.exists()
    (accuracy,) = report["accuracy"]["500 default alone"]
    assert f"| 500, 2 epochs | {incremental.KINDS['default']} | {accuracy:.1%} |" in measured


@pytest.mark.release
def test_collapse_is_written_into_the_page(tool, real_data, tmp_path):
    (tmp_path / "page.md").write_text("<!-- reproduce collapse -->\nold\n<!-- end -->\n")
    tool("reproduce", "--only", "collapse", "--data", real_data, "--docs", tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert "| 1 | fc | the root mean square of its outputs is" in page
    assert "The loss of step 1 is" in page


def test_only_the_last_layer_learns_flagged_ones(tiny, monkeypatch):
    monkeypatch.setattr(pretraining, "FLAGGED", 8)
    monkeypatch.setattr(pretraining, "STEPS", 4)
    model = MNIST(pretrained=True)
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    pretraining.learn_flagged_ones(model, open_data(str(tiny)), seed=1)
    after = {name: value.numpy() for name, value in model.state_dict().items()}
    changed = {name for name in after if not np.array_equal(after[name], before[name])}
    assert changed == {"fc.weight", "fc.bias"}


@pytest.mark.release
def test_figures_of_the_readmes_are_small_files_of_many_pixels(tool, tiny, tmp_path):
    tool("reproduce", "--only", "figures", "--data", tiny, "--docs", "docs")
    for name in ("curves", "feature_maps", "mistakes"):
        with Image.open(tmp_path / f"docs/figures/{name}.png") as picture:
            assert (picture.mode, picture.width) == ("P", 1680)


@pytest.fixture
def pages(tmp_path):
    """Copies of the pages and results, with a function that tells what is wrong with them."""
    for name in (name for names in PAGES for name in names if (ROOT / name).exists()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copyfile(ROOT / "docs/zh/tables.yaml", tmp_path / "docs/zh/tables.yaml")

    def broken(name, pattern, new, count=1):
        text = (tmp_path / name).read_text()
        changed, made = re.subn(pattern, new, text, count=count, flags=re.DOTALL)
        assert made == count
        (tmp_path / name).write_text(changed)
        found = list(problems(stored(), tmp_path))
        (tmp_path / name).write_text(text)
        return found

    return broken


@functools.cache
def stored():
    return stored_page(reproduce.CLAIMS, ROOT)


def test_pages_say_what_the_stored_results_give(tool):
    """In both languages: each number and table, and a predicate for each claim."""
    assert tool("reproduce", "--check").stdout.endswith("of the pages are as measured\n")
    text = reproduce.ROOT.joinpath("REPRODUCTION.md").read_text()
    sections = re.split(r'<a id="(\w+)"></a>', text.partition("## About")[0])[1:]
    assert sorted(sections[::2]) == sorted(one.id for one in reproduce.CLAIMS)
    for claim, section in zip(sections[::2], sections[1::2]):
        assert "<!-- holds " in section and f"<!-- reproduce table {claim} -->" in section


def test_pages_that_quote_an_accuracy_of_the_recipe_tutorial_show_the_measured_options():
    row = accuracy.CLAIMED.rows["adam"]
    options = " ".join(f"--{name} {value}" for name, value in row.options.items())
    for name in (name for names in PAGES[:3] for name in names):
        lines = (ROOT / name).read_text().splitlines()
        quoting = [line for line in lines if line.startswith("|") and "claimed.adam.mean" in line]
        assert all(options in line for line in quoting), name
    for name in PAGES[0]:
        assert f"`paddle-mnist train --recipe {row.recipe} {options}`" in (ROOT / name).read_text()


@pytest.mark.parametrize(
    ("name", "pattern", "new", "lines"),
    [
        (
            "REPRODUCTION.md",
            "98.47%",
            "98.48%",
            [r"N.md:\d+: reproduce claimed.both.mean:.2% is '98.48%'; expected '98.47%'"],
        ),
        (
            "docs/zh/train.md",
            "99.58%",
            "99.6%",
            [r"zh/train.md:\d+: reproduce best.mean:.2% is '99.6%'"],
        ),
        (
            "docs/zh/reproduction.md",
            r"(仿射变换，40 个 epoch \| 99.451% \| 0.06)0%",
            r"\g<1>1%",
            [r"reproduce table finalists is '\| 仿射变换，40 个 epoch \| 99.451% \| 0.061%"],
        ),
        (
            "docs/en/incremental.md",
            r"\| 0-4 \|[^\n]*\n",
            "",
            ["reproduce forgetting is", "expected"],
        ),
        (
            "REPRODUCTION.md",
            "claimed.both.high < 0.986 and",
            "claimed.both.high < 0.98 and",
            [
                r"claimed.both.high < 0.98 and .* does not hold: rewrite the sentence",
                r"REPRODUCTION.md has <!-- holds claimed.both.high < 0.98 .* 1 times, docs/zh",
                r"REPRODUCTION.md has <!-- holds claimed.both.high < 0.986 .* 0 times, docs/zh",
            ],
        ),
        (
            "README.md",
            "<!-- reproduce best.count -->10<!-- end -->",
            "10",
            ["README.md has <!-- reproduce best.count --> 0 times, README.zh-CN.md 1 times"],
        ),
        (
            "docs/zh/reproduction.md",
            "\\*\\*否。\\*\\* (?=<!-- reproduce race)|一个进程直接写入时，(?=<!-- reproduce race)",
            "\n",
            ["begins with a comment, so that Markdown takes the line for HTML"],
        ),
        (
            "REPRODUCTION.md",
            "<!-- holds l2.change.p >= 0.05",
            "<!-- holds l2.chance.p >= 0.05",
            ["l2.chance.p >= 0.05 has no figures"],
        ),
    ],
    ids=[
        "a number",
        "a number in Chinese",
        "a cell of a table in Chinese",
        "a row of a table",
        "a predicate",
        "a mark in one language only",
        "a line that Markdown takes for HTML",
        "a name that no figure has",
    ],
)
def test_what_the_results_do_not_give_is_a_line(pages, name, pattern, new, lines):
    found = pages(name, pattern, new)
    assert len(found) >= len(lines)
    for line in lines:
        assert any(re.search(line, one) for one in found), found


def test_check_exits_with_1_and_names_the_number(pages, tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "docs/reproduction", tmp_path / "docs/reproduction")
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    assert reproduce.main(["--check"]) == 0
    path = tmp_path / "docs/zh/reproduction.md"
    path.write_text(path.read_text().replace("-->98.47%<", "-->98.48%<", 1))
    capsys.readouterr()
    assert reproduce.main(["--check"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("claimed.both.mean:.2% is '98.48%'; expected '98.47%'")


def test_an_expression_that_cannot_be_read_is_named(pages):
    with pytest.raises(PaddleMnistError, match=r"best.mean:.2x%.* expected an expression over"):
        pages("README.md", "best.mean:.2%", "best.mean:.2x%")


def test_figures_are_written_into_the_pages(pages, tmp_path):
    """Also into a cell of a table; the page is then what it was."""
    before = {name: (tmp_path / name).read_bytes() for names in PAGES for name in names}
    for name in before:
        text = (tmp_path / name).read_text()
        text = re.sub(
            r"(<!-- reproduce [^\n]+? -->\n?).*?(<!-- end -->)", r"\1\2", text, flags=re.S
        )
        (tmp_path / name).write_text(text)
    write_pages(stored(), tmp_path)
    assert before == {name: (tmp_path / name).read_bytes() for name in before}
    (tmp_path / "README.md").write_text("<!-- reproduce new.mean:.2% -->old<!-- end -->\n")
    write_pages(stored(), tmp_path)
    assert "-->not measured<!--" in (tmp_path / "README.md").read_text()


def test_every_line_that_made_a_table_is_one_that_the_tools_take(tool):
    """Of the pages and the README; that each also makes its table is shown elsewhere."""
    pages = [ROOT / "README.md", *(ROOT / "docs/en").glob("*.md")]
    lines = {
        line
        for page in pages
        for line in re.findall(
            r"`python (tools/(?:benchmark|reproduce)\.py [^`]+)`", page.read_text()
        )
    }
    assert len(lines) >= 5
    helps = {name: tool(name, "--help").stdout for name in ("benchmark", "reproduce")}
    for line in lines:
        script, *arguments = shlex.split(line)
        name = script.removeprefix("tools/").removesuffix(".py")
        for word in arguments:
            assert word in helps[name] or not word.startswith("--"), line
        made = arguments[arguments.index("--only") + 1] if name == "reproduce" else arguments[0]
        assert f"{made}  " in helps[name], line
        assert any(f"<!-- {name} {made} -->" in page.read_text() for page in pages), line


def test_rows_of_a_table_may_be_short_but_not_long():
    columns = {"a": "", "b": "d", "c": ".1f"}
    short = markdown_tables.table(columns, [("x", 1), ("y", None, 2)])
    assert short.splitlines()[2:] == ["| x | 1 |  |", "| y |  | 2.0 |"]
    with pytest.raises(ValueError, match="'z' is beyond the last column"):
        markdown_tables.table(columns, [("x", 1, 2, "z")])


@pytest.mark.release
def test_rehearsal_of_a_table(tool, tiny, tmp_path):
    """One seed, one epoch; then all is there, and a change of the seeds trains what is missing."""
    arguments = ("--quick", "--only", "l2", "--data", tiny, "--output", "out")
    first = tool("reproduce", *arguments, "--seeds", 1)
    quick = tmp_path / "out/quick"
    stored = quick / "docs/reproduction/page.json"
    one_seed = json.loads(stored.read_text())["l2"]
    assert set(one_seed) == {"without", "with"}
    assert one_seed["with"]["seeds"] == [1]
    assert first.stderr.count("of 2: tutorial") == 2
    again = tool("reproduce", *arguments, "--jobs", 2)
    assert again.stderr.count("of 2: tutorial") == 2
    figures = json.loads(stored.read_text())
    rows = figures["l2"]
    assert rows["with"]["seeds"] == [1, 2]
    assert rows["with"]["eval_acc"][:1] == one_seed["with"]["eval_acc"]
    assert figures["ladder"] == {}
    english, chinese = ((quick / name).read_text() for name in PAGES[0])
    mean = 100 * sum(rows["with"]["eval_acc"]) / 2
    assert f"| with L2 1e-5 | {mean:.3f}% |" in english and f"| L2 1e-5 | {mean:.3f}% |" in chinese
    assert "<!-- reproduce l2.change.gap:+.4f -->not measured<!-- end -->" in english  # two seeds
    assert "| adam" not in english and "| Adam 0.003 | 尚未测量 |" in chinese
    kept = json.loads((quick / "docs/reproduction/trainings.json").read_text()).values()
    assert [len(one["wrong"]) for one in kept] == [round(70 - 70 * one["eval_acc"]) for one in kept]


def test_figures_are_those_of_the_code_that_is_there(real_data, tmp_path):
    """Stored results are of what the code computes now; the pages are written from them."""
    workspace = Workspace(open_data(str(real_data)), reproduce.RESULTS, tmp_path)
    reports = reproduce.all_reports(workspace)
    figures = (reproduce.RESULTS / "page.json").read_text()
    assert figures == all_figures(reproduce.CLAIMS, reports)
    for path in (ROOT / name for name in PAGES[0]):
        text = path.read_text()
        for picture in re.findall(r"\]\(([^)]+\.png)\)", text):
            assert (path.parent / picture).exists()
        main = json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])
        assert main["best"]["eval_acc"] == json.loads(figures)["best"]["eval_acc"]


def as_read(name):
    """A page without its comments and its JSON."""
    text = (ROOT / name).read_text().partition("```json")[0]
    return re.sub(r"<!-- .*? -->", "", text)


# Terms that a Chinese page has in English, too.
TERMS = """AMD AVX Adagrad Adam CPU Dropout EPYC English Fluid Holm Intel Kaiming MNIST MindSpore
ModelArts Momentum Nesterov NumPy PolynomialDecay Processor ReLU SAM SGD SHA SIGKILL Smith
Welch Xavier Xeon conv cycle digits epoch mixup numpy one paddle rotate scale shear shift"""


def test_chinese_page_is_in_chinese():
    """But for code, links and proper names, that is: what has no translation is found here."""
    text = as_read("docs/zh/reproduction.md")
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|<a id=[^>]*>", "", text)
    assert set(re.findall(r"[A-Za-z]{3,}", text)) <= set(TERMS.split())


def test_both_languages_have_the_same_tables():
    """And the same code: the numbers are those of one measurement."""
    english, chinese = map(as_read, PAGES[0])
    code = [set(re.findall(r"`[^`\n]+`", text)) for text in (english, chinese)]
    assert code[0] == code[1]
    numbers = [
        [sorted(re.findall(r"\d+(?:\.\d+)?", row)) for row in re.findall(r"^\|.*", text, re.M)]
        for text in (english, chinese)
    ]
    assert numbers[0] == numbers[1] and len(numbers[0]) > 100
    assert re.findall(r'<a id="(\w+)">', english) == re.findall(r'<a id="(\w+)">', chinese)
    for text in (english, chinese):
        assert set(re.findall(r"\]\(#(\w+)\)", text)) <= set(re.findall(r'<a id="(\w+)">', text))


# The claims whose sentences hold wherever they are tried.
SHOWN = ("names", "unstepped", "partly", "globals", "resumed", "pattern")


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_rehearsal_of_the_whole_page(tool, tiny, tmp_path):
    """From IDX files; every claim has its figures, and what is there is not measured again."""
    write_idx(tmp_path / "idx", tiny_splits({"train": 640, "valid": 128, "eval": 70}))
    arguments = ("--quick", "--seeds", 1, "--data", tmp_path / "idx")
    first = tool("reproduce", *arguments)
    root = tmp_path / "work/output/reproduce/quick"
    quick = root / "docs/reproduction"
    figures = json.loads((quick / "page.json").read_text())
    assert [one.id for one in reproduce.CLAIMS] == list(figures)
    for one in reproduce.CLAIMS:
        report = figures[one.id]
        if isinstance(one, Experiment):
            report = json.loads((quick / f"{one.id}.json").read_text())["report"]
            assert one.is_complete(report), one.id
        else:
            assert report, one.id
    page = stored_page(reproduce.CLAIMS, root)
    for name in SHOWN:
        assert all(page.value(one) for one in predicates_of(name)), name
    made = [quick / f"{name}.json" for name in SHOWN]
    before = [path.stat().st_mtime_ns for path in made]
    again = tool("reproduce", *arguments)
    assert again.stdout == first.stdout and " of " not in again.stderr
    assert [path.stat().st_mtime_ns for path in made] == before


def test_figures_are_not_replaced_by_those_that_know_less(tmp_path):
    path = tmp_path / "page.json"
    reproduce.replace(path, '{"a": {"b": 1}, "c": {}}')
    with pytest.raises(PaddleMnistError, match="no result of a; measure"):
        reproduce.replace(path, '{"a": {}, "c": {"d": 2}}')
    assert '"b": 1' in path.read_text()
    reproduce.replace(path, '{"a": {"b": 2}, "c": {"d": 2}}')
    assert '"b": 2' in path.read_text()
    path.unlink()
    more, less = '{"a": {"x": {"seeds": [1, 2]}}, "b": {"seeds": [1]}}', '"b": {"seeds": [1]}'
    reproduce.replace(path, more)
    for rows in ('{"x": {"seeds": [2]}}', '{"y": {"seeds": [1, 2]}}'):
        with pytest.raises(PaddleMnistError, match="no result of a x seed 1"):
            reproduce.replace(path, f'{{"a": {rows}, {less}}}')
    with pytest.raises(PaddleMnistError, match="no result of b seed 1; measure"):
        reproduce.replace(path, more.replace('"seeds": [1]', '"seeds": [2]'))
    reproduce.replace(path, more.replace("[1, 2]", "[1, 2, 3]"))


def test_every_claim_is_in_the_help():
    named = re.findall(r"^(\w+) {2,}\S", reproduce.description(), re.MULTILINE)
    assert sorted(named) == sorted([*INTO_DOCS, *(one.id for one in reproduce.CLAIMS)])


def test_the_recipe_best_is_what_was_chosen(real_data):
    """Of the rows of the search's last round: that of the fewest errors."""
    trainings = json.loads((reproduce.RESULTS / "candidates.json").read_text())
    longest = {name: one for name, one in trainings.items() if " epochs=60 " in name}
    rows = {
        row: [one["valid_acc"] for _, one in seeds]
        for row, seeds in groupby(longest.items(), lambda item: item[0].rpartition(" seed=")[0])
    }
    assert {len(scores) for scores in rows.values()} == {4} and len(rows) == 5
    recipe, *options = max(rows, key=lambda row: sum(rows[row])).split()
    options = dict(option.split("=", 1) for option in options)
    chosen = Training(recipe, 1, (("augment", options["augment"]), ("epochs", 60)))
    assert options.keys() == {"augment", "epochs"}
    data = open_data(str(real_data))
    assert chosen.settings(data) == Training("best", 1).settings(data)


def test_an_unknown_claim_is_one_line(tool):
    done = tool("reproduce", "--only", "l2,calibrations", expect=2)
    assert (
        done.stderr == "error: --only: unknown name 'calibrations'; did you mean 'calibration'?\n"
    )


def test_images_that_most_trainings_read_wrongly(tiny):
    labels = tiny_splits()["eval"][1]
    other = int((labels[3] + 1) % 10)
    wrong = [[[3, other], [5, other]], [[3, other]], [[3, other], [9, other]]]
    result = mistakes(open_data(str(tiny)), [{"wrong": one} for one in wrong])
    image = {"image": 3, "label": int(labels[3]), "answers": {str(other): 3}}
    image |= {"agreed": True, "by_eye": "not looked at"}
    assert result == {"seeds": 3, "images": [image]}
    wrong[0][0][1] = (other + 1) % 10
    (one,) = mistakes(open_data(str(tiny)), [{"wrong": one} for one in wrong])["images"]
    assert not one["agreed"] and one["answers"][str(other)] == 2
    wrong.append([])
    (one,) = mistakes(open_data(str(tiny)), [{"wrong": one} for one in wrong])["images"]
    assert one["answers"][str(labels[3])] == 1


def test_results_are_those_of_their_settings_images_and_code(tmp_path, monkeypatch, tiny):
    digits, other = open_data("digits"), open_data(str(tiny))
    results, one = Results(tmp_path / "r.json"), Training("tutorial", 1, (("ema", 0.9),))
    results.put(one, digits, {"eval_acc": 0.5})
    stored = Results(tmp_path / "r.json")
    assert stored.get(one, digits)["eval_acc"] == 0.5
    assert not stored.get(Training("tutorial", 2, (("ema", 0.9),)), digits)
    assert not stored.get(one, other)
    options = tuple(read_recipe("tutorial").items())
    assert stored.get(Training("default", 1, (*options, ("ema", 0.9))), digits)  # the same, renamed
    monkeypatch.setattr(trainings, "read_recipe", lambda name: {"epochs": 7})
    trainings._deciding.cache_clear()
    assert not stored.get(one, digits)
    monkeypatch.undo()
    trainings._deciding.cache_clear()
    assert stored.get(one, digits)
    monkeypatch.setattr(ExponentialMovingAverage, "update", lambda *args: None)
    assert stored.get(one, digits)  # as long as nobody looks again
    fingerprint._losses.cache_clear()
    assert not stored.get(one, digits)
    fingerprint._losses.cache_clear()


@pytest.mark.parametrize(
    ("step", "off", "alike"),
    [(0, 5e-5, True), (0, 5e-4, False), (29, 1e-3, True), (29, 0.05, False)],
)
def test_rounding_may_grow_over_the_steps(step, off, alike):
    losses = [2.3 - 0.05 * step for step in range(30)]
    other = losses.copy()
    other[step] *= 1 + off
    assert same(losses, other) == alike
    assert not same(losses, losses[:-1])


def test_what_is_shown_is_of_its_settings_and_images(tmp_path, tiny):
    digits, other = (
        Workspace(open_data(str(data)), tmp_path, tmp_path) for data in ("digits", tiny)
    )
    one, changed = (
        Experiment("id", measure=lambda *_: {"a": 1}, tabulate=str, settings=settings)
        for settings in ({"a": 1}, {"a": 2})
    )
    one.measure_missing(digits)
    assert one.report(digits, {}) == {"a": 1}
    assert one.report(other, {}) == changed.report(digits, {}) == {}


def test_what_is_shown_is_of_what_its_function_computes(tmp_path):
    """Not of its text: another function that gives the same has the same results."""
    digits = Workspace(open_data("digits"), tmp_path, tmp_path)

    def measuring(rate, loss, seconds):
        def measure(data, output, scale):
            return {"rate": rate, "loss": loss, "seconds": seconds}

        def repeatable(report):
            return {**report, "seconds": None}

        return Experiment("id", measure=measure, tabulate=str, repeatable=repeatable)

    measuring("0.1", 2.3, 1).measure_missing(digits)
    for seconds in (1, 2):  # which no two runs have in common
        assert measuring("0.1", 2.3, seconds).report(digits, {})["seconds"] == 1
    assert measuring("0.1", 2.3000001, 1).report(digits, {})  # another processor's rounding
    assert not measuring("0.1", 2.31, 1).report(digits, {})
    assert not measuring("0.2", 2.3, 1).report(digits, {})


def seconds(**ways):
    return {
        way: {"seconds": found, "samples": 1, "steps": 1, "eval_acc": 0.9}
        for way, found in ways.items()
    }


def losses(*pairs):
    return {
        name: {"eval_loss": [e] * 3, "train_loss": [t, t, t + 0.001], "eval_acc": [0.98] * 3}
        for name, (e, t) in zip(("without", "with"), pairs)
    }


def seeds(split="eval", **rows):
    return {
        name: {f"{split}_acc": found, "seeds": list(range(1, len(found) + 1))}
        for name, found in rows.items()
    }


def valid(**rows):
    return seeds("valid", **rows)


LOADED = {"trained": [0.94], "loaded": [0.1], "untouched": True, "warnings": ["w"]}
SAME = {"sha256": ["a", "a"], "losses_differ_by": 0, "losses_compared": 3}
OTHER = {**SAME, "sha256": ["a", "b"]}


def looked(*broken):
    ways = [{"looks": 9, "broken": count, "readable_after": True} for count in broken]
    return dict(zip(("everybody", "one", "here"), ways))


def resumed(*ways):
    return dict(zip(("plain", "killed", "shuffled"), ways))


def calibrated(ece, low, high):
    ways = [{"ece": ece, "temperature": 1}, {"ece": 0.0018, "temperature": 0.9}]
    return {
        "ways": dict(zip(("as trained", "with a temperature"), ways)),
        "ece_by_chance": [0.001, 0.002],
        "temperature": [low, high],
    }


EPOCHS = {"by_mtime": "mnist_epoch0", "newest": "mnist_epoch1"}
KEPT = {"steps": 9, "saved": 2, "looks": 5, "least": 1, **EPOCHS}


LUCKY = [0.981, 0.980, 0.981, 0.980, 0.9858]


@pytest.mark.parametrize(
    ("claim", "report", "holds"),
    [
        ("claimed", seeds(verbatim=LUCKY, adam=[0.98, 0.98]), True),
        ("claimed", seeds(verbatim=LUCKY, adam=LUCKY), True),
        ("claimed", seeds(verbatim=[0.991, 0.992], adam=[0.991, 0.992]), False),
        ("claimed", seeds(verbatim=[0.971, 0.989], adam=[0.971, 0.986]), False),
        ("claimed", seeds(verbatim=[0.971, 0.972], adam=[0.971, 0.972]), False),
        ("everyone", seconds(one=[2, 3], every=[4, 5], share=[1, 1]), True),
        ("everyone", seconds(one=[2, 3], every=[1, 1], share=[1, 1]), False),
        ("everyone", seconds(one=[2, 3], every=[1, 4], share=[1, 1]), False),
        ("names", {"by_name": "a", "newest": "a"}, False),
        ("race", looked(3, 6, 0), True),
        ("race", looked(0, 0, 0), False),
        ("race", looked(3, 6, 1), False),
        ("unstepped", {"never, as in the document": 0.01, "after each batch": 0.001}, True),
        ("unstepped", {"never, as in the document": 0.001, "after each batch": 0.001}, False),
        ("averages", {"counted": 0.5, "mean_of_means": {"100": 0.5, "3": 0.51}}, True),
        ("averages", {"counted": 0.5, "mean_of_means": {"100": 0.5}}, False),
        ("averages", {"counted": 0.5, "mean_of_means": {"100": 0.4}}, False),
        ("calibration", calibrated(0.0015, 0.9, 1.1), True),
        ("calibration", calibrated(0.003, 0.9, 1.1), False),
        ("calibration", calibrated(0.0019, 0.9, 1.1), False),
        ("calibration", calibrated(0.0015, 0.8, 0.9), False),
        ("resumed", resumed(SAME, SAME, SAME), True),
        ("resumed", resumed(SAME, SAME, OTHER), False),
        ("resumed", resumed({**SAME, "losses_differ_by": 1e-9}, SAME, SAME), False),
        ("pattern", KEPT, True),
        ("pattern", {**KEPT, "least": 0}, False),
        ("pattern", {**KEPT, "saved": 9}, False),
        ("pattern", {**KEPT, "newest": "mnist_epoch0"}, False),
        ("partly", {**LOADED, "refused": "r"}, True),
        ("partly", LOADED, False),
        ("partly", {**LOADED, "refused": "r", "untouched": False}, False),
        ("l2", losses((0.05, 0.04), (0.05, 0.04)), True),
        ("l2", losses((0.05, 0.04), (0.05, 0.045)), False),
        ("l2", losses((0.05, 0.045), (0.05, 0.04)), False),
        ("rate", seeds(constant=[0.981, 0.982, 0.983], stepped=[0.991, 0.993, 0.992]), True),
        ("rate", seeds(constant=[0.981, 0.982, 0.983], stepped=[0.981, 0.983, 0.982]), False),
        ("rate", seeds(constant=[0.991, 0.993, 0.992], stepped=[0.981, 0.982, 0.983]), False),
        ("half", seeds(short=[0.98, 0.981, 0.982], long=[0.98, 0.982, 0.981]), True),
        ("half", seeds(short=[0.98, 0.981, 0.982], long=[0.99, 0.991, 0.992]), False),
        ("best", seeds(best=[0.9955] * 10), True),
        ("best", seeds(best=[0.9954] * 10), False),
        ("best", seeds(best=[0.999, 0.999, 0.98]), False),
        (
            "leaders",
            valid(affine=[0, 0.98, 0.981], dropout=[1, 0.98, 0.981], adam=[1, 0.981, 0.98]),
            True,
        ),
        (
            "leaders",
            valid(affine=[0, 0.98, 0.981], dropout=[1, 0.98, 0.981], adam=[1, 0.97, 0.971]),
            False,
        ),
        ("default", seeds(default=[0.991, 0.993]), True),
        ("default", seeds(default=[0.9909, 0.993]), False),
    ],
)
def test_predicates_of_the_page_follow_the_figures(claim, report, holds):
    claims = {one.id: one for one in reproduce.CLAIMS}
    found = json.loads(json.dumps(claims[claim].findings(report)), object_hook=Figures)
    page = stored()._replace(names={**stored().names, claim: found})
    assert all(page.value(one) for one in predicates_of(claim)) == holds


def predicates_of(claim):
    """The predicates of a claim's section."""
    text = (ROOT / "REPRODUCTION.md").read_text()
    section = text.partition(f'<a id="{claim}"></a>')[2].partition("<a id=")[0]
    return re.findall("<!-- holds (.*?) -->", section)


def test_a_step_of_the_ladder_is_compared_with_chance():
    """By the spread of the row with several seeds, and corrected for all the steps."""
    rows = {"affine": [0.99, 0.991, 0.992], "more": [0.993], "less": [0.97], "most": [0.9925]}
    found = ladder.compare_with_affine(valid(**rows))
    assert (found["base"], found["sd"]) == (0.99, pytest.approx(0.001))
    assert list(found["gaps"]) == ["more", "most", "less"] and found["different"] == ["less"]
    assert found["gaps"]["less"]["p"] == pytest.approx(3 * 0.00493, rel=0.01)  # t = 14.1, 2 degrees
    rows["less"] = [0.98]  # significant alone, but not among three: p = 0.0194
    assert ladder.compare_with_affine(valid(**rows))["different"] == []
    assert ladder.compare_with_affine(valid(affine=[0.99], more=[0.5]))["different"] == []


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # Wikipedia's example
        ([0.04], [0.04]),
        ([0.5, 0.9], [1, 1]),
        ([], []),
    ],
)
def test_p_values_of_several_comparisons_are_corrected(p_values, adjusted):
    assert holm(p_values) == pytest.approx(adjusted)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).map(sorted))
def test_corrected_p_values_keep_their_order(p_values):
    """And are neither smaller than before nor larger than by Bonferroni's method."""
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted))
    assert adjusted == sorted(adjusted) and adjusted[0] == min(1, len(p_values) * p_values[0])


def test_bands_of_a_figure_are_the_range_of_the_seeds(tiny):
    """Without the ends of epochs, whose losses are means of fewer steps."""
    curves = [[[250, 3], [313, 9], [500, 1]], [[250, 1], [313, 9], [500, 2]]]
    row = {"curves": curves, "eval_acc": [0.98, 0.985]}
    figure = accuracy.RATE.draw({"constant": row, "stepped": row}, open_data(str(tiny)))
    losses, seeds_of_rows = figure.axes
    line, band = losses.lines[0], losses.collections[0].get_paths()[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([250, 500], [2, 1.5])
    assert {tuple(point) for point in band.vertices} == {(250, 1), (250, 3), (500, 1), (500, 2)}
    assert list(seeds_of_rows.lines[0].get_ydata()) == [0.98, 0.985]
    assert figure.get_suptitle().endswith("by +0.00 percentage points")


def test_optimizers_are_compared_in_pairs():
    """A difference that is significant alone may not be among all pairs."""
    rows = {
        "sgd": [0.96, 0.961, 0.962],
        "adam": [0.98, 0.981, 0.982],
        "momentum": [0.983, 0.984, 0.985],
    }
    gaps = compare(rows, [("sgd", "adam"), ("adam", "momentum")])
    alone = compare(rows, [("adam", "momentum")])
    assert alone["adam", "momentum"]["p"] == pytest.approx(0.0213, abs=1e-4)
    assert gaps["adam", "momentum"]["p"] == alone["adam", "momentum"]["p"]  # the largest of two
    assert gaps["sgd", "adam"]["p"] == pytest.approx(2 * 1.7e-5, rel=0.1)
    found = accuracy.compare_optimizers(seeds(**rows))
    assert found["order"] == ["momentum", "adam", "sgd"] and found["pairs"] == 3
    assert found["different"] == ["momentum adam", "momentum sgd", "adam sgd"]
    alike = {name: [0.98, 0.981, 0.982] for name in rows}
    assert accuracy.compare_optimizers(seeds(**alike))["different"] == []


def test_what_is_not_significant_is_said():
    close, far = [0.98, 0.981, 0.982], [0.90, 0.901, 0.902]
    found = ladder.choose(valid(a=close, b=[0.981, 0.982, 0.983], c=far))
    assert (found["winner"], found["alike"]) == ("b", ["a"])
    fewest = valid(**{"1": far, "2": [0.985, 0.986, 0.986], "3": [0.986, 0.986, 0.987]})
    assert ladder.find_fewest(fewest) == {"fewest": "3", "alike": ["2"]}
    assert ladder.find_fewest(valid(a=[0.97, 0.98, 0.98])) == {"fewest": None, "alike": []}


def test_a_choice_is_not_undone_by_seeds_that_came_after_it():
    rows = valid(a=[0.98, 0.981, 0.982], b=[0.99, 0.991, 0.992, 0.5, 0.5])
    found = ladder.choose(rows)
    assert found["winner"] == "b" and found["winning_mean"] == pytest.approx(0.991)
    assert ladder.FINALISTS.findings(rows)["b"]["mean"] < 0.8


def test_a_claim_is_complete_with_all_its_seeds():
    rows = {name: {"seeds": [1, 2], "eval_acc": [0.9, 0.9]} for name in accuracy.L2.rows}
    assert not accuracy.L2.is_complete(rows) and not accuracy.L2.is_complete({})
    assert accuracy.L2.is_complete({name: {"seeds": [*range(1, 7)]} for name in rows})


def test_figures_of_the_search_are_those_of_its_last_round():
    """No code computes it anew: what the page says of it is stored beside the rounds."""
    found = json.loads((reproduce.RESULTS / "page.json").read_text())["candidates"]
    last = found["rounds"][-1]["rows"]
    means = {name: np.mean(row["errors"]) for name, row in last.items()}
    assert min(means, key=means.get) == found["winner"]
    assert (means[found["winner"]], means["affine"]) == (found["errors"], found["base"])
    for key, name in (("errors", "error_p"), ("losses", "loss_p")):
        test = stats.ttest_rel(last["affine"][key], last[found["winner"]][key])
        gaps = len(last) - 1  # Holm's correction of the smallest p-value
        assert found[name] == pytest.approx(gaps * test.pvalue, rel=1e-5)


def test_digits_are_not_taken_for_mnist(tool):
    assert "expected MNIST" in tool("reproduce", "--data", "digits", expect=3).stderr


def test_weights_of_the_package_are_not_replaced_by_a_rehearsals(tool, tiny):
    before = pretrained.WEIGHTS.read_bytes()
    for arguments in (["--data", "digits", "--quick"], ["--data", tiny]):
        done = tool("reproduce", "--only", "pretrained", *arguments, expect=3)
        assert "the package's weights are of all of MNIST" in done.stderr
    assert pretrained.WEIGHTS.read_bytes() == before


def test_results_of_several_processes_are_all_kept(tmp_path):
    digits = open_data("digits")
    one, other = (Results(tmp_path / "r.json") for _ in range(2))
    trainings = [Training("digits", seed) for seed in (1, 2)]
    for results, training in zip((one, other), trainings):
        results.put(training, digits, {"eval_acc": 0.5})
    assert all(Results(tmp_path / "r.json").get(training, digits) for training in trainings)


@pytest.mark.release
def test_what_was_begun_as_something_else_is_not_gone_on_with(tiny, tmp_path):
    data = open_data(str(tiny))
    training = Training("default", 1, (("epochs", 1), ("train_limit", 64)))
    workspace = Workspace(data, tmp_path, tmp_path, jobs=2)
    training.run(workspace)
    mark, begun = tmp_path / training.folder / "mark", tmp_path / f"{training.folder}.json"
    mark.touch()
    training.run(workspace)
    assert mark.exists()
    begun.write_text(json.dumps({**json.loads(begun.read_text()), "settings": "of another length"}))
    training.run(workspace)
    assert not mark.exists()

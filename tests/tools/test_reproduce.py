"""Measurements of `tools/reproduce.py`, with one epoch each instead of three."""

import json
import re
import shlex
from argparse import Namespace
from string import Formatter

import markdown_tables
import pytest
import reproduce
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from reproduction import accuracy, continued, fingerprint, recipes, search, trainings
from reproduction.comparison import Comparison
from reproduction.experiment import Experiment
from reproduction.fingerprint import same
from reproduction.ladder import choose, compare_with_affine
from reproduction.mistakes import mistakes
from reproduction.page import all_figures, findings
from reproduction.resuming import PLAIN
from reproduction.significance import compare, holm
from reproduction.texts import named, templates
from reproduction.trainings import Training
from reproduction.workspace import Results, Scale, Workspace
from synthetic_data import tiny_splits, write_idx

from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.mnist import pretrained
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.config import read_recipe
from paddle_mnist.nn.ema import ExponentialMovingAverage


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_old_digits_are_forgotten_unless_they_are_replayed(tool, real_data, tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs/page.md"
    page.write_text("a\n<!-- reproduce forgetting -->\nold\n<!-- end -->\nb\n")
    other = tmp_path / "docs/folder/page.md"
    other.parent.mkdir()
    other.write_text(page.read_text())
    arguments = ("--only", "forgetting", "--data", real_data, "--docs", "docs")
    done = tool("reproduce", *arguments, "--epochs", 1, "--seeds", 1, "--json")
    accuracy = json.loads(done.stdout)["accuracy"]
    (old, _), (lost, new), replayed = (
        [score for half in ("old", "new") for score in accuracy[name][half]]
        for name in ("old", "new", "new_replayed")
    )
    assert old >= 0.98 and new >= 0.97 and lost < 0.5 and min(replayed) >= 0.97
    assert page.read_text().startswith("a\n<!-- reproduce forgetting -->\n| trained on | acc")
    assert other.read_text() == page.read_text()
    again = tool("reproduce", *arguments, "--epochs", 1, "--seeds", 1)
    assert again.stderr.count("this run is finished") == 3  # and is not trained again
    page.write_text("<!-- reproduce forgetting -->\n<!-- end -->\n")
    stored = tool("reproduce", *arguments, "--page-only")  # without any training
    assert "run is finished" not in stored.stderr and f"| {old:.2%} |" in page.read_text()
    assert (tmp_path / "docs/figures/forgetting.png").exists()


@pytest.mark.slow
def test_what_a_continued_training_learns_is_stored(tiny, tmp_path, monkeypatch):
    """And a table is made of it, without training."""
    monkeypatch.setattr(continued, "EPOCHS", {500: 2})
    docs = tmp_path / "docs"
    args = Namespace(output=tmp_path / "out", docs=docs, seeds=1, page_only=False)
    report = continued.measure(open_data(str(tiny)), args)
    again = Namespace(**{**vars(args), "output": tmp_path / "other", "page_only": True})
    assert continued.measure(open_data(str(tiny)), again) == report
    assert not (tmp_path / "other").exists()
    (accuracy,) = report["accuracy"]["500 default alone"]
    row = f"| 500, 2 epochs | {continued.KINDS['default']} | {accuracy:.1%} |"
    assert row in continued.tabulate(report)


def test_collapse_is_written_into_the_page(tool, real_data, tmp_path):
    (tmp_path / "page.md").write_text("<!-- reproduce collapse -->\nold\n<!-- end -->\n")
    tool("reproduce", "--only", "collapse", "--data", real_data, "--docs", tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert "| 1 | fc | the root mean square of its outputs is" in page
    assert "The loss of step 1 is" in page


@pytest.mark.slow
def test_figures_of_the_readmes_are_small_files_of_many_pixels(tool, tiny, tmp_path):
    tool("reproduce", "--only", "figures", "--data", tiny, "--docs", "docs")
    for name in ("curves", "feature_maps", "mistakes"):
        with Image.open(tmp_path / f"docs/figures/{name}.png") as picture:
            assert (picture.mode, picture.width) == ("P", 1680)


def test_figures_are_written_into_the_pages(tmp_path, monkeypatch):
    """Into a cell of a table; what has no result yet is left as it is."""
    cells = "| <!-- reproduce best -->old<!-- end --> | <!-- reproduce default -->x<!-- end --> |\n"
    for page in recipes.FIGURES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(cells)
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    reports = {claim: {} for claim, _ in recipes.MEASURED.values()}
    reproduce.write_recipes({**reports, "best": seeds(best=[0.995, 0.9942])})
    english, chinese = ": mean 99.46%, worst 99.42%", "：平均 99.46%，最差 99.42%"
    for page, text in (
        ("README.md", f"[2 seeds](REPRODUCTION.md#best){english}"),
        ("README.zh-CN.md", f"[2 个随机种子](docs/zh/reproduction.md#best){chinese}"),
        ("docs/en/train.md", f"[2 seeds](../../REPRODUCTION.md#best){english}"),
        ("docs/zh/train.md", f"[2 个随机种子](reproduction.md#best){chinese}"),
    ):
        assert (tmp_path / page).read_text() == cells.replace("old", text)


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


def test_rehearsal_of_a_table(tool, tiny, tmp_path):
    """One seed, one epoch; then all is there, and a change of the seeds trains what is missing."""
    arguments = ("--quick", "--only", "l2", "--data", tiny, "--output", "out", "--json")
    first = tool("reproduce", *arguments, "--seeds", 1)
    one_seed = json.loads(first.stdout)["l2"]
    assert set(one_seed) == {"without", "with"}
    assert one_seed["with"]["seeds"] == [1]
    assert first.stderr.count("of 2: tutorial") == 2
    again = tool("reproduce", *arguments, "--jobs", 2)
    assert again.stderr.count("of 2: tutorial") == 2
    rows = json.loads(again.stdout)["l2"]
    assert rows["with"]["seeds"] == [1, 2]
    assert rows["with"]["eval_acc"][:1] == one_seed["with"]["eval_acc"]
    english, chinese = (
        (tmp_path / f"out/quick/{name}").read_text()
        for name in ("REPRODUCTION.md", "REPRODUCTION.zh-CN.md")
    )
    figures = json.loads((tmp_path / "out/quick/page.json").read_text())
    assert figures["l2"] == rows and figures["ladder"] == {}
    row = re.compile(r"^\| \[.*?\]\(#(\w+)\) \| .*? ?\| (.*) \|$", re.MULTILINE)
    ids = [claim.id for claim in reproduce.CLAIMS]
    for page, progress in (
        (english, "No verdict yet: 4 of 10 trainings are done"),
        (chinese, "尚无结论：10 次训练中已完成 4 次"),
    ):
        answers = dict(row.findall(page))
        assert sorted(answers) == sorted(ids) == sorted(re.findall(r'<a id="(\w+)"></a>', page))
        assert answers["l2"] == progress and page.count(progress) == 2
    mean = 100 * sum(rows["with"]["eval_acc"]) / 2
    assert f"| with L2 1e-5 | {mean:.3f}% |" in english
    again = tool("reproduce", *arguments, "--page-only", "--seeds", 3)
    assert json.loads(again.stdout)["l2"] == rows and " of " not in again.stderr
    kept = json.loads((tmp_path / "out/quick/trainings.json").read_text()).values()
    assert [len(one["wrong"]) for one in kept] == [round(70 - 70 * one["eval_acc"]) for one in kept]


def test_page_is_what_its_results_say(real_data, tmp_path):
    """Nothing of it is written by hand, and its results are of what the code is now."""
    workspace = Workspace(open_data(str(real_data)), reproduce.RESULTS, tmp_path)
    reports, place = reproduce.all_reports(workspace), reproduce.PLACE
    figures = place.figures.read_text()
    assert figures == all_figures(reproduce.CLAIMS, reports)
    for path, expected in zip(place.pages, reproduce.page_text(workspace, reports)):
        text = path.read_text()
        assert text == expected
        assert "{" not in text[: text.index("```json")]  # nothing was left unformatted
        for picture in re.findall(r"\]\(([^)]+\.png)\)", text):
            assert (path.parent / picture).exists()
        main = json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])
        assert main["best"]["eval_acc"] == json.loads(figures)["best"]["eval_acc"]
    cell = re.compile(rf"<!-- reproduce ({'|'.join(recipes.MEASURED)}) -->(.*?)<!-- end -->")
    written = {
        page: dict(cell.findall((ROOT / page).read_text()))
        for page in recipes.FIGURES
        if (ROOT / page).exists()
    }
    for page, cells in written.items():
        assert cells, page
        for name, figures in cells.items():
            assert figures == recipes.figures(page, name, reports), "tools/reproduce.py writes it"
    assert written["docs/en/train.md"].keys() == recipes.MEASURED.keys()


# Terms that a Chinese page has in English, too.
TERMS = """AMD Adagrad Adam CPU Dropout EPYC English Fluid Holm Intel Kaiming MNIST MindSpore
ModelArts Momentum Nesterov NumPy PolynomialDecay Processor ReLU SAM SGD SHA SIGKILL Smith
Welch Xavier Xeon conv cycle digits epoch mixup numpy one paddle rotate scale shear shift"""


def test_chinese_page_is_in_chinese():
    """But for code, links and proper names, that is: what has no translation is found here."""
    text = reproduce.PLACE.pages[1].read_text().partition("```json")[0]
    text += " ".join(named(word).zh for word in templates("en")["words"])
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|<a id=[^>]*>", "", text)
    assert set(re.findall(r"[A-Za-z]{3,}", text)) <= set(TERMS.split())


def test_both_languages_have_the_same_tables():
    """And the same code: the numbers are those of one measurement."""
    english, chinese = (path.read_text().partition("```json")[0] for path in reproduce.PLACE.pages)
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


# What each claim shows wherever it is tried: the words that its verdict begins with.
SHOWN = {
    **dict.fromkeys(["names", "race", "unstepped", "partly"], "No"),
    "globals": "Not with the tutorial's code",
    **dict.fromkeys(["resumed", "pattern"], "Yes"),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rehearsal_of_the_whole_page(tool, tiny, tmp_path):
    """From IDX files; every claim has its figures, and what is there is not measured again."""
    write_idx(tmp_path / "idx", tiny_splits({"train": 640, "valid": 128, "eval": 70}))
    arguments = ("--quick", "--seeds", 1, "--data", tmp_path / "idx")
    first = tool("reproduce", *arguments)
    quick = tmp_path / "work/output/reproduce/quick"
    figures = json.loads((quick / "page.json").read_text())
    assert [one.id for one in reproduce.CLAIMS] == list(figures)
    for one in reproduce.CLAIMS:
        report = figures[one.id]
        if isinstance(one, Experiment):
            report = json.loads((quick / f"{one.id}.json").read_text())["report"]
            assert one.is_complete(report), one.id
            assert told(one.judge(report)).startswith(SHOWN.get(one.id, "")), one.id
        else:
            assert report, one.id
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
    assert sorted(named) == sorted([*reproduce.INTO_DOCS, *(one.id for one in reproduce.CLAIMS)])


def test_both_languages_have_the_same_templates_and_placeholders():
    english, chinese = (
        {claim: texts for claim, texts in templates(language).items() if claim != "words"}
        for language in ("en", "zh")
    )
    assert english.keys() == chinese.keys()
    for claim, texts in english.items():
        assert texts.keys() == chinese[claim].keys(), claim
        for name, text in texts.items():
            assert placeholders(text) == placeholders(chinese[claim][name]), (claim, name)
    assert english.keys() >= {one.id for one in reproduce.CLAIMS}


def placeholders(template):
    """The names and formats of a template's fields."""
    return sorted((field, form) for _, field, form, _ in Formatter().parse(template) if field)


def test_the_recipe_best_is_what_was_chosen(real_data, tmp_path):
    """By the search, as soon as that is complete."""
    data = open_data(str(real_data))
    workspace = Workspace(data, reproduce.RESULTS, tmp_path)
    finalists = next(one for one in reproduce.CLAIMS if one.id == "finalists")
    row = finalists.rows[choose(finalists.report(workspace, {}))[0]]
    searched = search.CLAIM.report(workspace, {})
    if search.CLAIM.is_complete(searched):
        row = search.choose(searched)[1]
    chosen = row.training(1, Scale())
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
        Experiment("id", str, measure=lambda *_: {"a": 1}, tabulate=str, settings=settings)
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

        return Experiment("id", str, measure=measure, tabulate=str, repeatable=repeatable)

    measuring("0.1", 2.3, 1).measure_missing(digits)
    for seconds in (1, 2):  # which no two runs have in common
        assert measuring("0.1", 2.3, seconds).report(digits, {})["seconds"] == 1
    assert measuring("0.1", 2.3000001, 1).report(digits, {})  # another processor's rounding
    assert not measuring("0.1", 2.31, 1).report(digits, {})
    assert not measuring("0.2", 2.3, 1).report(digits, {})


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ([0.981, 0.982, 0.983], [0.981, 0.983, 0.982], "which is not significant"),
        ([0.981, 0.982, 0.983], [0.991, 0.993, 0.992], "by +1.00% (95% interval +0.77% to +1.23%"),
        ([0.981, 0.982, 0.983], [0.991, 0.993, 0.992], "which is significant"),
        ([0.981, 0.981], [0.981, 0.981], "by +0.00% (95% interval +0.00% to +0.00%)"),
    ],
)
def test_difference_is_judged_by_its_spread(one, other, words):
    report = {"a": {"eval_acc": one}, "b": {"eval_acc": other}}
    assert words in told(accuracy.judge_rate(report))


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (
            [0.991, 0.992, 0.993],
            "Yes. 6 of 6 seeds of the loop and the recipe reach 98.6%; the mean is 99.20%",
        ),
        ([0.991, 0.992, 0.993], "The recipe: 3 of 3 seeds"),
        ([0.971, 0.989, 0.986], "Undecided. 4 of 6"),
        ([0.981, 0.980, 0.981, 0.980, 0.9858], "Not as a mean; a lucky seed reaches it. 2 of 10"),
        ([0.971, 0.972, 0.973], "Not as a mean. 0 of 6"),
        ([0.99, 0.99], "(95% interval 99.00% to 99.00%)"),
    ],
)
def test_claim_is_judged_by_the_mean_of_the_seeds(scores, words):
    report = {name: {"eval_acc": scores} for name in ("verbatim", "adam")}
    assert words in told(accuracy.judge_claimed(report))


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
    return dict(zip((PLAIN, "killed", "shuffled, killed"), ways))


def calibrated(ece, low, high):
    ways = [{"ece": ece, "temperature": 1}, {"ece": 0.001, "temperature": 0.9}]
    return {
        "ways": dict(zip("ab", ways)),
        "ece_by_chance": [0.001, 0.002],
        "temperature": [low, high],
    }


KEPT = {"steps": 9, "saved": 2, "looks": 5, "least": 1, "by_mtime": "a", "newest": "b"}


@pytest.mark.parametrize(
    ("claim", "report", "words"),
    [
        ("everyone", seconds(one=[2, 3], every=[4, 5], share=[1, 1]), "No."),
        ("everyone", seconds(one=[2, 3], every=[1, 1], share=[1, 1]), "Yes."),
        ("everyone", seconds(one=[2, 3], every=[1, 4], share=[1, 1]), "Undecided."),
        ("names", {"by_name": "a", "newest": "a"}, "Yes."),
        ("race", looked(0, 0, 0), "Undecided."),
        ("race", looked(3, 6, 0), "No. While one process saves in place, 66.7% of the reads"),
        ("unstepped", {"never": 0.001, "each": 0.001}, "Yes."),
        ("averages", {"counted": 0.5, "images": 9, "mean_of_means": {"3": 0.5}}, "Yes"),
        ("calibration", calibrated(0.0015, 0.9, 1.1), "Undecided. The expected calibration error"),
        ("calibration", calibrated(0.003, 0.9, 1.1), "No. The expected calibration error"),
        ("calibration", calibrated(0.0015, 0.8, 0.9), "No. The expected calibration error"),
        ("averages", {"counted": 0.5, "images": 9, "mean_of_means": {"4": 0.4}}, "Not in general"),
        ("resumed", resumed({**SAME, "losses_differ_by": 1.5}, SAME, SAME), "No. In plain"),
        (
            "resumed",
            resumed({**OTHER, "losses_differ_by": 0.01}, SAME, SAME),
            "Yes. In plain",
        ),
        ("pattern", KEPT, "Yes."),
        ("pattern", {**KEPT, "least": 0}, "No."),
        ("pattern", {**KEPT, "saved": 9}, "No."),
        ("partly", {**LOADED, "refused": "r"}, "No. The weights are loaded in part, with a"),
        (
            "partly",
            LOADED,
            "No. The weights are loaded in part, with a warning for each tensor left out (1)",
        ),
        ("partly", {**LOADED, "untouched": False}, "Yes."),
        ("l2", losses((0.05, 0.04), (0.05, 0.045)), "Yes."),
        ("l2", losses((0.05, 0.045), (0.05, 0.04)), "No."),
        ("l2", losses((0.05, 0.04), (0.05, 0.04)), "Undecided."),
        ("finalists", valid(a=[0.98, 0.981, 0.982], b=[0.99, 0.991, 0.992]), "By seeds 1 to 3"),
        ("half", seeds(short=[0.98, 0.981, 0.982], long=[0.99, 0.991, 0.992]), "Yes."),
        ("half", seeds(short=[0.99, 0.991, 0.992], long=[0.98, 0.981, 0.982]), "No."),
        ("half", seeds(short=[0.98, 0.981, 0.982], long=[0.98, 0.982, 0.981]), "Undecided."),
        (
            "leaders",
            valid(affine=[1, 0.98, 0.981], dropout=[1, 0.99, 0.991], adam=[0, 0.99, 0.991]),
            "Yes. Without seed 1, affine augmentation alone reaches 98.050%; dropout",
        ),
        (
            "leaders",
            valid(affine=[0, 0.98, 0.981], dropout=[1, 0.98, 0.981], adam=[1, 0.97, 0.971]),
            "Mixed. Without",
        ),
        ("fewest", valid(a=[0.97, 0.98, 0.98]), "No number of images has"),
        ("default", seeds(default=[0.991, 0.993]), "A mean of 99.200% over 2 seeds"),
    ],
)
def test_verdicts_follow_the_figures(claim, report, words):
    assert verdict(claim, report).startswith(words)


def verdict(claim, report):
    return told(next(one for one in reproduce.CLAIMS if one.id == claim).verdict(report))


def told(verdict):
    """Return what the page says, without the asterisks of its bold type."""
    return findings(verdict).en.replace("*", "")


def test_a_step_of_the_ladder_is_compared_with_chance():
    """By the spread of the row with several seeds, and corrected for all the steps."""
    rows = {"affine": [0.99, 0.991, 0.992], "more": [0.993], "less": [0.97], "most": [0.9925]}
    base, sd, gaps = compare_with_affine(valid(**rows))
    assert (base, sd) == (0.99, pytest.approx(0.001))
    assert list(gaps) == ["more", "most", "less"]
    assert gaps["less"]["p"] == pytest.approx(3 * 0.00493, rel=0.01)  # t = 14.1, 2 degrees
    several = verdict("ladder", valid(**rows))
    assert "correction): less -2.00%. The others, best first: more +0.30%, most +0.25%." in several
    rows["less"] = [0.98]  # significant alone, but not among three: p = 0.0194
    assert "correction): none. The others" in verdict("ladder", valid(**rows))
    alone = verdict("ladder", valid(affine=[0.99], more=[0.5]))
    assert ": none. The others, best first: more -49.00%." in alone


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
    claim = next(one for one in reproduce.CLAIMS if one.id == "rate")
    figure = claim.draw({"constant": row, "stepped": row}, open_data(str(tiny)))
    losses, seeds_of_rows = figure.axes
    line, band = losses.lines[0], losses.collections[0].get_paths()[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([250, 500], [2, 1.5])
    assert {tuple(point) for point in band.vertices} == {(250, 1), (250, 3), (500, 1), (500, 2)}
    assert list(seeds_of_rows.lines[0].get_ydata()) == [0.98, 0.985]
    assert figure.get_suptitle().endswith("by +0.00 percentage points, not significantly")


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
    words = verdict("optimizers", seeds(**rows))
    assert words.endswith(
        "differ significantly: Momentum and Adam, Momentum and SGD, Adam and SGD."
    )
    alike = {name: [0.98, 0.981, 0.982] for name in rows}
    assert verdict("optimizers", seeds(**alike)).endswith(
        "none of the 3 pairs differs significantly."
    )


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        ((SAME, SAME, SAME), "within a shuffled epoch, weights and losses are bit-identical."),
        ((SAME, SAME, OTHER), "within a shuffled epoch, the losses differ by up to 0."),
        (
            (SAME, SAME, {**SAME, "losses_differ_by": 1e-9}),
            "within a shuffled epoch, the losses differ by up to 1e-09.",
        ),
    ],
)
def test_bits_that_differ_are_reported(ways, words):
    assert verdict("resumed", resumed(*ways)).endswith(words)


def test_what_is_not_significant_is_said():
    close, far = [0.98, 0.981, 0.982], [0.90, 0.901, 0.902]
    words = "ith these seeds it is not significantly better than"
    finalists = verdict("finalists", valid(a=close, b=[0.981, 0.982, 0.983], c=far))
    assert finalists.endswith(f" recipe `best`. W{words} a (Holm's correction).")
    fewest = valid(**{"1": far, "2": [0.985, 0.986, 0.986], "3": [0.986, 0.986, 0.987]})
    fewest = verdict("fewest", fewest)
    assert fewest.endswith(f"98.6% is 3 images; w{words} 2 images (Holm's correction).")


def test_a_choice_is_not_undone_by_seeds_that_came_after_it():
    finalists = next(one for one in reproduce.CLAIMS if one.id == "finalists")
    judged = finalists.verdict(valid(a=[0.98, 0.981, 0.982], b=[0.99, 0.991, 0.992, 0.5, 0.5]))
    assert "By seeds 1 to 3, b has the highest mean on the valid split, 99.100%" in told(judged)
    assert "biased upwards: all 5 seeds have a mean of" in told(judged)
    assert "验证集上均值最高的是b（99.100%）" in judged.summary.zh


@pytest.mark.parametrize(("score", "met"), [(0.9955, "达到"), (0.9954, "未达到")])
def test_summary_says_what_the_verdicts_say(score, met):
    """Of every comparison, with seeds that all came to the same."""
    comparisons = [one for one in reproduce.CLAIMS if isinstance(one, Comparison)]
    keys = ("eval_acc", "valid_acc", "eval_loss", "valid_loss", "train_loss")
    reports = {
        one.id: {
            row: {"seeds": list(range(1, 11)), **{key: [score] * 10 for key in keys}}
            for row in one.rows
        }
        for one in comparisons
    }
    verdicts = {one.id: one.judge(reports[one.id]) for one in comparisons}
    assert "尚" not in {verdict.summary.zh[0] for verdict in verdicts.values()}
    assert verdicts["best"].summary.zh.endswith(f"，{met}目标：均值 99.55%，区间高于 99.50%")
    assert verdicts["best"].summary.en.endswith("is met" if met == "达到" else "is not met")
    outcomes = {claim: verdicts[claim].outcome.zh for claim in ("claimed", "l2", "rate")}
    assert outcomes == {"claimed": "是", "l2": "无定论", "rate": "否"}


def test_no_verdict_before_all_seeds_are_there():
    claim = next(claim for claim in reproduce.CLAIMS if claim.id == "l2")
    rows = {name: {"seeds": [1, 2], "eval_acc": [0.9, 0.9]} for name in claim.rows}
    assert told(claim.judge(rows)) == "No verdict yet: 4 of 10 trainings are done."
    assert told(claim.judge({})) == "No verdict yet: 0 of 10 trainings are done."


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


@pytest.mark.slow
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

"""What `tools/reproduce.py` measures, with one epoch each instead of three."""

import ast
import json
import re
import shlex

import pytest
import reproduce
from conftest import ROOT
from reproduction import trainings
from reproduction.trainings import Results, Training


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_old_digits_are_forgotten_unless_they_are_replayed(tool, real_data, tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs/page.md"
    page.write_text("a\n<!-- reproduce forgetting -->\nold\n<!-- end -->\nb\n")
    arguments = ("--only", "forgetting", "--data", real_data, "--epochs", 1, "--docs", "docs")
    done = tool("reproduce", *arguments, "--json", timeout=900)
    accuracy = json.loads(done.stdout)["accuracy"]
    assert accuracy["old"]["old"] >= 0.98 and accuracy["new"]["new"] >= 0.97
    assert accuracy["new"]["old"] < 0.5
    assert min(accuracy["new_replayed"].values()) >= 0.97
    assert page.read_text().startswith("a\n<!-- reproduce forgetting -->\n| trained on | acc")
    again = tool("reproduce", *arguments, timeout=900)  # what is finished is not trained again
    assert again.stderr.count("this run is finished") == 3


def test_collapse_is_written_into_the_page(tool, real_data, tmp_path):
    (tmp_path / "page.md").write_text("<!-- reproduce collapse -->\nold\n<!-- end -->\n")
    tool("reproduce", "--only", "collapse", "--data", real_data, "--docs", tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert "| 1 | fc | its outputs are of size" in page and "The loss of step 1 is" in page


def test_every_line_that_made_a_table_is_one_that_the_tools_take(tool):
    """Of the pages and the README; that each also makes its table is shown elsewhere."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    lines = {
        line
        for page in pages
        for line in re.findall(
            r"`python (tools/(?:benchmark|reproduce)\.py [^`]+)`", page.read_text()
        )
    }
    assert len(lines) >= 5
    for line in lines:
        script, *arguments = shlex.split(line)
        name = script.removeprefix("tools/").removesuffix(".py")
        known = tool(name, "--help").stdout
        for word in arguments:
            assert word in known or not word.startswith("--"), line
        made = arguments[arguments.index("--only") + 1] if name == "reproduce" else arguments[0]
        assert f"{made}  " in known, line
        assert any(f"<!-- {name} {made} -->" in page.read_text() for page in pages), line


def test_rehearsal_of_a_table(tool, tiny, tmp_path):
    """Two seeds, one epoch; then all is there, and a change of the seeds trains what is missing."""
    arguments = ("--quick", "--only", "l2", "--data", tiny, "--output", "out", "--json")
    first = tool("reproduce", *arguments, "--jobs", 2)
    found = json.loads(first.stdout)["l2"]
    assert set(found) == {"without", "with"}
    assert found["with"]["seeds"] == [1, 2] and len(set(found["with"]["eval_acc"])) >= 1
    assert first.stderr.count("of 4: tutorial") == 4
    written = (tmp_path / "out/quick/REPRODUCTION.md").read_text()
    block = json.loads(re.search(r"```json\n(.*?)```", written, re.DOTALL)[1])
    assert block["l2"] == found and block["ladder"] == {}
    accuracy = 100 * sum(found["with"]["eval_acc"]) / 2
    assert f"| with L2 1e-5 | {accuracy:.3f}% |" in written
    kept = json.loads((tmp_path / "out/quick/trainings.json").read_text()).values()
    assert [len(one["wrong"]) for one in kept] == [round(70 - 70 * one["eval_acc"]) for one in kept]
    again = tool("reproduce", *arguments, "--seeds", 3)
    assert again.stderr.count("of 2: tutorial") == 2
    assert json.loads(again.stdout)["l2"]["with"]["eval_acc"][:2] == found["with"]["eval_acc"]


def test_page_says_what_its_figures_say():
    """No number of the page is written by hand: its tables and words come from its JSON block."""
    page = (ROOT / "REPRODUCTION.md").read_text()
    figures = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    assert set(figures) == {claim.id for claim in reproduce.CLAIMS}
    for claim in reproduce.CLAIMS:
        report = figures[claim.id]
        assert claim.table(report) in page and f"**{claim.judged(report)}**" in page
    for path in re.findall(r"\]\(([^)]+\.png)\)", page):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("claim", ["averages", "names", "calibration", "robustness", "everyone"])
@pytest.mark.slow
def test_rehearsal_of_what_is_shown_once(tool, tiny, tmp_path, claim):
    arguments = ("--quick", "--only", claim, "--data", tiny, "--output", "out")
    first = tool("reproduce", *arguments)
    written = (tmp_path / "out/quick/REPRODUCTION.md").read_text()
    assert first.stdout.strip() in written
    made = tmp_path / f"out/quick/{claim}.json"
    before = made.stat().st_mtime_ns
    assert tool("reproduce", *arguments).stdout == first.stdout
    assert made.stat().st_mtime_ns == before  # what is there is not measured again


def test_results_are_those_of_the_code(tmp_path, monkeypatch):
    results, one = Results(tmp_path / "r.json"), Training("tutorial", 1, (("epochs", 2),))
    results.put(one, {"eval_acc": 0.5})
    assert Results(tmp_path / "r.json").get(one)["eval_acc"] == 0.5
    assert results.get(Training("tutorial", 2, (("epochs", 2),))) is None
    monkeypatch.setattr(trainings, "_fingerprint", "another")
    assert results.get(one) is None


def test_words_in_the_code_do_not_make_it_another():
    one = '"""About."""\ndef f(x):\n    """What."""\n    return x + 1  # why\n'
    other = '"""Otherwise."""\ndef f(x):\n    return x + 1\n'
    bare = [ast.dump(trainings._bare(ast.parse(text))) for text in (one, other)]
    assert bare[0] == bare[1] != ast.dump(trainings._bare(ast.parse(other.replace("1", "2"))))


def test_digits_are_not_taken_for_mnist(tool):
    assert "expected MNIST" in tool("reproduce", "--data", "digits", expect=3).stderr

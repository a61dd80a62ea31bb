"""`tools/reproduce.py`: the pages match the stored results, and small measurements run."""

import json
import re
import shutil

import pytest
import reproduce
from conftest import ROOT
from reproduction.claims import Workspace
from reproduction.page import PAGES, problems, stored_contents, write_pages
from synthetic_data import tiny_splits, write_idx


def test_check_pages_match_the_stored_results(tool):
    """In both languages: each number and table, and a predicate for each claim.

    A claim without a table has its figures in the sentences.
    """
    assert tool("reproduce", "--check").stdout.endswith("of the pages are as measured\n")
    text = (ROOT / "REPRODUCTION.md").read_text()
    sections = re.split(r'<a id="(\w+)"></a>', text.partition("## About")[0])[1:]
    has_table = {claim.id: bool(getattr(claim, "tabulate", True)) for claim in reproduce.CLAIMS}
    measured = dict(zip(sections[::2], sections[1::2]))
    del measured["candidates"]  # a search that is finished
    assert sorted(measured) == sorted(has_table)
    for claim, section in measured.items():
        assert "<!-- holds " in section
        assert (f"<!-- reproduce table {claim} -->" in section) == has_table[claim]
    named = re.findall(r"^(\w+) {2,}\S", reproduce.description(), re.MULTILINE)
    assert sorted(named) == sorted(reproduce.ALL)


@pytest.fixture(scope="module")
def contents():
    return stored_contents(reproduce.ALL.values(), Workspace())


@pytest.fixture
def pages(tmp_path):
    """A folder with copies of the pages."""
    for name in (*(name for names in PAGES for name in names), "docs/zh/tables.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("REPRODUCTION.md", "98.47%<", "98.48%<", r"REPR\S+:\d+: .*98.48%'; expected '98.47%'"),
        ("docs/zh/reproduction.md", "| 98.424% |", "| 98.425% |", r"zh/\S+:\d+: reproduce table"),
        ("REPRODUCTION.md", ".both.high < 0.986", ".both.high < 0.98", "0.98 .* does not hold"),
        ("REPRODUCTION.md", "<!-- holds l2.change", "<!-- holds l2.chance", "has no figures"),
        ("README.md", "<!-- reproduce best.count -->", "", r"README.md has .*, README.zh-CN.md 1"),
    ],
    ids=["number", "cell", "predicate", "unknown figure", "one language"],
)
def test_problems_page_differs_from_the_results_reports_it(
    pages, contents, name, old, new, problem
):
    text = (pages / name).read_text()
    assert old in text
    (pages / name).write_text(text.replace(old, new, 1))
    found = list(problems(contents, pages))
    assert any(re.search(problem, line) for line in found), found


def test_write_pages_fills_the_marks_from_the_stored_results(pages, contents):
    before = {name: (pages / name).read_text() for names in PAGES for name in names}
    for name, text in before.items():
        filled = r"(<!-- reproduce [^\n]+? -->\n?).*?(<!-- end -->)"
        (pages / name).write_text(re.sub(filled, r"\1\2", text, flags=re.DOTALL))
    write_pages(contents, pages)
    assert before == {name: (pages / name).read_text() for name in before}
    (pages / "README.md").write_text("<!-- reproduce new.mean:.2% -->old<!-- end -->\n")
    write_pages(contents, pages)
    assert "-->not measured<!--" in (pages / "README.md").read_text()


def test_reproduce_unknown_claim_or_other_data_fails(tool):
    for arguments, code, message in (
        ("--only l2,average", 2, "'average'; did you mean 'averages'?"),
        ("--data digits", 3, "expected MNIST"),
    ):
        assert message in tool("reproduce", *arguments.split(), expect=code).stderr


def test_only_measures_again_and_stores_the_commit(tool, tmp_path):
    command = ("reproduce", "--quick", "--data", "digits", "--only", "collapse")
    stored = tmp_path / "work/output/reproduce/quick/docs/reproduction/collapse.json"
    table = tool(*command).stdout
    first = stored.read_bytes()
    assert table.startswith("| step | where |") and "The loss of step 1 is" in table
    assert {"commit", "date", "cpu"} <= json.loads(first)["measured"].keys()
    stored.write_text(json.dumps({"report": {"losses": [0], "findings": []}}))
    assert tool(*command).stdout == table and stored.read_bytes() == first


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_quick_measures_every_claim_once(tool, tmp_path):
    """From IDX files, and two seeds at once where one is there."""
    write_idx(tmp_path / "idx", tiny_splits({"train": 640, "valid": 128, "eval": 70}))
    arguments = ("--quick", "--data", tmp_path / "idx")
    first = tool("reproduce", *arguments, "--seeds", 1)
    work = Workspace(tmp_path / "work/output/reproduce/quick", seeds=1, is_quick=True)
    for claim in reproduce.CLAIMS:
        assert claim.report(work), claim.id
    again = tool("reproduce", *arguments, "--seeds", 1)
    assert again.stdout == first.stdout and " of " not in again.stderr
    more = tool("reproduce", *arguments, "--seeds", 2, "--jobs", 2, "--only", "l2")
    assert more.stderr.count("of 2: tutorial") == 2

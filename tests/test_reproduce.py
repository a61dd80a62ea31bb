"""What `tools/reproduce.py` measures, with one epoch each instead of three."""

import json
import re
import shlex

import pytest
from conftest import ROOT


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


def test_digits_are_not_taken_for_mnist(tool):
    assert "expected MNIST" in tool("reproduce", "--data", "digits", expect=3).stderr

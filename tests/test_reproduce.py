"""What `tools/reproduce.py` measures, with one epoch each instead of three."""

import json

import pytest


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


def test_digits_are_not_taken_for_mnist(tool):
    assert "expected MNIST" in tool("reproduce", "--data", "digits", expect=3).stderr

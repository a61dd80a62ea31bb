"""The soak test, in small; `python tools/soak.py --kills 200 --seed 1` is the large one."""

import json

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_change_nothing(tool):
    """The tool itself refuses (exit 4) when the weights are not those of the unbroken run."""
    report = json.loads(tool("soak", "--kills", 20, "--seed", 1, "--json", timeout=900).stdout)
    assert report["kills"] == 20 and report["trainings"] >= 1
    assert report["resumes"] > 5  # or the kills all came too early to test anything
    assert report["quarantines"] == 0
    assert report["lost_steps"] > 0 and report["most_lost_steps"] <= 7

"""The soak test, in small; `python tools/soak.py --kills 200 --seed 1` is the large one."""

import json

import pytest


@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "kills"), [("one", 12), ("spawn", 4), ("launch", 2)])
def test_kills_change_nothing(tool, way, kills):
    """The tool itself refuses (exit 4) when the weights are not those of the unbroken run, and
    (exit 1) when anybody is left after a kill."""
    done = tool("soak", "--way", way, "--kills", kills, "--seed", 1, "--json", timeout=900)
    report = json.loads(done.stdout)
    assert report["kills"] == kills and report["trainings"] >= 1
    assert report["resumes"] >= kills // 4  # or the kills all came too early to test anything
    assert report["quarantines"] == 0
    assert report["most_lost_steps"] <= 7
    assert report["lost_steps"] > 0 or way != "one"  # several save on the way out, if they can
    assert sum(map(len, report["ended"].values())) == kills

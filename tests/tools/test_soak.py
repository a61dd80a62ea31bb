"""The soak test, in small; `python tools/soak.py --kills 200 --seed 1` is the large one."""

import re

import pytest


@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "kills"), [("one", 12), ("spawn", 4), ("launch", 2)])
def test_kills_change_nothing(tool, way, kills):
    """The tool itself raises (exit code 4) if the weights are not those of the unbroken run, and
    (exit code 1) if a process is left after a kill."""
    printed = tool("soak", "--way", way, "--kills", kills, "--seed", 1, timeout=900).stdout
    note = re.search(
        r"^(\d+) kills, (\d+) trainings?, (\d+) resumes, (\d+) steps done again "
        r"\((\d+) at most at once\), (\d+) damaged checkpoints",
        printed,
        re.MULTILINE,
    )
    counted, trainings, resumes, lost, most_lost, damaged = map(int, note.groups())
    assert (counted, damaged) == (kills, 0) and trainings >= 1
    assert resumes >= kills // 4  # or the kills all came too early to test anything
    assert most_lost <= 7
    assert lost > 0 or way != "one"  # several processes save before they end, if they can
    assert sum(map(int, re.findall(r"^\| [\w ]+ \| (\d+) \|", printed, re.MULTILINE))) == kills

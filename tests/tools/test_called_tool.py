"""The modules that a resume enters, as `python tools/called.py` counts them."""

import re

import pytest


@pytest.mark.timeout(300)
def test_resume_reads_from_top_to_bottom(tool):
    """No module is entered from two others: a reader does not come to one twice."""
    step, save, resume = tool("called", timeout=300).stdout.splitlines()
    assert re.fullmatch(r"step: \d+ functions in \d+ modules", step)
    assert re.fullmatch(r"save: \d+ functions in \d+ modules", save)
    assert re.fullmatch(r"resume: \d+ modules, 0 entered twice: -", resume)

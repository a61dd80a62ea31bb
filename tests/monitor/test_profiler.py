"""The table of where the time of a step goes."""

import re

import pytest
from fit_rows import train

from paddle_mnist import Processes, Profile

TOLERANCE = 2  # percent: what the clock reads between two parts


@pytest.mark.parametrize("options", [{"processes": Processes(1, grad_shards=2)}, {"accumulate": 2}])
def test_parts_of_a_step_of_several_passes_are_shares_of_it(options, tmp_path, lines):
    train("SGD with clipping", tmp_path, epochs=8, callbacks=[Profile(steps=8)], **options)
    shares = [float(n) for line in lines() for n in re.findall(r"(-?[0-9.]+)% \|", line)]
    assert shares and min(shares) >= -TOLERANCE

"""Find the lines of a training's log that cover few steps, which a curve does without.

The metrics of a line are averages since the line before. Lines are due every so many steps and at
an epoch's end, so an epoch's end divides the steps between two others: into 94, say, and 6.
Beside averages over many steps, one over few looks like a leap of the metric where there is none.
"""

from collections.abc import Iterable

LEARNING_RATE = "train/lr"  # which every line of a training has


def over_few(steps: Iterable[int], start: int = 0) -> set[int]:
    """Return those of a training's lines, by step, that cover too few steps to be drawn.

    They are at most half as many as the line before covers.

    steps: of the lines, in order. start: the step that the first of them begins at.
    """
    few: set[int] = set()
    last, covered_before = start, 0
    for step in steps:
        covered = step - last
        if 2 * covered <= covered_before:
            few.add(step)
        last, covered_before = step, covered
    return few

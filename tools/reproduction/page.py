"""`REPRODUCTION.md`: every claim with what was measured, in words, tables and one JSON block."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.chinese import summary

HEAD = """# Reproduction

What the tutorial and the documents around it claim, measured with this package: {machine}. Every
table is made by `python tools/reproduce.py --only ID --data MNIST`, all of them and this page by
the same without `--only`; what has a result of code that computes the same is not trained again.

Standard deviations (sd) are of samples (n - 1), one for each seed; an accuracy of 99 % on 10,000
images has a standard error of 0.1 % of its own, which seeds do not show. Minutes are those of one
core, a training's epochs times the fastest of them: the machine had other work at times, and from
day to day is a third faster or slower. `tools/train.py` looks at the eval split at the end of every
training; nothing was chosen by what it saw there.
"""


def page(
    claims: Sequence, reports: Mapping[str, Any], machine: str, drawn: Mapping[str, str]
) -> str:
    """The whole page. drawn: the paths of the figures, by claim."""
    parts = [HEAD.format(machine=machine), "## 摘要\n", summary(claims, reports)]
    for one in claims:
        report = reports[one.id]
        parts.append(
            f"## {one.id}\n\n"
            f"Claim ({one.source}): {one.claim}.\n\n"
            f"Tested: {one.how}.\n\n{one.table(report)}\n\n"
            f"**{one.judged(report)}**\n"
        )
        if one.id in drawn:
            parts.append(f"![{one.claim}]({drawn[one.id]})\n")
    lines = ",\n".join(f'"{one.id}": {json.dumps(one.figures(reports[one.id]))}' for one in claims)
    parts.append(f"## Every figure\n\n```json\n{{\n{lines}\n}}\n```\n")
    return "\n".join(parts)

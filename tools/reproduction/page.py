"""`REPRODUCTION.md`: every claim with what was measured, in words, tables and one JSON block."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.chinese import summary

HEAD = """# Reproduction

What the tutorial and the documents around it claim, measured with this package on CPUs: {versions}.
Every table is made by `python tools/reproduce.py --only ID --data MNIST`, where MNIST is the place
of its files, all of them and this page by the same without `--only`. What has a result of code that
computes the same, in `docs/reproduction`, is not measured again; `--anew` measures it all the same,
beside this page.

Standard deviations (sd) are of samples (n - 1), one for each seed; an accuracy of 99 % on 10,000
images has a standard error of 0.1 % of its own, which seeds do not show. CPUs of another kind round
otherwise, and a seed's training there is another one of the same kind. Minutes are those of one
core: the images seen, times what one costs ([costs](#costs)), without validation. `tools/train.py`
looks at the eval split at the end of every training; nothing was chosen by what it saw there.
"""
DIGITS = 6  # of a number in the JSON block


def page(
    claims: Sequence, reports: Mapping[str, Any], versions: str, drawn: Mapping[str, str]
) -> str:
    """The whole page. versions: of what trained. drawn: the paths of the figures, by claim."""
    parts = [HEAD.format(versions=versions), "## In short\n", _in_short(claims, reports)]
    parts += ["## 摘要\n", summary(claims, reports)]
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
    lines = ",\n".join(
        f'"{one.id}": {json.dumps(rounded(one.figures(reports[one.id])))}' for one in claims
    )
    parts.append(f"## Every figure\n\n```json\n{{\n{lines}\n}}\n```\n")
    return "\n".join(parts)


def _in_short(claims: Sequence, reports: Mapping[str, Any]) -> str:
    """The first sentence of every verdict."""
    rows = (
        f"| [{one.claim}](#{one.id}) | {one.judged(reports[one.id]).split('. ')[0].rstrip('.')} |"
        for one in claims
    )
    return "\n".join(["| claim | verdict |", "|---|---|", *rows]) + "\n"


def figures_of(text: str) -> dict[str, Any]:
    """The JSON block of a page."""
    return json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])


def rounded(value: Any) -> Any:
    """Figures to DIGITS digits, at any depth."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value

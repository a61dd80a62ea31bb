"""`REPRODUCTION.md`: every claim with what was measured, in words, tables and one JSON block."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from markdown_tables import table

from reproduction.claims import Claim, Report

HEAD = """# Reproduction

What the tutorial and the documents around it claim, measured with this package on CPUs: {versions}.
`python tools/reproduce.py --only ID --data MNIST` makes one of the tables, where MNIST is the place
of its files; without `--only` it makes all of them and this page. A result that is stored in
`docs/reproduction` is used again as long as a short probe of the code computes the same as when it
was measured; `--anew` measures everything again and writes it elsewhere.

Standard deviations (sd) are those of samples (n - 1), with one score per seed. An accuracy of 99 %
on 10,000 images has a standard error of 0.1 % of its own, which seeds do not show. Other kinds of
CPU round differently, so that the same seed gives another training of the same kind there. Minutes
are those of one core: the number of images seen times the cost of one ([costs](#costs)), without
validation. `tools/train.py` evaluates on the eval split at the end of every training; nothing was
chosen by these scores.
"""
DIGITS = 6  # of a number in the JSON block


def page(
    claims: Sequence[Claim],
    reports: Mapping[str, Report],
    versions: str,
    pictures: Mapping[str, str],
) -> str:
    """Return the page. versions: of the libraries. pictures: the figures' paths, by claim."""
    verdicts = {claim.id: claim.judge(reports[claim.id]) for claim in claims}
    sentences = [(f"#{c.id}", c.title, verdicts[c.id].first_sentence) for c in claims]
    english = ((f"[{title.en}]({link})", sentence.en) for link, title, sentence in sentences)
    chinese = ((f"[{title.zh}]({link})", sentence.zh) for link, title, sentence in sentences)
    parts = [
        HEAD.format(versions=versions),
        "## In short\n",
        table({"claim": "", "verdict": ""}, english) + "\n",
        "## 摘要\n",
        table({"项目": "", "结论": ""}, chinese) + "\n",
    ]
    for claim in claims:
        parts.append(
            f"## {claim.id}\n\n"
            f"Claim ({claim.source}): {claim.title.en}.\n\n"
            f"Tested: {claim.method}.\n\n{claim.table(reports[claim.id])}\n\n"
            f"**{verdicts[claim.id]}**\n"
        )
        if claim.id in pictures:
            parts.append(f"![{claim.title.en}]({pictures[claim.id]})\n")
    lines = ",\n".join(
        f'"{claim.id}": {json.dumps(rounded(claim.figures(reports[claim.id])))}' for claim in claims
    )
    parts.append(f"## Every figure\n\n```json\n{{\n{lines}\n}}\n```\n")
    return "\n".join(parts)


def figures_of(text: str) -> dict[str, Any]:
    """Return the JSON block of a page."""
    return json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])


def rounded(value: Any) -> Any:
    """Return figures rounded to DIGITS digits, at any depth."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def measured_figures(figures: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """Return what a JSON block has figures of: claims, their rows, and the rows' seeds."""
    names = {(claim,) for claim, one in figures.items() if one}
    for claim, one in figures.items():
        rows = {"": one} if "seeds" in one else one
        for row, report in rows.items():
            if isinstance(report, dict) and isinstance(report.get("seeds"), list):
                names |= {(claim, row, f"seed {seed}") for seed in report["seeds"]}
    return names

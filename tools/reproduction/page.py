"""The page, in two languages: every claim with what was measured, in words, tables and figures.

`REPRODUCTION.md` is in English, `docs/zh/reproduction.md` in Chinese; `docs/reproduction/page.json`
has every figure of both.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from reproduction.claims import Claim, Report, Verdict
from reproduction.texts import EMPTY, Text, fill, frame, paragraphs, sentences, table

SIGNIFICANT_DIGITS = 6  # of a number in JSON


def page(
    claims: Sequence[Claim],
    reports: Mapping[str, Report],
    versions: str,
    pictures: Mapping[str, Text],
) -> Text:
    """Return the page.

    versions: of the libraries. pictures: the figures' paths, by claim.
    """
    say = functools.partial(fill, "page")
    groups = {
        "claims": [claim for claim in claims if claim.is_of_documents],
        "measurements": [claim for claim in claims if not claim.is_of_documents],
    }
    parts = [
        frame("# {}", say("title")),
        say("head", versions=versions),
        frame("## {}", say("summary")),
    ]
    for name, group in groups.items():
        parts += [frame("**{}**", say(name)), _summary(group, reports)]
    for name, group in groups.items():
        parts.append(frame("## {}", say(name)))
        parts += [_section(claim, reports[claim.id], pictures.get(claim.id)) for claim in group]
    figures = f"```json\n{_lines_of_json(main_figures(claims, reports))}\n```\n"
    parts += [
        frame("## {}", say("about")),
        say("notes"),
        frame("## {}", say("main_figures")),
        say("main_figures_text"),
        Text(figures, figures),
    ]
    return paragraphs(*parts)


def _summary(claims: Iterable[Claim], reports: Mapping[str, Report]) -> Text:
    """Return a table of the claims' questions, verdicts and results."""
    columns = [fill("page", name) for name in ("question", "verdict", "result")]
    rows = []
    for claim in claims:
        verdict = claim.judge(reports[claim.id])
        question = frame(f"[{{}}](#{claim.id})", fill(claim.id, "heading"))
        rows.append((question, verdict.outcome, verdict.short or verdict.summary))
    return table(dict.fromkeys(columns, ""), rows)


def _section(claim: Claim, report: Report, picture: Optional[Text]) -> Text:
    """Return a claim's section."""
    heading, claimed = fill(claim.id, "heading"), EMPTY
    if claim.is_of_documents:
        source, text = (fill(claim.id, name) for name in ("source", "claim"))
        claimed = fill("page", "claim", source=source, claim=text)
    return paragraphs(
        frame(f'<a id="{claim.id}"></a>\n\n### {{}}', heading),
        claimed,
        findings(claim.judge(report)),
        claim.table(report),
        frame("![{}]({})", heading, picture) if picture else EMPTY,
        fill("page", "method", method=claim.method),
    )


def findings(verdict: Verdict) -> Text:
    """Return a verdict in words."""
    outcome = frame("**{}** ", sentences(verdict.outcome)) if verdict.outcome else EMPTY
    return frame("{}{}", outcome, sentences(verdict.summary, *verdict.details))


def main_figures(claims: Iterable[Claim], reports: Mapping[str, Report]) -> dict[str, Any]:
    """Return the main figures of the claims that have some."""
    figures = {claim.id: claim.main_figures(reports[claim.id]) for claim in claims}
    return {claim: rounded(one) for claim, one in figures.items() if one}


def all_figures(claims: Iterable[Claim], reports: Mapping[str, Report]) -> str:
    """Return the figures of all claims as JSON, with a line for each claim."""
    figures = {claim.id: claim.figures(reports[claim.id]) for claim in claims}
    return _lines_of_json(rounded(figures)) + "\n"


def _lines_of_json(figures: Mapping[str, Any]) -> str:
    lines = (f'"{claim}": {json.dumps(one)}' for claim, one in figures.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def rounded(value: Any) -> Any:
    """Return figures rounded to SIGNIFICANT_DIGITS digits, at any depth."""
    if isinstance(value, Mapping):
        return {key: rounded(figure) for key, figure in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(figure) for figure in value]
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value


def measured_figures(figures: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """Return what JSON has figures of: claims, their rows, and the rows' seeds."""
    names = {(claim,) for claim, one in figures.items() if one}
    for claim, one in figures.items():
        rows = {"": one} if "seeds" in one else one
        for row, report in rows.items():
            if isinstance(report, dict) and isinstance(report.get("seeds"), list):
                names |= {(claim, row, f"seed {seed}") for seed in report["seeds"]}
    return names

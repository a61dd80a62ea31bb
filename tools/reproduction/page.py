"""The page, in two languages: every claim with what was measured, in words, tables and figures.

`REPRODUCTION.md` is in English, `docs/zh/reproduction.md` in Chinese; `docs/reproduction/page.json`
has every figure of both.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import markdown_tables

from reproduction.claims import Claim, Report
from reproduction.texts import fill, sentences

DIGITS = 6  # of a number in JSON


def page(
    language: str,
    claims: Sequence[Claim],
    reports: Mapping[str, Report],
    versions: str,
    pictures: Mapping[str, str],
) -> str:
    """Return the page in a language of `Text`.

    versions: of the libraries. pictures: the figures' paths, by claim.
    """

    def say(name: str, **values: Any) -> str:
        return getattr(fill("page", name, **values), language)

    groups = {
        "claims": [claim for claim in claims if claim.is_of_documents],
        "measurements": [claim for claim in claims if not claim.is_of_documents],
    }
    parts = [f"# {say('title')}", say("head", versions=versions), f"## {say('summary')}"]
    for name, group in groups.items():
        parts += [f"**{say(name)}**", _summary(language, group, reports)]
    for name, group in groups.items():
        parts.append(f"## {say(name)}")
        for claim in group:
            parts += _section(language, claim, reports[claim.id], pictures.get(claim.id))
    parts += [
        f"## {say('about')}",
        say("notes"),
        f"## {say('main_figures')}",
        say("main_figures_text"),
        f"```json\n{_lines_of_json(main_figures(claims, reports))}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _summary(language: str, claims: Iterable[Claim], reports: Mapping[str, Report]) -> str:
    """Return a table of the claims' questions, verdicts and results."""
    columns = (getattr(fill("page", name), language) for name in ("question", "verdict", "result"))
    rows = []
    for claim in claims:
        verdict = claim.judge(reports[claim.id])
        rows.append(
            (
                f"[{getattr(claim.heading, language)}](#{claim.id})",
                verdict.outcome and getattr(verdict.outcome, language),
                getattr(verdict.short if any(verdict.short) else verdict.summary, language),
            )
        )
    return markdown_tables.table(dict.fromkeys(columns, ""), rows)


def _section(language: str, claim: Claim, report: Report, picture: str) -> list[str]:
    """Return the paragraphs of a claim's section."""
    verdict = claim.judge(report)
    claimed = fill("page", "claim", source=claim.source, claim=claim.title)
    method = fill("page", "method", method=claim.method)
    outcome = f"**{getattr(sentences(verdict.outcome), language)}** " if verdict.outcome else ""
    findings = [getattr(sentences(verdict.summary), language), getattr(verdict.details, language)]
    parts = [
        f'<a id="{claim.id}"></a>',
        f"### {getattr(claim.heading, language)}",
        getattr(claimed, language) if claim.is_of_documents else "",
        outcome + (" " if language == "en" else "").join(filter(None, findings)),
        getattr(claim.table(report), language),
        f"![{getattr(claim.heading, language)}]({picture})" if picture else "",
        getattr(method, language),
    ]
    return [part for part in parts if part]


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
    """Return what JSON has figures of: claims, their rows, and the rows' seeds."""
    names = {(claim,) for claim, one in figures.items() if one}
    for claim, one in figures.items():
        rows = {"": one} if "seeds" in one else one
        for row, report in rows.items():
            if isinstance(report, dict) and isinstance(report.get("seeds"), list):
                names |= {(claim, row, f"seed {seed}") for seed in report["seeds"]}
    return names

"""The finished search for the recipe `best`: its table, from the figures that it left behind.

Its code is in the commit that the page names.
"""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markdown_tables import table

from reproduction.claims import Claim, Report
from reproduction.significance import adjusted, paired_difference
from reproduction.workspace import Workspace

FIGURES = Path(__file__).parents[2] / "docs/reproduction/page.json"
BASE = "affine"  # the row that the others are compared with; it ran in every round
TITLES = {
    BASE: "affine augmentation alone",
    "elastic": "elastic 0.7 and a smaller affine",
    "weaker elastic": "elastic 0.4 and a smaller affine",
    "stronger elastic": "elastic 1 and a smaller affine",
    "elastic, whole affine": "elastic 0.7 and the whole affine",
    "elastic, less decay": "elastic 0.7, weight decay 2e-4",
    "elastic, batch 32": "elastic 0.7, batches of 32, rate 0.05",
    "elastic, biases free": "elastic 0.7, weight decay not on biases",
    "elastic, smoothing": "elastic 0.7, label smoothing 0.02",
    "elastic, ema": "elastic 0.7, average of the weights, 0.998",
    "elastic, nesterov": "elastic 0.7, Nesterov's momentum",
    "elastic, mixup": "elastic 0.7, mixup 0.2",
    "elastic, erasing": "elastic 0.7, a square erased in half",
    "elastic, distilled": "elastic 0.7, distilled from five nets of that row (without their cost)",
}


class Search(Claim):
    """Rounds of trainings that will not be repeated: their figures are those of `FIGURES`."""

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        return json.loads(FIGURES.read_text("utf-8"))[self.id]

    def findings(self, report: Report) -> dict[str, Any]:
        """Return the means of the winner and of BASE in the last round, and the p-values."""
        last = report["rounds"][-1]
        winner = ranking(last)[0]
        errors, losses = compare(last)[winner]
        return {
            **report,
            "winner": winner,
            "errors": statistics.mean(last["rows"][winner]["errors"]),
            "base": statistics.mean(last["rows"][BASE]["errors"]),
            "error_p": errors["p"],
            "loss_p": losses["p"],
        }

    def table(self, report: Report) -> str:
        return "\n\n".join(map(_table, report["rounds"]))


def ranking(one: Report) -> list[str]:
    """Return the names of a round's rows, the best first: by mean errors, then by mean loss."""

    def means(name: str) -> list[float]:
        return [statistics.mean(one["rows"][name][key]) for key in ("errors", "losses")]

    return sorted(one["rows"], key=means)


def compare(one: Report) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """Compare the rows of a round with BASE seed by seed: by errors, and by loss.

    Differences are those of `paired_difference`, with p corrected for the number of rows.
    """
    rows = dict(one["rows"])
    base = rows.pop(BASE)
    errors, losses = (
        adjusted({name: paired_difference(row[key], base[key]) for name, row in rows.items()})
        for key in ("errors", "losses")
    )
    return {name: (errors[name], losses[name]) for name in rows}


def _table(one: Report) -> str:
    columns = {
        f"{one['epochs']} epochs, {len(one['seeds'])} seeds": "",
        "errors on valid: mean": ".1f",
        "fewer than affine alone": "",
        "p of the errors": ".2g",
        "valid loss": ".4f",
        "lower than affine alone": "",
        "p of the loss": ".2g",
        "CPU seconds: median": ".0f",
    }
    compared, rows = compare(one), []
    for name in ranking(one):
        row = one["rows"][name]
        errors, losses = compared.get(name, (None, None))
        seconds = statistics.median(filter(None, row["seconds"]))
        rows.append(
            (
                TITLES[name],
                statistics.mean(row["errors"]),
                errors and "{gap:+.1f} ({low:+.1f} to {high:+.1f})".format(**errors),
                errors and errors["p"],
                statistics.mean(row["losses"]),
                losses and "{gap:+.4f} ({low:+.4f} to {high:+.4f})".format(**losses),
                losses and losses["p"],
                seconds,
            )
        )
    return table(columns, rows)


CLAIM = Search("candidates")

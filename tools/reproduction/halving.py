"""A round of a race: which rows are the best, who goes on, and how they compare."""

import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any

from reproduction.significance import adjusted, paired_difference

BASE = "affine"  # the row that the others are compared with; it runs in every round


def is_complete(one: Mapping[str, Any]) -> bool:
    """Return whether all trainings of a round are done."""
    return all(one["rows"].values())


def ranking(one: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the names of a round's rows, the best first: by the means of "errors", "losses"."""

    def means(name: str) -> list[float]:
        row = one["rows"][name]
        return [statistics.mean(row[key]) if row else math.inf for key in keys]

    return sorted(one["rows"], key=means)


def survivors(one: Mapping[str, Any], kept: int) -> list[str]:
    """Return the rows that go on: BASE, and the `kept` best of the others.

    They are taken in turns from the ranking by errors and from that by loss. Errors are what counts
    in the end, but of few seeds they are mostly chance; the loss varies less, but is higher for
    what makes a net less sure, such as label smoothing.
    """
    turns = zip(ranking(one, "errors", "losses"), ranking(one, "losses", "errors"))
    others = dict.fromkeys(name for name in itertools.chain(*turns) if name != BASE)
    return [BASE, *itertools.islice(others, kept)]


def compare(one: Mapping[str, Any]) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """Compare the rows of a round with BASE: by errors, and by loss.

    Differences are those of `paired_difference`, with p corrected for the number of rows.
    """
    rows = dict(one["rows"])
    base = rows.pop(BASE)
    errors, losses = (
        adjusted({name: paired_difference(row[key], base[key]) for name, row in rows.items()})
        for key in ("errors", "losses")
    )
    return {name: (errors[name], losses[name]) for name in rows}

"""Intervals and differences of the scores that several seeds reach."""

import statistics
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from scipy import stats

LEVEL = 0.05
Name = TypeVar("Name", bound=Hashable)


def interval(scores: list[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the mean (Student's t)."""
    mean, error = statistics.mean(scores), statistics.stdev(scores) / len(scores) ** 0.5
    return stats.t.interval(0.95, len(scores) - 1, mean, error) if error else (mean, mean)


def describe(scores: list[float]) -> dict[str, float]:
    """Return mean, count and worst; of several scores also the mean's interval, low and high."""
    figures = {"mean": statistics.mean(scores), "count": len(scores), "worst": min(scores)}
    if len(scores) > 1:
        figures["low"], figures["high"] = interval(scores)
    return figures


def difference(before: list[float], after: list[float]) -> dict[str, float]:
    """Return how much higher the second mean is, its 95% interval and the p-value (Welch's t)."""
    gap = statistics.mean(after) - statistics.mean(before)
    if max(statistics.pstdev(scores) for scores in (before, after)) == 0:  # the test divides by it
        return {"gap": gap, "low": gap, "high": gap, "p": 0.0 if gap else 1.0}
    test = stats.ttest_ind(after, before, equal_var=False)
    low, high = test.confidence_interval()
    return {"gap": gap, "low": low, "high": high, "p": float(test.pvalue)}


def adjusted(gaps: Mapping[Name, Mapping[str, float]]) -> dict[Name, dict[str, float]]:
    """Return differences with p-values adjusted by Holm's method; the intervals are not.

    S. Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    p_values, largest = {}, 0.0
    for rank, name in enumerate(sorted(gaps, key=lambda name: gaps[name]["p"])):
        largest = max(largest, min(1.0, (len(gaps) - rank) * gaps[name]["p"]))
        p_values[name] = largest
    return {name: {**gap, "p": p_values[name]} for name, gap in gaps.items()}


def compare(
    scores: Mapping[str, list[float]], pairs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, float]]:
    """Return the adjusted differences of some pairs."""
    return adjusted({pair: difference(*(scores[name] for name in pair)) for pair in pairs})


def is_significant(gap: Mapping[str, float]) -> bool:
    """Return whether the p-value of a difference is below 5%.

    Of a single difference: whether its interval excludes 0.
    """
    return gap["p"] < LEVEL


def not_significant(
    scores: Mapping[str, list[float]], name: str, others: Iterable[str]
) -> list[str]:
    """Return the others whose scores do not differ significantly from those of a name."""
    gaps = compare(scores, [(name, other) for other in others])
    return [other for (_, other), gap in gaps.items() if not is_significant(gap)]

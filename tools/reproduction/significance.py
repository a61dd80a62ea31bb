"""Intervals and differences of the scores that several seeds reach."""

import statistics
from collections.abc import Iterable, Mapping

from reproduction.texts import CONFIRMED, REFUTED, UNDECIDED, Text


def interval(scores: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean (Student's t)."""
    from scipy import stats

    mean, error = statistics.mean(scores), statistics.stdev(scores) / len(scores) ** 0.5
    return stats.t.interval(0.95, len(scores) - 1, mean, error) if error else (mean, mean)


def describe(scores: list[float]) -> dict[str, float]:
    """Return the mean, its interval, the count and the worst, by their names in templates."""
    low, high = interval(scores)
    mean = statistics.mean(scores)
    return {"mean": mean, "low": low, "high": high, "count": len(scores), "worst": min(scores)}


def difference(one: list[float], other: list[float]) -> dict[str, float]:
    """Return how much higher the other's mean is, and the 95 % interval of it (Welch's t)."""
    from scipy import stats

    gap = statistics.mean(other) - statistics.mean(one)
    if max(statistics.pstdev(scores) for scores in (one, other)) == 0:  # the test divides by it
        return {"gap": gap, "low": gap, "high": gap}
    low, high = stats.ttest_ind(other, one, equal_var=False).confidence_interval()
    return {"gap": gap, "low": low, "high": high}


def is_significant(gap: Mapping[str, float]) -> bool:
    """Return whether the interval of a difference excludes 0."""
    return gap["low"] > 0 or gap["high"] < 0


def judge_gain(gap: Mapping[str, float]) -> Text:
    """Judge the claim that something is higher, by the 95 % interval of the difference."""
    if not is_significant(gap):
        return UNDECIDED
    return CONFIRMED if gap["gap"] > 0 else REFUTED


def not_significant(
    scores: Mapping[str, list[float]], one: str, others: Iterable[str]
) -> list[str]:
    """Return the others whose scores do not differ significantly from one's."""
    return [name for name in others if not is_significant(difference(scores[name], scores[one]))]

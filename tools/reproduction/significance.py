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


def paired_difference(one: list[float], other: list[float]) -> dict[str, float]:
    """Return how much higher the other's scores are, seed by seed (Student's t of pairs).

    gap: the mean; low, high: its 95 % interval; p: of a difference in either direction.
    """
    from scipy import stats

    gaps = [second - first for first, second in zip(one, other)]
    low, high = interval(gaps)
    p = stats.ttest_1samp(gaps, 0).pvalue if low < high else float(gaps[0] == 0)
    return {"gap": statistics.mean(gaps), "low": low, "high": high, "p": float(p)}


def holm(p_values: list[float]) -> list[float]:
    """Correct the p values of several tests for their number, in the same order.

    Holm, "A Simple Sequentially Rejective Multiple Test Procedure", 1979.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected

"""Intervals and differences of the scores that several seeds reach."""

import statistics
from collections.abc import Iterable, Mapping

from scipy import stats

LEVEL = 0.05


def describe(scores: list[float]) -> dict[str, float]:
    """Return the mean, count and worst of scores.

    Of several also low and high: the 95% confidence interval of the mean (Student's t).
    """
    mean = statistics.mean(scores)
    figures = {"mean": mean, "count": len(scores), "worst": min(scores)}
    if len(scores) > 1:
        error = statistics.stdev(scores) / len(scores) ** 0.5
        interval = stats.t.interval(0.95, len(scores) - 1, mean, error) if error else (mean, mean)
        figures["low"], figures["high"] = interval
    return figures


def difference(before: list[float], after: list[float]) -> dict[str, float]:
    """Return how much higher the second mean is, its 95% interval and the p-value (Welch's t)."""
    gap = statistics.mean(after) - statistics.mean(before)
    if max(statistics.pstdev(scores) for scores in (before, after)) == 0:  # the test divides by it
        return {"gap": gap, "low": gap, "high": gap, "p": 0.0 if gap else 1.0}
    test = stats.ttest_ind(after, before, equal_var=False)
    low, high = test.confidence_interval()
    return {"gap": gap, "low": low, "high": high, "p": float(test.pvalue)}


def compare(
    scores: Mapping[str, list[float]], pairs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, float]]:
    """Return the difference of each pair, with a p-value adjusted by Holm's method.

    The intervals are not adjusted. S. Holm, "A simple sequentially rejective multiple test
    procedure", 1979.
    """
    gaps = {pair: difference(*(scores[name] for name in pair)) for pair in pairs}
    largest = 0.0
    for rank, gap in enumerate(sorted(gaps.values(), key=lambda gap: gap["p"])):
        largest = max(largest, min(1.0, (len(gaps) - rank) * gap["p"]))
        gap["p"] = largest
    return gaps


def is_significant(gap: Mapping[str, float]) -> bool:
    """Return whether the p-value of a difference is below 5%."""
    return gap["p"] < LEVEL

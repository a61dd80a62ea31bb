"""What the tutorial says of its accuracy, and of what makes it better."""

import statistics
from collections.abc import Sequence
from typing import Any

from paddle_mnist.mnist.arrays import Data
from reproduction.compared import Compared, Report, Row, scores
from reproduction.trainings import TRAIN_SCORED, Verbatim

TUTORIAL = "the tutorial, part two"
PART_THREE = "the tutorial, part three"
FIRST_CLAIM = 0.986
# The recipes of the tutorial with this package's convolution. A step is the same to rounding; over
# thousands of steps rounding grows, and a training is another one of the same kind, as by a seed.
FAST = {"fast_conv": "on"}
RECIPE = "with this package's convolution, whose steps are the same to rounding"


def interval(found: list[float]) -> tuple[float, float]:
    """In which the mean of all seeds lies, at 95 % (Student's t)."""
    from scipy import stats

    mean, error = statistics.mean(found), statistics.stdev(found) / len(found) ** 0.5
    return stats.t.interval(0.95, len(found) - 1, mean, error) if error else (mean, mean)


def difference(one: list[float], other: list[float]) -> tuple[float, float, float]:
    """How much higher the other's mean is; and its 95 % interval (Welch's t)."""
    from scipy import stats

    if max(statistics.pstdev(found) for found in (one, other)) == 0:  # the test divides by it
        gap = other[0] - one[0]
        return gap, gap, gap
    low, high = stats.ttest_ind(other, one, equal_var=False).confidence_interval()
    return statistics.mean(other) - statistics.mean(one), low, high


def told_apart(low: float, high: float) -> bool:
    """Whether an interval of a difference leaves out 0."""
    return low > 0 or high < 0


def judged(gap: float, low: float, high: float) -> str:
    """Whether something is higher, as was claimed, by the 95 % interval of the difference."""
    if not told_apart(low, high):
        return "Undecided"
    return "Confirmed" if gap > 0 else "Refuted"


def _times(found: Sequence[float]) -> int:
    """How often the claim is reached; a score counts as it is rounded."""
    return sum(round(score, 3) >= FIRST_CLAIM for score in found)


def _reached(report: Report) -> str:
    """By both together, one training but for rounding."""
    loop, recipe = (scores(report)[name] for name in ("verbatim", "adam"))
    low, high = interval(loop + recipe)
    word = "Confirmed" if low >= FIRST_CLAIM else "Undecided"
    if high < FIRST_CLAIM:
        word = "Refuted as a mean" + (", true of a lucky run" if _times(loop + recipe) else "")
    told = []
    ways = {word: loop + recipe, "The tutorial's own loop": loop, "The recipe": recipe}
    for title, found in ways.items():
        low, high = interval(found)
        told.append(
            f"{title}: {_times(found)} of {len(found)} seeds come to {FIRST_CLAIM:.1%}, the mean "
            f"is {statistics.mean(found):.2%} (95 % interval {low:.2%} to {high:.2%})."
        )
    return " ".join(told)


def _best_first(report: Report) -> str:
    order = sorted(scores(report).items(), key=lambda one: -statistics.mean(one[1]))
    told = []
    for name, found in order:
        low, high = interval(found)
        told.append(f"{name} {statistics.mean(found):.2%} ({low:.2%} to {high:.2%})")
    (first, best), *others = order
    alike = [name for name, found in others if not told_apart(*difference(found, best)[1:])]
    also = f"; {first} is not told from {' and '.join(alike)}" if alike else ""
    return f"At this rate, best first, with 95 % intervals: {', '.join(told)}{also}."


def _decay(report: Report) -> str:
    gap, low, high = difference(*scores(report).values())
    found = "is told" if told_apart(low, high) else "is not told"
    return (
        "Refuted: a schedule that is never stepped stays at its first rate (see `unstepped`). "
        f"Stepping it changes the accuracy by {gap:+.2%} (95 % interval {low:+.2%} to "
        f"{high:+.2%}), which {found} from chance by these seeds."
    )


def _overfitting(report: Report) -> str:
    gaps = [
        [loss - own for loss, own in zip(one["eval_loss"], one["train_loss"])]
        for one in report.values()
    ]
    gap, low, high = difference(*gaps)
    more, least, most = difference(*scores(report).values())
    return (
        f"{judged(-gap, -high, -low)}: it changes the eval loss minus that on training images from "
        f"{statistics.mean(gaps[0]):.4f} to {statistics.mean(gaps[1]):.4f} ({gap:+.4f}, 95 % "
        f"interval {low:+.4f} to {high:+.4f}), and the accuracy by {more:+.2%} ({least:+.2%} to "
        f"{most:+.2%})."
    )


def _curves(report: Report, data: Data) -> Any:
    from paddle_mnist.plots import charts

    curves = {name: dict(zip(one["steps"], one["train_losses"])) for name, one in report.items()}
    return charts.panels({("step", "training loss (nats)"): curves})


CLAIMS = (
    Compared(
        "claimed",
        TUTORIAL,
        "98.6 % on the eval split with Adam 0.01, 5 epochs, batches of 100",
        "the tutorial's own loop, re-written (`tools/baseline_tutorial.py`); the recipe "
        f"`tutorial`, {RECIPE}. (The loop's seed 1 on another kind of CPU is in docs/speed.md)",
        {
            "verbatim": Row("the tutorial's loop", "tutorial.py", {}, Verbatim, {"epochs": 1}),
            "adam": Row("recipe `tutorial`: Adam 0.01", "tutorial", FAST),
        },
        5,
        _reached,
    ),
    Compared(
        "optimizers",
        TUTORIAL,
        "SGD, Momentum, Adagrad and Adam may be tried, each with a rate of 0.01",
        f"recipe `tutorial` with each, {RECIPE}; the mean loss curves below",
        {
            "sgd": Row("SGD", "tutorial", {**FAST, "optimizer": "sgd"}),
            "momentum": Row("Momentum 0.9", "tutorial", {**FAST, "optimizer": "momentum"}),
            "adagrad": Row("Adagrad", "tutorial", {**FAST, "optimizer": "adagrad"}),
            "adam": Row("Adam", "tutorial", FAST),
        },
        3,
        _best_first,
        draw=_curves,
    ),
    Compared(
        "l2",
        TUTORIAL,
        "L2 regularisation, `L2Decay(1e-5)`, keeps the net from overfitting",
        f"recipe `tutorial` without it and with it, {RECIPE}",
        {
            "without": Row("without", "tutorial", FAST),
            "with": Row("with L2 1e-5", "tutorial", {**FAST, "weight_decay": 1e-5}),
        },
        5,
        _overfitting,
        draw=_curves,
        also={"train_loss": f"loss on {TRAIN_SCORED:,} training images"},
    ),
    Compared(
        "rate",
        PART_THREE,
        "the rate decays from 0.01 to 0.001",
        "recipe `tutorial-resume` with a constant rate, as the tutorial's code does, and stepped; "
        f"{RECIPE}",
        {
            "constant": Row(
                "never stepped: 0.01",
                "tutorial-resume",
                {**FAST, "lr_schedule": "constant", "end_lr": 0},
            ),
            "stepped": Row("stepped: 0.01 to 0.001", "tutorial-resume", FAST),
        },
        3,
        _decay,
        draw=_curves,
    ),
)

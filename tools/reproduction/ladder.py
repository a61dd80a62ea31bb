"""How good exactly this net can get, by how much, and what it takes."""

import math
import statistics
from collections.abc import Iterable

from paddle_mnist.mnist import pretrained
from reproduction.accuracy import FIRST_CLAIM, difference, interval, judged, told_apart
from reproduction.compared import Compared, Report, Row, scores

TARGET = 0.995
AFFINE = "rotate=10,shift=2,scale=0.1,shear=5"
SMALLER = "rotate=8,shift=1.5,scale=0.08,shear=4"
CHOSEN_BY = 3  # seeds
ADAM = {"optimizer": "adam", "learning_rate": 0.003}


def _means(report: Report) -> dict[str, float]:
    return {name: statistics.mean(found) for name, found in scores(report, "valid").items()}


def _target(report: Report) -> str:
    (one,) = report.values()
    found = one["eval_acc"]
    mean, (low, high) = statistics.mean(found), interval(found)
    met = "is met" if mean >= TARGET else "is not met"
    if low < TARGET <= mean:
        met += f" by these; the mean of all seeds may be as low as {low:.3%}"
    shipped = pretrained.about()["eval_acc"]
    if shipped not in found:
        met += (
            f". The weights that come with the package are one training more, {shipped:.2%}; with "
            f"it the mean is {statistics.mean([*found, shipped]):.3%}"
        )
    seeds = ", ".join(f"{seed}: {score:.2%}" for seed, score in zip(one["seeds"], found))
    return (
        f"Mean {mean:.3%} over {len(found)} seeds (95 % interval {low:.3%} to {high:.3%}): the aim "
        f"of {TARGET:.2%} {met}. By seed: {seeds}."
    )


def steps_up(report: Report) -> tuple[float, float, dict[str, float]]:
    """By seed 1, which all rows have: the affine's accuracy; how much of a difference is chance;
    and what each other row differs by, best first.

    Chance is twice the standard deviation of a difference of two seeds, pooled over the rows with
    several; endless if there is none.
    """
    first = {name: one["valid_acc"][one["seeds"].index(1)] for name, one in report.items()}
    several = [found for found in scores(report, "valid").values() if len(found) > 1]
    squares = sum((len(found) - 1) * statistics.variance(found) for found in several)
    freedom = sum(len(found) - 1 for found in several)
    base = first.pop("affine")
    order = sorted(first, key=first.get, reverse=True)
    chance = 2 * math.sqrt(2 * squares / freedom) if freedom else math.inf
    return base, chance, {name: first[name] - base for name in order}


def _ladder(report: Report) -> str:
    base, chance, gaps = steps_up(report)
    told, untold, means = [], [], _means(report)
    for name, gap in gaps.items():
        all_ = means[name] - means["affine"]
        also = f" (by all seeds {all_:+.3%})" if len(report[name]["seeds"]) > 1 else ""
        (told if abs(gap) > chance else untold).append(f"{name} {gap:+.2%}{also}")
    return (
        f"By seed 1 alone, against the affine's {base:.2%}, beyond what seeds make (twice the "
        f"pooled sd of a difference of two: {chance:.2%}): {', '.join(told) or 'nothing'}. Not "
        f"beyond it, best first: {', '.join(untold) or 'nothing'}."
    )


def choice(report: Report) -> tuple[str, Report]:
    """The finalist of the highest mean on the valid split; and the seeds that it is chosen by.

    They are as many for each, for the winner has more afterwards, and lost by them it would not be
    chosen any more.
    """
    first = {}
    for name, one in report.items():
        found = dict(zip(one["seeds"], one["valid_acc"]))
        first[name] = {"valid_acc": [found[seed] for seed in range(1, CHOSEN_BY + 1)]}
    means = _means(first)
    return max(means, key=means.get), first


def _finalists(report: Report) -> str:
    winner, first = choice(report)
    mean = _means(first)[winner]
    told = (
        f"By seeds 1 to {CHOSEN_BY} the highest mean on the valid split, and so the recipe `best`: "
        f"{winner}, {mean:.3%}"
    )
    alike = not_told(first, winner, [name for name in first if name != winner])
    if alike:
        told += f". By these seeds it is not told from: {'; '.join(alike)}"
    count, later = len(report[winner]["seeds"]), _means(report)[winner]
    if later < mean:
        told += f". The first seeds of a winner flatter it: its {count} have a mean of {later:.3%}"
    return f"{told}."


def _leaders(report: Report) -> str:
    later = without_first(report)
    base, told, words = later.pop("affine"), [], []
    for name, found in later.items():
        gap, low, high = difference(base, found)
        words.append(judged(gap, low, high))
        told.append(
            f"{name} {statistics.mean(found):.3%}, {gap:+.3%} (95 % interval {low:+.3%} to "
            f"{high:+.3%})"
        )
    word = words[0] if len(set(words)) == 1 else "Mixed"
    return (
        f"{word}: by the seeds after the first, the affine alone {statistics.mean(base):.3%}; "
        f"{'; '.join(told)}."
    )


def without_first(report: Report) -> dict[str, list[float]]:
    """The accuracies on the valid split of the seeds but the first."""
    return {
        name: [score for seed, score in zip(one["seeds"], one["valid_acc"]) if seed != 1]
        for name, one in report.items()
    }


def _half(report: Report) -> str:
    gap, low, high = difference(*scores(report).values())
    return (
        f"{judged(gap, low, high)}: twice the epochs change the accuracy by {gap:+.3%} (95 % "
        f"interval {low:+.3%} to {high:+.3%})."
    )


def _fewest(report: Report) -> str:
    enough = [name for name, mean in _means(report).items() if mean >= FIRST_CLAIM]
    if not enough:
        return f"None has a mean of {FIRST_CLAIM:.1%}."
    names = list(report)
    alike = not_told(report, enough[0], names[: names.index(enough[0])])
    also = f"; by these seeds it is not told from {' and from '.join(alike)}" if alike else ""
    return f"The fewest whose mean is at least {FIRST_CLAIM:.1%}: {enough[0]}{also}."


def not_told(report: Report, one: str, others: Iterable[str]) -> list[str]:
    """Which others' accuracies on the valid split are not told from one's by their seeds."""
    found = scores(report, "valid")
    return [name for name in others if not told_apart(*difference(found[name], found[one])[1:])]


def _step(title: str, **told) -> Row:
    return Row(title, "default", {"epochs": 20, "augment": AFFINE, **told})


BEST = Compared(
    "best",
    "this project",
    "the best that exactly this net does: one model, 50,000 images, no tricks when it is used",
    "recipe `best`, which `finalists` chose on the valid split; each training is scored on the "
    "eval split once, after its last epoch. Distillation was not needed, nor tried",
    {"best": Row("recipe `best`", "best", {})},
    10,
    _target,
)

CLAIMS = (
    Compared(
        "ladder",
        "this project",
        "what makes the net better, one change at a time, and then together",
        f"recipe `default` for 20 epochs with the affine {AFFINE}, and one change each; in the end "
        "for twice as long, and with several changes at once. Elastic changes were not tried: the "
        "package has none",
        {
            "plain": Row("without the affine", "default", {"epochs": 20}),
            "affine": _step("the affine, otherwise as `default`"),
            "smaller affine": _step("a smaller affine", augment=SMALLER),
            "larger affine": _step(
                "a larger affine", augment="rotate=13,shift=2.5,scale=0.13,shear=8"
            ),
            "less decay": _step("weight decay 1e-4", weight_decay=1e-4),
            "more decay": _step("weight decay 1e-3", weight_decay=1e-3),
            "higher rate": _step("rate 0.2", learning_rate=0.2),
            "batch 32": _step("batches of 32, rate 0.05", batch_size=32, learning_rate=0.05),
            "label smoothing": _step("label smoothing 0.05", label_smoothing=0.05),
            "dropout": _step("dropout 0.1 before the last layer", dropout=0.1),
            "ema": _step("average of the weights, 0.999", ema=0.999),
            "cosine": _step("cosine instead of one-cycle", lr_schedule="cosine"),
            "adam": _step("Adam 0.003", **ADAM),
            "shifts": _step("shifts of 2 pixels alone", augment="shift=2"),
            "40 epochs": _step("40 epochs", epochs=40),
            "together": _step(
                "together: a smaller affine, batches of 32, average 0.999, 40 epochs",
                augment=SMALLER,
                batch_size=32,
                learning_rate=0.05,
                ema=0.999,
                epochs=40,
            ),
        },
        1,
        _ladder,
        split="valid",
    ),
    Compared(
        "finalists",
        "this project",
        "which recipe is `best`: the affine, how large, and how long",
        "the affine for 20 and for 40 epochs, and a smaller one for 40. The choice was made when "
        f"each had {CHOSEN_BY} seeds, by the highest mean on the valid split. Later seeds do not "
        "count in it, a rule that was written down only after they were known. (For rows of "
        "`ladder` that are as good by their one seed see `leaders`)",
        {
            "affine": _step("the affine, 20 epochs"),
            "affine, 40 epochs": _step("the affine, 40 epochs", epochs=40),
            "smaller affine, 40 epochs": _step(
                "a smaller affine, 40 epochs", augment=SMALLER, epochs=40
            ),
        },
        CHOSEN_BY,
        _finalists,
        split="valid",
    ),
    BEST,
    Compared(
        "leaders",
        "this project",
        "the two changes that lead `ladder` among those of 20 epochs make the net better",
        "dropout and Adam with further seeds; seed 1, which chose them, does not count in the "
        "verdict. This was tried after `best` had been chosen and scored, and changes nothing in "
        "it; for 40 epochs it was not tried",
        {
            "affine": _step("the affine, otherwise as `default`"),
            "dropout": _step("dropout 0.1 before the last layer", dropout=0.1),
            "adam": _step("Adam 0.003", **ADAM),
        },
        4,
        _leaders,
        split="valid",
    ),
    Compared(
        "half",
        "this project",
        "the 40 epochs of `best` are better than 20",
        "the same with 20, each length with a whole one-cycle of its own; each seed is scored on "
        "the eval split once, and nothing is chosen by it any more",
        {
            "20 epochs": _step("20 epochs", epochs=20),
            "40 epochs": Row("recipe `best`", "best", {}),
        },
        5,
        _half,
    ),
    Compared(
        "fewest",
        "this project",
        "how few images, each seen once, come to 98.6 %",
        "recipe `fast` with fewer and with more of them, on the valid split. (The recipe has "
        "42,000, which an earlier search on the valid split, of fewer seeds, had chosen)",
        {
            f"{count:,}": Row(f"{count:,} images", "fast", {"train_limit": count})
            for count in (24_000, 30_000, 36_000, 42_000, 48_000)
        },
        5,
        _fewest,
        split="valid",
    ),
)

"""What the recipes reach over several seeds: the claim about `default`, the READMEs' figures."""

import statistics
from collections.abc import Mapping

from reproduction.accuracy import interval
from reproduction.compared import Compared, Report, Row

# Where the page measures a recipe with several seeds: the claim, and its row.
MEASURED = {
    "default": ("default", "default"),
    "tutorial": ("claimed", "adam"),
    "tutorial-resume": ("rate", "stepped"),
    "best": ("best", "best"),
}
FIGURES = {
    "README.md": "[{count} seeds](REPRODUCTION.md#{claim}): mean {mean}, worst {worst}",
    "README.zh-CN.md": "[{count} 个种子](REPRODUCTION.md#{claim})：平均 {mean}，最差 {worst}",
}


def figures(readme: str, recipe: str, reports: Mapping[str, Report]) -> str:
    """The seeds, mean and worst eval accuracy of a recipe, as the README of that name has them."""
    claim, row = MEASURED[recipe]
    accuracies = reports[claim][row]["eval_acc"]
    return FIGURES[readme].format(
        claim=claim,
        count=len(accuracies),
        mean=f"{100 * statistics.mean(accuracies):.2f} %",
        worst=f"{100 * min(accuracies):.2f} %",
    )


def _default(report: Report) -> str:
    (one,) = report.values()
    accuracies = one["eval_acc"]
    low, high = interval(accuracies)
    seeds = ", ".join(f"{seed}: {score:.2%}" for seed, score in zip(one["seeds"], accuracies))
    return (
        f"Mean {statistics.mean(accuracies):.3%} over {len(accuracies)} seeds (95 % interval "
        f"{low:.3%} to {high:.3%}), the worst {min(accuracies):.2%}. By seed: {seeds}."
    )


CLAIMS = (
    Compared(
        "default",
        "this project",
        "what five epochs without augmentation reach, seed by seed",
        "recipe `default`; each training is scored on the eval split once, after its last epoch. "
        "(Seed 1 on another kind of CPU is in docs/speed.md)",
        {"default": Row("recipe `default`", "default")},
        5,
        _default,
    ),
)

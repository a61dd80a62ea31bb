"""What the recipes reach over several seeds: the claim about `default`, the pages' figures."""

from collections.abc import Mapping

from reproduction.claims import Report, Verdict
from reproduction.comparison import Comparison, Row
from reproduction.significance import describe
from reproduction.texts import Text, fill, join

# Where the page measures a recipe with several seeds: the claim, and its row.
MEASURED = {
    "default": ("default", "default"),
    "tutorial": ("claimed", "adam"),
    "tutorial-resume": ("rate", "stepped"),
    "best": ("best", "best"),
}
ENGLISH = "[{count} seeds]({page}#{claim}): mean {mean:.2f}%, worst {worst:.2f}%"
CHINESE = "[{count} 个随机种子]({page}#{claim})：平均 {mean:.2f}%，最差 {worst:.2f}%"
# The pages that have these figures between marks; not all of them have each recipe's. Beside each,
# its link to the page on reproduction.
FIGURES = {
    "README.md": (ENGLISH, "REPRODUCTION.md"),
    "README.zh-CN.md": (CHINESE, "docs/zh/reproduction.md"),
    "docs/en/train.md": (ENGLISH, "../../REPRODUCTION.md"),
    "docs/zh/train.md": (CHINESE, "reproduction.md"),
}


def figures(page: str, recipe: str, reports: Mapping[str, Report]) -> str:
    """Return the seeds, mean and worst eval accuracy of a recipe as that page has them."""
    claim, row = MEASURED[recipe]
    scores = describe([100 * accuracy for accuracy in reports[claim][row]["eval_acc"]])
    text, link = FIGURES[page]
    return text.format(page=link, claim=claim, **scores)


def judge(report: Report) -> Verdict:
    (row,) = report.values()
    summary = fill("default", "summary", **describe(row["eval_acc"]))
    return Verdict(summary, details=[by_seed(row)])


def by_seed(row: Report) -> Text:
    """Return a sentence with the eval accuracy of each seed."""
    accuracies = (f"{n}: {accuracy:.2%}" for n, accuracy in zip(row["seeds"], row["eval_acc"]))
    return fill("common", "by_seed", accuracies=join(accuracies))


CLAIM = Comparison("default", judge, {"default": Row("recipe `default`", "default")}, seeds=5)

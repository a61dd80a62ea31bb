"""What the documents' ways of averaging and of stepping a schedule come to."""

import itertools
from pathlib import Path
from typing import Any

from markdown_tables import table

from reproduction.claims import Experiment, Report
from reproduction.workspace import Scale

SIZES = (100, 64, 96, 3000)
FIRST, LAST, STEPS = 0.01, 0.001, 100  # rates of the tutorial's part three; steps of a trial
NEVER, EACH = "never, as in the document", "after each batch"


def measure_averages(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Average the pretrained net's accuracy on the eval split batch by batch, and count it."""
    from paddle_mnist import MNIST, MnistDataset, evaluate

    evaluation = evaluate(MNIST(pretrained=True), MnistDataset("eval", data))
    correct = evaluation.labels == evaluation.predictions
    means = {}
    for size in SIZES:
        batches = [correct[start : start + size] for start in range(0, len(correct), size)]
        means[str(size)] = sum(batch.mean() for batch in batches) / len(batches)
    return {"counted": evaluation.accuracy, "images": len(correct), "mean_of_means": means}


def tabulate_averages(report: Report) -> str:
    counted = report["counted"]
    rows = (
        (size, mean, counted, round(mean - counted, 7) + 0.0)  # no minus before a zero
        for size, mean in report["mean_of_means"].items()
    )
    means = "mean of the batches' accuracies"
    return table({"batch size": "", means: ".4%", "counted": ".4%", "error": "+.4%"}, rows)


def largest_error(report: Report) -> dict[str, Any]:
    means = report["mean_of_means"].values()
    return {"error": max(abs(mean - report["counted"]) for mean in means)}


def measure_unstepped(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Return the rate at the end of some real steps, with Paddle's own schedule."""
    import paddle
    from paddle.nn.functional import cross_entropy

    from paddle_mnist import MNIST, BatchLoader, MnistDataset

    rates = {}
    for way in (NEVER, EACH):
        model, schedule = MNIST(), paddle.optimizer.lr.PolynomialDecay(FIRST, STEPS, LAST)
        optimizer = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
        loader = BatchLoader(MnistDataset("train", data), 2, shuffle=False)
        for images, labels in itertools.islice(loader.epoch(0), STEPS):
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.clear_grad()
            if way == EACH:
                schedule.step()
        rates[way] = optimizer.get_lr()
    return rates


def tabulate_unstepped(report: Report) -> str:
    columns = {"`scheduler.step()`": "", f"rate after {STEPS} steps of {STEPS}": "g"}
    return table(columns, zip(("never, as in the tutorial", EACH), report.values()))


CLAIMS = (
    Experiment(
        "averages",
        measure_averages,
        tabulate_averages,
        largest_error,
        settings={"sizes": SIZES},
        uses_pretrained=True,
    ),
    Experiment(
        "unstepped",
        measure_unstepped,
        tabulate_unstepped,
        lambda report: {"never": report[NEVER], "each": report[EACH]},
        settings={"first": FIRST, "last": LAST, "steps": STEPS},
    ),
)

"""What the documents' ways of counting and of stepping come to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.compared import Scale
from reproduction.shown import PRETRAINED, Shown

SIZES = (100, 64, 96, 3000)
FIRST, LAST, STEPS = 0.01, 0.001, 100  # rates of the tutorial's part three; steps of a trial


def averages(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """The pretrained net's answers on the eval split, averaged batch by batch, and counted."""
    from paddle_mnist import MNIST, MnistDataset, evaluate

    found = evaluate(MNIST(pretrained=True), MnistDataset("eval", data))
    right = found.labels == found.predictions
    means = {}
    for size in SIZES:
        batches = [right[start : start + size] for start in range(0, len(right), size)]
        means[str(size)] = sum(batch.mean() for batch in batches) / len(batches)
    return {"counted": found.accuracy, "images": len(right), "mean_of_means": means}


def averages_table(report: Mapping[str, Any]) -> str:
    rows = [
        "| batches of | mean of the batches' accuracies | counted | off by |",
        "|---|---|---|---|",
    ]
    counted = report["counted"]
    for size, mean in report["mean_of_means"].items():
        off = round(mean - counted, 7) + 0.0  # no minus before a zero
        rows.append(f"| {size} | {mean:.4%} | {counted:.4%} | {off:+.4%} |")
    return "\n".join(rows)


def averages_verdict(report: Mapping[str, Any]) -> str:
    off = max(abs(mean - report["counted"]) for mean in report["mean_of_means"].values())
    if not off:
        return "Confirmed of these."
    return (
        f"Refuted in general: off by up to {off:.3%}, and right only where the batches divide the "
        f"{report['images']:,} images, as the tutorial's 100 do."
    )


def unstepped(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """The rate at the end of some real steps, with Paddle's own schedule."""
    import itertools

    import paddle
    from paddle.nn.functional import cross_entropy

    from paddle_mnist import MNIST, BatchLoader, MnistDataset
    from paddle_mnist.data.loader import epoch_batches

    found = {}
    for way in ("never, as in the document", "after each batch"):
        model, schedule = MNIST(), paddle.optimizer.lr.PolynomialDecay(FIRST, STEPS, LAST)
        optimizer = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
        loader = BatchLoader(MnistDataset("train", data), 2, shuffle=False)
        for images, labels in itertools.islice(epoch_batches(loader, 0), STEPS):
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.clear_grad()
            if way == "after each batch":
                schedule.step()
        found[way] = optimizer.get_lr()
    return found


def unstepped_table(report: Mapping[str, Any]) -> str:
    rows = [f"| `scheduler.step()` | rate after {STEPS} steps of {STEPS} |", "|---|---|"]
    return "\n".join([*rows, *(f"| {way} | {rate:g} |" for way, rate in report.items())])


def unstepped_verdict(report: Mapping[str, Any]) -> str:
    never, each = report.values()
    judged = "Refuted" if abs(never - FIRST) < 1e-9 else "Confirmed"
    return f"{judged}: never stepped, the rate ends at {never:g}; stepped, at {each:g}."


CLAIMS = (
    Shown(
        "averages",
        "the tutorial, part two",
        "the accuracy is the mean of the batches' accuracies",
        f"{PRETRAINED} on the eval split, in batches of several sizes",
        averages,
        averages_table,
        averages_verdict,
        settings=SIZES,
        of_the_weights=True,
    ),
    Shown(
        "unstepped",
        "the tutorial, part three",
        f"`PolynomialDecay` lowers the rate from {FIRST} to {LAST}, without `scheduler.step()`",
        "real steps of Momentum with Paddle's own schedule",
        unstepped,
        unstepped_table,
        unstepped_verdict,
        settings=[FIRST, LAST, STEPS],
    ),
)

"""Weights drawn from U(-1, 1), as in the tutorial's part three, and from other distributions."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown_tables import table, table_of_rows

from reproduction.claims import SEED, Experiment, Report, Workspace

STEPS, DRAWS = 300, 5
EPOCHS = 3  # of the tutorial's part three, in which its weights might recover
RATE, BATCH = 0.01, 32  # the tutorial's part three
LAYERS = ("conv1", "conv2", "fc")


def initializers() -> dict[str, Any]:
    """Return the ways to draw weights; None is Paddle's default."""
    from paddle.nn import initializer

    return {
        "U(-1, 1), the tutorial's": initializer.Uniform(-1, 1),
        "U(-0.1, 0.1)": initializer.Uniform(-0.1, 0.1),
        "N(0, sd 0.01)": initializer.Normal(0.0, 0.01),
        "Xavier, uniform": initializer.XavierUniform(),
        "Kaiming, uniform": initializer.KaimingUniform(),
        "Paddle's default": None,
    }


def measure(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return, by initializer, what `_train_watched` sees of the first draw, and each accuracy.

    valid_acc: after some steps, of each draw. whole: of the tutorial's initializer alone, the same
    after all of the tutorial's epochs.
    """
    from paddle_mnist import MnistDataset, evaluate

    steps, draws, epochs = work.choose((STEPS, DRAWS, EPOCHS), (10, 2, 1))
    train, valid = (MnistDataset(mode, work.data.path) for mode in ("train", "valid"))

    def accuracies(initializer: Any, steps: int) -> list[float]:
        scores = []
        for seed in range(1, draws + 1):
            model = build_net(initializer, seed)
            model.fast_conv = 1
            for _ in first_steps(model, train, steps):
                pass
            scores.append(evaluate(model, valid).accuracy)
        return scores

    report: dict[str, Any] = {
        name: {
            **_train_watched(build_net(initializer, SEED), train, steps),
            "valid_acc": accuracies(initializer, steps),
        }
        for name, initializer in initializers().items()
    }
    name, initializer = next(iter(initializers().items()))
    whole = epochs * -(-len(train) // BATCH)
    report[name]["whole"] = {"steps": whole, "valid_acc": accuracies(initializer, whole)}
    return report


def build_net(initializer: Any, seed: int) -> Any:
    """Return a net with weights from an initializer and biases of 0; None: Paddle's defaults."""
    import paddle
    from paddle import nn

    from paddle_mnist import MNIST

    paddle.seed(seed)
    nn.initializer.set_global_initializer(initializer, initializer and nn.initializer.Constant())
    try:
        return MNIST()
    finally:
        nn.initializer.set_global_initializer(None)


def first_steps(model: Any, train: Any, steps: int) -> Iterator[Any]:
    """Train as the tutorial's part three does; yield each loss before the weights change."""
    import paddle

    from paddle_mnist import BatchLoader

    optimizer = paddle.optimizer.Momentum(RATE, parameters=model.parameters())
    loader = BatchLoader(train, BATCH, shuffle=False)
    batches = itertools.chain.from_iterable(loader.epoch(n) for n in itertools.count())
    for images, labels in itertools.islice(batches, steps):
        loss = paddle.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        yield loss
        optimizer.step()
        optimizer.clear_grad()


def _train_watched(model: Any, train: Any, steps: int) -> dict[str, Any]:
    """Train with Paddle's own layers, which a watch sees one by one; return what it sees.

    signals: the root mean square of each layer's first output, and of the first gradient of each
    layer's weights. dies_at: the first step with more than 99% of zeros after the second ReLU.
    """
    from paddle_mnist import watch

    model.fast_conv = 0
    losses, values, signals = [], [], {}
    with watch(model, on_finding=lambda finding: None) as watched:
        for loss in first_steps(model, train, steps):
            losses.append(round(loss.item(), 4))
            values.append(watched.values)
            signals = signals or _gradients(model)
    for layer in LAYERS:
        mean, deviation = (values[0][f"watch/{layer}/{what}"] for what in ("mean", "std"))
        signals[f"{layer} output"] = (mean**2 + deviation**2) ** 0.5
    zeros = (step for step, seen in enumerate(values, 1) if seen["watch/relu2/zeros"] > 0.99)
    return {"losses": losses, "signals": signals, "dies_at": next(zeros, None)}


def _gradients(model: Any) -> dict[str, float]:
    """Return the root mean square of the gradient of each layer's weights."""
    gradients = {name: getattr(model, name).weight.grad.numpy() for name in LAYERS}
    return {f"{name} gradient": float((grad**2).mean() ** 0.5) for name, grad in gradients.items()}


def tabulate(report: Report) -> str:
    def output(layer: str) -> Any:
        return lambda row, rows: row["signals"][f"{layer} output"]

    def accuracy(row: Any, rows: Any) -> str:
        return f"{min(row['valid_acc']):.1%} to {max(row['valid_acc']):.1%}"

    columns = {
        **{f"{layer} output": (".3g", output(layer)) for layer in LAYERS},
        "first loss": (".2f", lambda row, rows: row["losses"][0]),
        "last loss": (".2f", lambda row, rows: statistics.fmean(row["losses"][-10:])),
        "valid accuracy": ("", accuracy),
    }
    return table_of_rows("initialization", columns, report)


def find(report: Report) -> dict[str, Any]:
    """Return figures of the tutorial's initializer, which comes first, and who fails and trains.

    times: how much larger its first gradients are than those of Paddle's default, the last one.
    """
    first, *_, default = report.values()
    signals = first["signals"]
    gradients = [f"{layer} gradient" for layer in LAYERS]
    return {
        "draws": len(first["valid_acc"]),
        "steps": len(first["losses"]),
        "first_loss": first["losses"][0],
        "last_loss": first["losses"][-1],
        "chance": math.log(10),
        "dies_at": first["dies_at"],
        "outputs": [signals[f"{layer} output"] for layer in LAYERS],
        "times": [signals[name] / default["signals"][name] for name in gradients],
        "whole": first["whole"],
        "at_chance": [way for way, figures in report.items() if max(figures["valid_acc"]) < 0.2],
        "trained": [way for way, figures in report.items() if min(figures["valid_acc"]) > 0.8],
    }


CLAIM = Experiment("initialization", measure, tabulate, find)

# ------------------------------------------------------------------ the first steps, watched

COLLAPSE = 20


def measure_collapse(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the losses of the first steps, and what a watch of each step finds."""
    from paddle import nn

    from paddle_mnist import MnistDataset, watch

    model = build_net(nn.initializer.Uniform(), SEED)
    with watch(model, on_finding=lambda finding: None) as watched:
        train = MnistDataset("train", work.data.path)
        losses = [loss.item() for loss in first_steps(model, train, COLLAPSE)]
    findings = [dataclasses.asdict(finding) for finding in watched.findings]
    return {"losses": losses, "findings": findings}


def tabulate_collapse(report: Report) -> str:
    rows = ((f["step"], f["place"], f["message"]) for f in report["findings"])
    first, last = report["losses"][0], report["losses"][-1]
    note = f"The loss of step 1 is {first:.1f}, of step {len(report['losses'])} {last:.2f}."
    return table({"step": "d", "where": "", "what the watch says": ""}, rows, note)


COLLAPSED = Experiment("collapse", measure_collapse, tabulate_collapse)

"""Weights drawn from U(-1, 1), as in the tutorial's part three, and from other distributions."""

import argparse
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from markdown_tables import table

from paddle_mnist.mnist.images import Images
from paddle_mnist.plots.figure import BLUE, GREEN, ORANGE, SKY, VERMILION
from reproduction import charts
from reproduction.claims import Experiment, Report
from reproduction.workspace import Scale

STEPS, DRAWS = 300, 5
EPOCHS = 3  # of the tutorial's part three: what its weights are given to recover
VALID_IMAGES = 1_000  # that the trained nets are looked into with
RATE, BATCH = 0.01, 32  # the tutorial's part three


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


def measure(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Return, for each way to draw, the signals of the first step and what training makes of it.

    signals: the root mean square of each layer's output, and of the gradient of each layer's
    weights. gradients: the root mean squares of these at each step. Signals, losses, zeros and
    gradients are those of the first draw; what `_look_into` gives has an element for each draw.
    whole, of the tutorial's way alone: the same draws, after all of the tutorial's epochs.
    """
    from paddle_mnist import MnistDataset

    steps, draws, epochs = scale.choose((STEPS, DRAWS, EPOCHS), (10, 2, 1))
    train = MnistDataset("train", data)
    valid = MnistDataset("valid", data)

    def left_of(initializer: Any, seed: int, steps: int) -> dict[str, Any]:
        model = build_net(initializer, seed)
        model.fast_conv = 1
        for _ in first_steps(model, train, steps):
            pass
        return _look_into(model, valid)

    report: dict[str, Any] = {}
    for name, initializer in initializers().items():
        first = build_net(initializer, 1)
        record = _train_watched(first, train, steps)
        left = [_look_into(first, valid)]
        left += [left_of(initializer, seed, steps) for seed in range(2, draws + 1)]
        report[name] = {**record, **_by_name(left)}
    name, initializer = next(iter(initializers().items()))
    whole = epochs * -(-len(train) // BATCH)
    left = [left_of(initializer, seed, whole) for seed in range(1, draws + 1)]
    report[name]["whole"] = {"steps": whole, **_by_name(left)}
    return report


def _by_name(figures: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [figure[name] for figure in figures] for name in figures[0]}


def build_net(initializer: Any, seed: int) -> Any:
    """Return a net with weights drawn so and biases of 0, or by Paddle's default if None."""
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
    """Train as the tutorial's part three does; give each loss before the weights change."""
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
    """Train with Paddle's own layers, which a watch sees one by one; return what it sees."""
    from paddle_mnist import watch

    model.fast_conv = 0
    losses, values, gradients = [], [], []
    with watch(model, on_finding=lambda finding: None) as watched:
        for loss in first_steps(model, train, steps):
            losses.append(round(loss.item(), 4))
            values.append(watched.values)
            gradients.append(_gradients(model))
    signals = {}
    for layer in LAYERS:
        mean, deviation = (values[0][f"watch/{layer}/{what}"] for what in ("mean", "std"))
        signals[f"{layer} output"] = (mean**2 + deviation**2) ** 0.5
    return {
        "losses": losses,
        "signals": {**signals, **gradients[0]},
        "gradients": _by_name(gradients),
        "zeros": {
            layer: [value[f"watch/{layer}/zeros"] for value in values]
            for layer in ("relu1", "relu2")
        },
    }


def _look_into(model: Any, valid: Any) -> dict[str, Any]:
    """Return what is left of a net after its training.

    valid_acc, and of the first VALID_IMAGES of the valid split: awake, how many of conv2's channels
    give anything but 0 for any of them; answers, how many different ones; reached, the root mean
    squares of the gradients that reach conv1 and conv2.
    """
    import paddle
    from paddle import nn

    from paddle_mnist import evaluate

    model.fast_conv = 1
    numbers = np.arange(min(VALID_IMAGES, len(valid)))
    images, labels = map(paddle.to_tensor, valid.batch(numbers))
    logits = model(images)
    nn.functional.cross_entropy(logits, labels).backward()
    gradients = _gradients(model)
    maps = model.features(images).reshape([len(images), CHANNELS, -1])
    return {
        "valid_acc": evaluate(model, valid).accuracy,
        "awake": int((maps.numpy().max(axis=(0, 2)) > 0).sum()),
        "answers": len(set(logits.numpy().argmax(axis=1).tolist())),
        "reached": [gradients[f"{layer} gradient"] for layer in LAYERS[:2]],
    }


def _gradients(model: Any) -> dict[str, float]:
    """Return the root mean square of the gradient of each layer's weights."""
    gradients = {name: getattr(model, name).weight.grad.numpy() for name in LAYERS}
    return {f"{name} gradient": float((one**2).mean() ** 0.5) for name, one in gradients.items()}


# ------------------------------------------------------------------ table, figures, picture

LAYERS, CHANNELS = ("conv1", "conv2", "fc"), 20  # of conv2
SMOOTHED = 10  # steps, of the losses in the figure


def without_steps(report: Report) -> dict[str, Any]:
    """Return the report without what it holds of each step."""
    of_steps = ("losses", "gradients", "zeros")
    return {
        way: {name: value for name, value in one.items() if name not in of_steps}
        for way, one in report.items()
    }


def tabulate(report: Report) -> str:
    outputs = [f"{layer} output" for layer in LAYERS]
    columns = {
        "initialization": "",
        **dict.fromkeys(outputs, ".3g"),
        f"active channels of conv2 (of {CHANNELS})": "",
        "first loss": ".2f",
        "last loss": ".2f",
        "valid accuracy": "",
    }
    rows = (
        (
            way,
            *(one["signals"][name] for name in outputs),
            _range(one["awake"], "d"),
            one["losses"][0],
            sum(one["losses"][-10:]) / len(one["losses"][-10:]),
            _range(one["valid_acc"], ".1%"),
        )
        for way, one in report.items()
    )
    return table(columns, rows)


def _range(values: Sequence[float], specification: str) -> str:
    least, most = (f"{extreme(values):{specification}}" for extreme in (min, max))
    return least if least == most else f"{least} to {most}"


def _dies_at(one: Mapping[str, Any]) -> Optional[int]:
    """Return the first step with more than 99% of zeros after the second ReLU."""
    zeros = enumerate(one["zeros"]["relu2"], 1)
    return next((step for step, share in zeros if share > 0.99), None)


def find(report: Report) -> dict[str, Any]:
    """Return what the first way, the tutorial's, does to the net, and how the others train.

    times: how much larger its first gradients are than those of the last way, Paddle's default.
    whole: its nets after all of the tutorial's steps. cut: how many of them no gradient reaches
    any more; constant: whether these give every image the same answer, because conv2 gives 0;
    awake: how many channels of conv2 the others keep.
    """
    first, *_, default = report.values()
    signals, whole = first["signals"], first["whole"]
    gradients = [f"{layer} gradient" for layer in LAYERS]
    reached = [any(layers) for layers in whole["reached"]]
    lost = [draw for draw, is_reached in enumerate(reached) if not is_reached]
    return {
        "draws": len(first["awake"]),
        "steps": len(first["losses"]),
        "first_loss": first["losses"][0],
        "last_loss": first["losses"][-1],
        "chance": math.log(10),
        "dies_at": _dies_at(first),
        "outputs": [signals[f"{layer} output"] for layer in LAYERS],
        "times": [signals[name] / default["signals"][name] for name in gradients],
        "whole": whole,
        "cut": len(lost),
        "constant": all(whole["answers"][n] == 1 and not whole["awake"][n] for n in lost),
        "awake": [count for count, is_reached in zip(whole["awake"], reached) if is_reached],
        "at_chance": [way for way, one in report.items() if max(one["valid_acc"]) < 0.2],
        "trained": [way for way, one in report.items() if min(one["valid_acc"]) > 0.8],
    }


def figure(report: Report, data: Images) -> Any:
    """Draw the first draw's losses, zeros and signals, and the accuracy of every draw."""

    def lines(of: Callable[[Mapping[str, Any]], Sequence[float]]) -> dict[str, charts.Line]:
        drawn = {}
        for way, one in report.items():
            values = of(one)
            drawn[way] = charts.Line(range(1, len(values) + 1), values)
        return drawn

    signals = {
        way: charts.Line(LAYERS, [one["signals"][f"{layer} output"] for layer in LAYERS])
        for way, one in report.items()
    }
    accuracies = {way: one["valid_acc"] for way, one in report.items()}
    first = next(iter(report.values()))
    at, draws = _dies_at(first), len(first["awake"])
    finding = "How initializations train"
    if at:
        finding = f"U(-1, 1) kills the net within {at} steps; other initializations train"
    return charts.panels(
        finding,
        [
            charts.Curves(
                f"loss of the first draw, mean of {SMOOTHED} steps",
                "step",
                "nats",
                lines(lambda one: _smoothed(one["losses"])),
                "log",
            ),
            charts.Curves(
                "zeros after the second ReLU",
                "step",
                "share",
                lines(lambda one: one["zeros"]["relu2"]),
            ),
            charts.Curves(
                "outputs of the layers at step 1", "", "root mean square", signals, "log"
            ),
            charts.Seeds(
                f"accuracy of {draws} draws after {len(first['losses'])} steps",
                "valid accuracy",
                accuracies,
                "{:.0%}",
                with_names=False,
            ),
        ],
        (VERMILION, BLUE, GREEN, ORANGE, SKY, "black"),
    )


def _smoothed(losses: Sequence[float]) -> list[float]:
    """Return the mean of each loss and those before it, up to SMOOTHED."""
    return [
        statistics.fmean(losses[max(0, end - SMOOTHED) : end]) for end in range(1, len(losses) + 1)
    ]


# ------------------------------------------------------------------ the first steps, watched

COLLAPSE = 20


def measure_collapse(data: Images, args: argparse.Namespace) -> dict:
    """Return the losses of the first steps, and the findings of a watch that looks at each."""
    from paddle import nn

    from paddle_mnist import MnistDataset, watch

    model = build_net(nn.initializer.Uniform(), args.seed)
    with watch(model, on_finding=lambda finding: None) as watched:
        train = MnistDataset("train", data.path)
        losses = [loss.item() for loss in first_steps(model, train, COLLAPSE)]
    findings = [dataclasses.asdict(finding) for finding in watched.findings]
    return {"seed": args.seed, "losses": losses, "findings": findings}


def tabulate_collapse(report: dict) -> str:
    rows = ((f["step"], f["place"], f["message"]) for f in report["findings"])
    first, last = report["losses"][0], report["losses"][-1]
    note = f"The loss of step 1 is {first:.1f}, of step {len(report['losses'])} {last:.2f}."
    return table({"step": "d", "where": "", "what the watch says": ""}, rows, note)


CLAIM = Experiment("initialization", measure, tabulate, find, figure, summarize=without_steps)

"""Weights drawn from U(-1, 1): why the net dies, and what would have worked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.compared import Scale
from reproduction.shown import Shown

STEPS = 300
RATE, BATCH = 0.01, 32  # the tutorial's part three


def _ways() -> dict[str, Any]:
    from paddle.nn import initializer

    return {
        "U(-1, 1), the tutorial's": initializer.Uniform(-1, 1),
        "U(-0.1, 0.1)": initializer.Uniform(-0.1, 0.1),
        "N(0, 0.01)": initializer.Normal(0.0, 0.01),
        "Xavier, uniform": initializer.XavierUniform(),
        "Kaiming, uniform": initializer.KaimingUniform(),
        "Paddle's default": None,
    }


def measured(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """For each way to draw: signals of the first step, layer by layer, and what training makes.

    signals: the root mean square of each layer's output, and of the gradient at each parameter.
    """
    found = {}
    for name, drawn in _ways().items():
        found[name] = _trained(data, drawn, 10 if scale.quick else STEPS)
    return found


def _trained(data: str, drawn: Any, steps: int) -> dict[str, Any]:
    import itertools

    import paddle
    from paddle import nn

    from paddle_mnist import MNIST, BatchLoader, MnistDataset, evaluate, watch
    from paddle_mnist.data.dataset import epoch_batches

    paddle.seed(1)
    nn.initializer.set_global_initializer(drawn, drawn and nn.initializer.Constant())
    try:
        model = MNIST()
    finally:
        nn.initializer.set_global_initializer(None)
    optimizer = paddle.optimizer.Momentum(RATE, parameters=model.parameters())
    loader = BatchLoader(MnistDataset("train", data), BATCH, shuffle=False)
    losses, signals = [], {}
    for images, labels in itertools.islice(epoch_batches(loader, 0), steps):
        with watch(model, tell=lambda finding: None) as seen:
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
        if not losses:
            values = seen.values
            for layer in ("conv1", "conv2", "fc"):
                mean, deviation = (values[f"watch/{layer}/{what}"] for what in ("mean", "std"))
                signals[f"{layer} output"] = (mean**2 + deviation**2) ** 0.5
            for layer in ("conv1", "conv2", "fc"):
                gradient = getattr(model, layer).weight.grad.numpy()
                signals[f"{layer} gradient"] = float((gradient**2).mean() ** 0.5)
        losses.append(loss.item())
        optimizer.step()
        optimizer.clear_grad()
    model.eval()
    return {
        "losses": [round(loss, 4) for loss in losses],
        "signals": signals,
        "valid_acc": evaluate(model, MnistDataset("valid", data)).accuracy,
    }


def table(report: Mapping[str, Any]) -> str:
    names = list(next(iter(report.values()))["signals"])
    rows = [
        "| weights from | " + " | ".join(names) + " | first loss | last loss | valid accuracy |",
        "|---|" + "---|" * (len(names) + 3),
    ]
    for way, one in report.items():
        signals = " | ".join(f"{one['signals'][name]:.2g}" for name in names)
        first, last = one["losses"][0], sum(one["losses"][-10:]) / len(one["losses"][-10:])
        rows.append(f"| {way} | {signals} | {first:.2f} | {last:.2f} | {one['valid_acc']:.1%} |")
    steps = len(next(iter(report.values()))["losses"])
    note = (
        f"Root mean squares at the first step; {steps} steps of {BATCH} images, Momentum {RATE}; "
        "the last loss is the mean of ten."
    )
    return "\n".join([*rows, "", note])


def verdict(report: Mapping[str, Any]) -> str:
    ways = list(report)
    dead = [way for way in ways if report[way]["valid_acc"] < 0.2]
    fine = [way for way in ways if report[way]["valid_acc"] > 0.8]
    first, last = report[ways[0]], report[ways[-1]]
    times = first["signals"]["conv1 gradient"] / last["signals"]["conv1 gradient"]
    return (
        f"From U(-1, 1) the loss begins at {first['losses'][0]:.0f}: signals grow from layer to "
        f"layer, the first gradients are {times:.0f} times those of Paddle's default, ReLUs go to "
        f"zero and stay there, and what is left is chance. Dead: {', '.join(dead) or 'none'}. "
        f"Trains: {', '.join(fine) or 'none'}."
    )


def figure(report: Mapping[str, Any]) -> Any:
    from paddle_mnist import figures

    losses = {way: one["losses"] for way, one in report.items()}
    return figures.lines(losses, "step", "loss (nats)")


CLAIMS = (
    Shown(
        "initialization",
        "the tutorial, part three",
        "weights drawn from U(-1, 1), biases 0",
        "the net's first steps with these and other weights",
        measured,
        table,
        verdict,
        figure,
    ),
)

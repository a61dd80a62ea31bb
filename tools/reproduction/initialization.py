"""Weights drawn from U(-1, 1): why the net dies, and what would have worked."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np

from paddle_mnist.data import Data
from reproduction.compared import Scale
from reproduction.shown import Shown

STEPS, DRAWS = 300, 5
LOOKED_AT = 1_000  # images of the valid split
LAYERS, CHANNELS = ("conv1", "conv2", "fc"), 20  # of conv2
RATE, BATCH = 0.01, 32  # the tutorial's part three


def _ways() -> dict[str, Any]:
    from paddle.nn import initializer

    return {
        "U(-1, 1), the tutorial's": initializer.Uniform(-1, 1),
        "U(-0.1, 0.1)": initializer.Uniform(-0.1, 0.1),
        "N(0, sd 0.01)": initializer.Normal(0.0, 0.01),
        "Xavier, uniform": initializer.XavierUniform(),
        "Kaiming, uniform": initializer.KaimingUniform(),
        "Paddle's default": None,
    }


def measured(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """For each way to draw: signals of the first step, layer by layer, and what training makes.

    signals: the root mean square of each layer's output, and of the gradient at each layer's
    weights. gradients: of these the root mean squares at each step. awake: of conv2's channels, how
    many give anything but 0 anywhere, in the end. Signals, losses, zeros and gradients are those of
    the first draw; the others have an element for each.
    """
    steps, draws = (10, 2) if scale.quick else (STEPS, DRAWS)
    found = {}
    for name, drawn in _ways().items():
        record: dict[str, Any] = {"losses": [], "signals": {}, "gradients": {}, "zeros": {}}
        ends = [_trained(data, drawn, steps, 1, record)]
        ends += [_trained(data, drawn, steps, seed) for seed in range(2, draws + 1)]
        found[name] = {**record, **{key: [end[key] for end in ends] for key in ends[0]}}
    return found


def _trained(
    data: str, drawn: Any, steps: int, seed: int, record: Optional[dict[str, Any]] = None
) -> dict[str, Any]:
    """What becomes of a draw. record: where each step is noted, then by Paddle's own layers."""
    import itertools

    import paddle
    from paddle import nn

    from paddle_mnist import MNIST, BatchLoader, MnistDataset, evaluate, watch
    from paddle_mnist.data.dataset import epoch_batches

    paddle.seed(seed)
    nn.initializer.set_global_initializer(drawn, drawn and nn.initializer.Constant())
    try:
        model = MNIST()
    finally:
        nn.initializer.set_global_initializer(None)
    model.fast_conv = 1 if record is None else 0
    optimizer = paddle.optimizer.Momentum(RATE, parameters=model.parameters())
    loader = BatchLoader(MnistDataset("train", data), BATCH, shuffle=False)
    for images, labels in itertools.islice(epoch_batches(loader, 0), steps):
        if record is None:
            nn.functional.cross_entropy(model(images), labels).backward()
        else:
            with watch(model, tell=lambda finding: None) as seen:
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
            _note(record, loss.item(), seen.values, _gradients(model))
        optimizer.step()
        optimizer.clear_grad()
    model.eval()
    model.fast_conv = 1
    valid = MnistDataset("valid", data)
    images, _ = valid.batch(np.arange(min(LOOKED_AT, len(valid))))
    with paddle.no_grad():
        maps = model.features(paddle.to_tensor(images)).reshape([len(images), CHANNELS, -1])
    return {
        "valid_acc": evaluate(model, valid).accuracy,
        "awake": int((maps.numpy().max(axis=(0, 2)) > 0).sum()),
    }


def _note(
    record: dict[str, Any],
    loss: float,
    values: Mapping[str, float],
    gradients: Mapping[str, float],
) -> None:
    if not record["losses"]:
        for layer in LAYERS:
            mean, deviation = (values[f"watch/{layer}/{what}"] for what in ("mean", "std"))
            record["signals"][f"{layer} output"] = (mean**2 + deviation**2) ** 0.5
        record["signals"] |= gradients
    record["losses"].append(round(loss, 4))
    for name, one in gradients.items():
        record["gradients"].setdefault(name, []).append(one)
    for layer in ("relu1", "relu2"):
        record["zeros"].setdefault(layer, []).append(values[f"watch/{layer}/zeros"])


def _gradients(model: Any) -> dict[str, float]:
    """The root mean square of the gradient at each layer's weights."""
    gradients = {name: getattr(model, name).weight.grad.numpy() for name in LAYERS}
    return {f"{name} gradient": float((one**2).mean() ** 0.5) for name, one in gradients.items()}


def table(report: Mapping[str, Any]) -> str:
    names = list(next(iter(report.values()))["signals"])
    rows = [
        "| weights from | "
        + " | ".join(names)
        + f" | of conv2's {CHANNELS} channels awake at the end | conv1 and conv2 gradients at the "
        "end | first loss | last loss | valid accuracy |",
        "|---|" + "---|" * (len(names) + 5),
    ]
    for way, one in report.items():
        signals = " | ".join(f"{one['signals'][name]:.2g}" for name in names)
        first, last = one["losses"][0], sum(one["losses"][-10:]) / len(one["losses"][-10:])
        awake = _span(one["awake"], "d")
        gradients = ", ".join(f"{_last(one, layer):.2g}" for layer in ("conv1", "conv2"))
        rows.append(
            f"| {way} | {signals} | {awake} | {gradients} | {first:.2f} | {last:.2f} | "
            f"{_span(one['valid_acc'], '.1%')} |"
        )
    first = next(iter(report.values()))
    steps, draws = len(first["losses"]), len(first["awake"])
    note = (
        f"Root mean squares at the first step; {steps} steps of {BATCH} images, Momentum {RATE}; "
        f"the last loss is the mean of ten. Channels awake (on {LOOKED_AT:,} valid images) and "
        f"accuracies: of {draws} draws; the rest is the first's."
    )
    return "\n".join([*rows, "", note])


def _span(values: list[float], form: str) -> str:
    least, most = (f"{chosen(values):{form}}" for chosen in (min, max))
    return least if least == most else f"{least} to {most}"


def _last(one: Mapping[str, Any], layer: str) -> float:
    return one["gradients"][f"{layer} gradient"][-1]


def verdict(report: Mapping[str, Any]) -> str:
    ways = list(report)
    dead = [way for way in ways if max(report[way]["valid_acc"]) < 0.2]
    fine = [way for way in ways if min(report[way]["valid_acc"]) > 0.8]
    first, last = report[ways[0]], report[ways[-1]]
    outputs = [first["signals"][f"{layer} output"] for layer in LAYERS]
    times = (
        first["signals"][f"{layer} gradient"] / last["signals"][f"{layer} gradient"]
        for layer in LAYERS
    )
    asleep, draws = first["awake"].count(0), len(first["awake"])
    zeros = first["zeros"]["relu2"]
    at = next((step for step, share in enumerate(zeros, 1) if share > 0.99), None)
    died = (
        f"more than 99 % of the second ReLU's outputs are 0 from step {at} on"
        if at
        else (f"{zeros[-1]:.2%} of the second ReLU's outputs are 0 at the end")
    )
    stuck = max(_last(first, layer) for layer in ("conv1", "conv2"))
    most = " at most" * (stuck > 0)
    forever = f"At the last step the gradients of both convolutions are {stuck:.2g}{most}"
    if stuck == 0 and asleep:
        forever += (
            ": through a ReLU whose outputs are all 0 nothing comes back that could wake it, and "
            "what is left is the last layer's bias, one answer for every image, which is chance"
        )
    judged = "Refuted" if ways[0] in dead else "Confirmed"
    return (
        f"{judged} as a way to begin. A weight of U(-1, 1) has a standard deviation of 0.58, and a "
        "sum over the 500 inputs of conv2 or the 980 of fc grows by its root: the signal goes "
        f"{' -> '.join(f'{one:.2g}' for one in outputs)} through the "
        f"layers, the loss begins at {first['losses'][0]:.0f}, the first gradients (conv1, conv2, "
        f"fc) are {', '.join(f'{one:.0f}' for one in times)} times those of Paddle's default, and "
        "the first steps throw the weights to where "
        f"{died}; the loss ends at {first['losses'][-1]:.2f} (chance: "
        f"{math.log(10):.2f}). In {asleep} of {draws} draws no channel of conv2 gives anything "
        f"but 0 any more, in none more than {max(first['awake'])} of {CHANNELS} do. {forever}. At "
        "chance in each draw: {', '.join(dead) or 'none'}. Trains "
        f"in each draw: {', '.join(fine) or 'none'}."
    )


def figure(report: Mapping[str, Any], data: Data) -> Any:
    from paddle_mnist import figures

    def at_step_1(what: str) -> dict[str, dict[str, float]]:
        return {
            way: {
                name.removesuffix(f" {what}"): value
                for name, value in one["signals"].items()
                if name.endswith(what)
            }
            for way, one in report.items()
        }

    return figures.panels(
        {
            ("step", "loss (nats)"): {way: one["losses"] for way, one in report.items()},
            ("step", "zeros after the second ReLU (share)"): {
                way: one["zeros"]["relu2"] for way, one in report.items()
            },
            ("step", "gradients of conv2's weights, root mean square"): {
                way: one["gradients"]["conv2 gradient"] for way, one in report.items()
            },
            ("outputs of the layers, at step 1", "root mean square"): at_step_1("output"),
            ("gradients of the weights, at step 1", "root mean square of them"): at_step_1(
                "gradient"
            ),
        }
    )


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
        settings=[STEPS, DRAWS, RATE, BATCH, LOOKED_AT],
        uses=(_ways, _trained, _note, _gradients),
    ),
)

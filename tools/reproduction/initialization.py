"""Weights drawn from U(-1, 1): why the net dies, and what would have worked."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from paddle_mnist.mnist.arrays import Data
from reproduction.compared import Scale
from reproduction.shown import Shown

STEPS, DRAWS = 300, 5
EPOCHS = 3  # the tutorial's part three, and so what its weights are given to recover
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


def measure(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """For each way to draw: signals of the first step, layer by layer, and what training makes.

    signals: the root mean square of each layer's output, and of the gradient at each layer's
    weights. gradients: of these the root mean squares at each step. Signals, losses, zeros and
    gradients are those of the first draw; what `_trained` gives has an element for each. whole, of
    the tutorial's way alone: the same draws, after all of the tutorial's epochs.
    """
    from paddle_mnist import MnistDataset

    steps, draws, epochs = (10, 2, 1) if scale.quick else (STEPS, DRAWS, EPOCHS)
    found = {}
    for name, drawn in _ways().items():
        record: dict[str, Any] = {"losses": [], "signals": {}, "gradients": {}, "zeros": {}}
        ends = [_trained(data, drawn, steps, 1, record)]
        ends += [_trained(data, drawn, steps, seed) for seed in range(2, draws + 1)]
        found[name] = {**record, **_by_figure(ends)}
    name, drawn = next(iter(_ways().items()))
    whole = epochs * -(-len(MnistDataset("train", data)) // BATCH)
    ends = [_trained(data, drawn, whole, seed) for seed in range(1, draws + 1)]
    found[name]["whole"] = {"steps": whole, **_by_figure(ends)}
    return found


def _by_figure(ends: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [end[key] for end in ends] for key in ends[0]}


def net_of(drawn: Any, seed: int) -> Any:
    """The net, its weights drawn so, its biases 0; by Paddle's default if drawn is None."""
    import paddle
    from paddle import nn

    from paddle_mnist import MNIST

    paddle.seed(seed)
    nn.initializer.set_global_initializer(drawn, drawn and nn.initializer.Constant())
    try:
        return MNIST()
    finally:
        nn.initializer.set_global_initializer(None)


def _trained(
    data: str, drawn: Any, steps: int, seed: int, record: Optional[dict[str, Any]] = None
) -> dict[str, Any]:
    """What becomes of a draw. record: where each step is noted, then by Paddle's own layers.

    valid_acc, and of LOOKED_AT images of the valid split: awake, how many of conv2's channels give
    anything but 0 for any of them; answers, how many different ones; reached, the root mean squares
    of the gradients that come back to conv1 and conv2.
    """
    import paddle
    from paddle import nn

    from paddle_mnist import BatchLoader, MnistDataset, evaluate, watch
    from paddle_mnist.data.loader import epoch_batches

    model = net_of(drawn, seed)
    model.fast_conv = 1 if record is None else 0
    optimizer = paddle.optimizer.Momentum(RATE, parameters=model.parameters())
    loader = BatchLoader(MnistDataset("train", data), BATCH, shuffle=False)
    batches = itertools.chain.from_iterable(epoch_batches(loader, n) for n in itertools.count())
    for images, labels in itertools.islice(batches, steps):
        if record is None:
            nn.functional.cross_entropy(model(images), labels).backward()
        else:
            with watch(model, on_finding=lambda finding: None) as seen:
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
            _note(record, loss.item(), seen.values, _gradients(model))
        optimizer.step()
        optimizer.clear_grad()
    model.fast_conv = 1
    valid = MnistDataset("valid", data)
    images, labels = map(paddle.to_tensor, valid.batch(np.arange(min(LOOKED_AT, len(valid)))))
    logits = model(images)
    nn.functional.cross_entropy(logits, labels).backward()
    gradients = _gradients(model)
    maps = model.features(images).reshape([len(images), CHANNELS, -1])
    return {
        "valid_acc": evaluate(model, valid).accuracy,
        "awake": int((maps.numpy().max(axis=(0, 2)) > 0).sum()),
        "answers": len(set(logits.numpy().argmax(axis=1))),
        "reached": [gradients[f"{layer} gradient"] for layer in LAYERS[:2]],
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
        + f" | of conv2's {CHANNELS} channels awake at the end | gradients that reach conv1, conv2 "
        "at the end | first loss | last loss | valid accuracy |",
        "|---|" + "---|" * (len(names) + 5),
    ]
    for way, one in report.items():
        signals = " | ".join(f"{one['signals'][name]:.2g}" for name in names)
        first, last = one["losses"][0], sum(one["losses"][-10:]) / len(one["losses"][-10:])
        reached = ", ".join(_span(layer, ".2g") for layer in zip(*one["reached"]))
        rows.append(
            f"| {way} | {signals} | {_span(one['awake'], 'd')} | {reached} | {first:.2f} | "
            f"{last:.2f} | {_span(one['valid_acc'], '.1%')} |"
        )
    first = next(iter(report.values()))
    steps, draws = len(first["losses"]), len(first["awake"])
    note = (
        f"Root mean squares; signals and losses of the first of {draws} draws, the signals at the "
        f"first step; {steps} steps of {BATCH} images, Momentum {RATE}; the last loss is the mean "
        f"of ten. What is told of the end is of all draws, channels and gradients by {LOOKED_AT:,} "
        "valid images."
    )
    return "\n".join([*rows, "", note])


def _span(values: Sequence[float], form: str) -> str:
    least, most = (f"{chosen(values):{form}}" for chosen in (min, max))
    return least if least == most else f"{least} to {most}"


def _left(one: Mapping[str, Any]) -> str:
    """What is left of the net, by draws: those that nothing comes back to any more; the others."""
    cut = [draw for draw, layers in enumerate(one["reached"]) if not any(layers)]
    count, others = len(one["reached"]), [i for i in range(len(one["reached"])) if i not in cut]
    told = f"in {len(cut)} of {count} draws no gradient reaches the convolutions any more"
    if cut and all(one["answers"][draw] == 1 and not one["awake"][draw] for draw in cut):
        told += (
            ", for conv2 gives 0 for every image; what is left is the last layer's bias, one "
            "answer for all, which is chance"
        )
    if others:
        awake, answers = ([one[key][draw] for draw in others] for key in ("awake", "answers"))
        told += (
            f"; in the other{'s' * (len(others) > 1)}, channels of conv2 that still give anything: "
            f"{_span(awake, 'd')} of {CHANNELS}, different answers: {_span(answers, 'd')}"
        )
    return f"{told}; over all draws the valid accuracy is {_span(one['valid_acc'], '.1%')}"


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
    zeros = first["zeros"]["relu2"]
    at = next((step for step, share in enumerate(zeros, 1) if share > 0.99), None)
    died = (
        f"more than 99 % of the second ReLU's outputs are 0 from step {at} on"
        if at
        else f"{zeros[-1]:.2%} of the second ReLU's outputs are 0 at the end"
    )
    judged = "Confirmed: it leaves chance"
    if ways[0] in dead:
        judged = f"Refuted: it stays at chance, in each of {len(first['awake'])} draws"
    return (
        f"{judged}. Such a weight has a standard deviation of 0.58, and a "
        "sum over the 500 inputs of conv2 or the 980 of fc grows by its root: the signal goes "
        f"{' -> '.join(f'{one:.2g}' for one in outputs)} through the "
        f"layers, the loss begins at {first['losses'][0]:.0f}, the first gradients (conv1, conv2, "
        f"fc) are {', '.join(f'{one:.0f}' for one in times)} times those of Paddle's default, and "
        f"the first steps throw the weights to where {died}; the loss goes to "
        f"{first['losses'][-1]:.2f} (chance: {math.log(10):.2f}). After {len(first['losses'])} "
        f"steps, {_left(first)}. After the tutorial's own length, {first['whole']['steps']:,} "
        f"steps, {_left(first['whole'])}. At chance in each draw after {len(first['losses'])} "
        f"steps: {'; '.join(dead) or 'none'}. Trains in each draw: {'; '.join(fine) or 'none'}."
    )


def figure(report: Mapping[str, Any], data: Data) -> Any:
    from paddle_mnist.plots import charts

    def at_step_1(what: str) -> dict[str, dict[str, float]]:
        return {
            way: {
                name.removesuffix(f" {what}"): value
                for name, value in one["signals"].items()
                if name.endswith(what)
            }
            for way, one in report.items()
        }

    return charts.panels(
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
        "the net trains with weights drawn from U(-1, 1), biases 0",
        "its first steps with these and other weights",
        measure,
        table,
        verdict,
        figure,
        settings=[STEPS, DRAWS, EPOCHS, RATE, BATCH, LOOKED_AT],
        uses=(_ways, net_of, _trained, _note, _gradients),
    ),
)

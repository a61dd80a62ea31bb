"""Weights drawn from U(-1, 1): why the net dies, and what works instead."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from markdown_tables import table

from paddle_mnist.mnist.arrays import Data
from reproduction.claims import Report, Scale, Verdict
from reproduction.experiment import Experiment
from reproduction.texts import CONFIRMED, REFUTED, fill, join, named

STEPS, DRAWS = 300, 5
EPOCHS = 3  # of the tutorial's part three: what its weights are given to recover
VALID_IMAGES = 1_000  # that the trained nets are looked into with
LAYERS, CHANNELS = ("conv1", "conv2", "fc"), 20  # of conv2
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

    steps, draws, epochs = scale.choose((STEPS, DRAWS, EPOCHS), (10, 2, 1), (2, 1, 0))
    train = MnistDataset("train", data)
    valid = MnistDataset("valid", data, 40 if scale.probe else None)

    def figures_of_draws(initializer: Any, steps: int, record: Optional[dict]) -> dict[str, Any]:
        figures: dict[str, list[Any]] = {}
        for seed in range(1, draws + 1):
            model = build_net(initializer, seed)
            _train(model, train, steps, record if seed == 1 else None)
            for name, figure in _look_into(model, valid).items():
                figures.setdefault(name, []).append(figure)
        return figures

    report: dict[str, Any] = {}
    for name, initializer in initializers().items():
        record: dict[str, Any] = {"losses": [], "signals": {}, "gradients": {}, "zeros": {}}
        figures = figures_of_draws(initializer, steps, record)
        report[name] = {**record, **figures}
    name, initializer = next(iter(initializers().items()))
    whole = epochs * -(-len(train) // BATCH)
    figures = figures_of_draws(initializer, whole, None)
    report[name]["whole"] = {"steps": whole, **figures}
    return report


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


def train_steps(
    model: Any, train: Any, steps: int, after_backward: Callable[[Any], None] = lambda loss: None
) -> None:
    """Train as the tutorial's part three, calling `after_backward` with the loss of each step."""
    import paddle
    from paddle import nn

    from paddle_mnist import BatchLoader
    from paddle_mnist.data.loader import epoch_batches

    optimizer = paddle.optimizer.Momentum(RATE, parameters=model.parameters())
    loader = BatchLoader(train, BATCH, shuffle=False)
    batches = itertools.chain.from_iterable(epoch_batches(loader, n) for n in itertools.count())
    for images, labels in itertools.islice(batches, steps):
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        after_backward(loss)
        optimizer.step()
        optimizer.clear_grad()


def _train(model: Any, train: Any, steps: int, record: Optional[dict[str, Any]]) -> None:
    """Train, and put the figures of each step into the record if there is one.

    They are those of Paddle's own layers, which a watch sees one by one.
    """
    from paddle_mnist import watch

    if record is None:
        model.fast_conv = 1
        train_steps(model, train, steps)
    else:
        model.fast_conv = 0
        with watch(model, on_finding=lambda finding: None) as watched:
            train_steps(model, train, steps, lambda loss: _note(record, loss, watched, model))


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


def _note(record: dict[str, Any], loss: Any, watched: Any, model: Any) -> None:
    values, gradients = watched.values, _gradients(model)
    if not record["losses"]:
        for layer in LAYERS:
            mean, deviation = (values[f"watch/{layer}/{what}"] for what in ("mean", "std"))
            record["signals"][f"{layer} output"] = (mean**2 + deviation**2) ** 0.5
        record["signals"] |= gradients
    record["losses"].append(round(loss.item(), 4))
    for name, gradient in gradients.items():
        record["gradients"].setdefault(name, []).append(gradient)
    for layer in ("relu1", "relu2"):
        record["zeros"].setdefault(layer, []).append(values[f"watch/{layer}/zeros"])


def _gradients(model: Any) -> dict[str, float]:
    """Return the root mean square of the gradient of each layer's weights."""
    gradients = {name: getattr(model, name).weight.grad.numpy() for name in LAYERS}
    return {f"{name} gradient": float((one**2).mean() ** 0.5) for name, one in gradients.items()}


def tabulate(report: Report) -> str:
    first = next(iter(report.values()))
    names = list(first["signals"])
    columns = {
        "weights from": "",
        **dict.fromkeys(names, ".2g"),
        f"active channels of conv2 at the end (of {CHANNELS})": "",
        "gradients that reach conv1, conv2 at the end": "",
        "first loss": ".2f",
        "last loss": ".2f",
        "valid accuracy": "",
    }
    rows = (
        (
            way,
            *(one["signals"][name] for name in names),
            _range(one["awake"], "d"),
            ", ".join(_range(layer, ".2g") for layer in zip(*one["reached"])),
            one["losses"][0],
            sum(one["losses"][-10:]) / len(one["losses"][-10:]),
            _range(one["valid_acc"], ".1%"),
        )
        for way, one in report.items()
    )
    note = (
        f"Root mean squares; signals and losses of the first of {len(first['awake'])} draws, the "
        f"signals at the first step; {len(first['losses'])} steps of {BATCH} images, Momentum "
        f"{RATE}; the last loss is the mean of ten. Figures of the end are of all draws, channels "
        f"and gradients with {VALID_IMAGES:,} valid images."
    )
    return table(columns, rows, note)


def _range(values: Sequence[float], specification: str) -> str:
    least, most = (f"{chosen(values):{specification}}" for chosen in (min, max))
    return least if least == most else f"{least} to {most}"


def _what_is_left(one: Mapping[str, Any]) -> str:
    """Describe the draws that no gradient reaches any more, and the others."""
    count = len(one["reached"])
    cut = [draw for draw, layers in enumerate(one["reached"]) if not any(layers)]
    others = [draw for draw in range(count) if draw not in cut]
    text = f"in {len(cut)} of {count} draws no gradient reaches the convolutions any more"
    if cut and all(one["answers"][draw] == 1 and not one["awake"][draw] for draw in cut):
        text += (
            ", because conv2 gives 0 for every image; what is left is the last layer's bias, one "
            "answer for all, which is chance"
        )
    if others:
        awake, answers = ([one[key][draw] for draw in others] for key in ("awake", "answers"))
        text += (
            f"; in the other{'s' * (len(others) > 1)}, active channels of conv2: "
            f"{_range(awake, 'd')} of {CHANNELS}, different answers: {_range(answers, 'd')}"
        )
    return f"{text}; over all draws the valid accuracy is {_range(one['valid_acc'], '.1%')}"


def judge(report: Report) -> Verdict:
    ways = list(report)
    first, last = report[ways[0]], report[ways[-1]]
    dead = [way for way in ways if max(report[way]["valid_acc"]) < 0.2]
    whole, steps = first["whole"], len(first["losses"])
    result = "at_chance" if ways[0] in dead else "above_chance"
    summary = fill(
        "initialization",
        "summary",
        result=fill("initialization", result, draws=len(first["awake"])),
        loss=first["losses"][0],
        steps=whole["steps"],
        least=min(whole["valid_acc"]),
        most=max(whole["valid_acc"]),
        short=steps,
        dead=join(map(named, dead), "semicolon"),
    )
    outputs = (f"{first['signals'][f'{layer} output']:.2g}" for layer in LAYERS)
    times = (
        f"{first['signals'][f'{layer} gradient'] / last['signals'][f'{layer} gradient']:.0f}"
        for layer in LAYERS
    )
    zeros = first["zeros"]["relu2"]
    at = next((step for step, share in enumerate(zeros, 1) if share > 0.99), None)
    died = (
        f"more than 99 % of the second ReLU's outputs are 0 from step {at} on"
        if at
        else f"{zeros[-1]:.2%} of the second ReLU's outputs are 0 at the end"
    )
    fine = [way for way in ways if min(report[way]["valid_acc"]) > 0.8]
    details = (
        "Such a weight has a standard deviation of 0.58, and a sum over the 500 inputs of conv2 or "
        f"the 980 of fc grows by their root: the signal goes {' -> '.join(outputs)} through the "
        f"layers, the first gradients (conv1, conv2, fc) are {', '.join(times)} times those of "
        f"Paddle's default, and the first steps throw the weights to where {died}; the loss goes "
        f"to {first['losses'][-1]:.2f} (chance: {math.log(10):.2f}). After {steps} steps, "
        f"{_what_is_left(first)}. After the tutorial's own length, {whole['steps']:,} steps, "
        f"{_what_is_left(whole)}. Trains in each draw: {'; '.join(fine) or 'none'}."
    )
    return Verdict(summary, REFUTED if ways[0] in dead else CONFIRMED, details)


def figure(report: Report, data: Data) -> Any:
    from paddle_mnist.plots import charts

    panels = {
        ("step", "loss (nats)"): {way: one["losses"] for way, one in report.items()},
        ("step", "zeros after the second ReLU (share)"): {
            way: one["zeros"]["relu2"] for way, one in report.items()
        },
        ("step", "gradients of conv2's weights, root mean square"): {
            way: one["gradients"]["conv2 gradient"] for way, one in report.items()
        },
    }
    for what, title, label in (
        ("output", "outputs of the layers", "root mean square"),
        ("gradient", "gradients of the weights", "root mean square of them"),
    ):
        panels[f"{title}, at step 1", label] = {
            way: {layer: one["signals"][f"{layer} {what}"] for layer in LAYERS}
            for way, one in report.items()
        }
    return charts.panels(panels)


CLAIM = Experiment(
    "initialization",
    judge,
    measure,
    tabulate,
    figure,
    settings={
        "steps": STEPS,
        "draws": DRAWS,
        "epochs": EPOCHS,
        "rate": RATE,
        "batch": BATCH,
        "valid_images": VALID_IMAGES,
    },
)

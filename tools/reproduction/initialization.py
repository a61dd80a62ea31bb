"""Weights drawn from U(-1, 1): why the net dies, and what works instead."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.claims import Experiment
from reproduction.initialization_findings import (
    CHANNELS,
    LAYERS,
    figure,
    find,
    tabulate,
    without_steps,
)
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


def plain_steps(model: Any, optimizer: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """Train as the document's loop does; give the loss of each step before the weights change."""
    from paddle.nn.functional import cross_entropy

    for images, labels in batches:
        loss = cross_entropy(model(images), labels)
        loss.backward()
        yield loss
        optimizer.step()
        optimizer.clear_grad()


def first_steps(model: Any, train: Any, steps: int) -> Iterator[Any]:
    """Train as the tutorial's part three does; give what `plain_steps` gives."""
    import paddle

    from paddle_mnist import BatchLoader

    optimizer = paddle.optimizer.Momentum(RATE, parameters=model.parameters())
    loader = BatchLoader(train, BATCH, shuffle=False)
    batches = itertools.chain.from_iterable(loader.epoch(n) for n in itertools.count())
    return plain_steps(model, optimizer, itertools.islice(batches, steps))


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


CLAIM = Experiment(
    "initialization",
    measure,
    tabulate,
    find,
    figure,
    settings={
        "steps": STEPS,
        "draws": DRAWS,
        "epochs": EPOCHS,
        "rate": RATE,
        "batch": BATCH,
        "valid_images": VALID_IMAGES,
    },
    summarize=without_steps,
)

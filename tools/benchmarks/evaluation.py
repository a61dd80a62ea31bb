"""Evaluation of the eval split: the tutorial's way, ours, and other engines', in turns."""

import contextlib
import gzip
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from markdown_tables import table as markdown_table
from measuring.sources import json_file

from benchmarks.timing import in_turns, medians
from paddle_mnist.errors import DeviceError
from paddle_mnist.system.machine import usable_cpus

BATCH = 256
TITLES = {
    "theirs": "the tutorial's: image by image from lists, batches of 100",
    "plain": "ours, with Paddle's layers",
    "ours": "ours",
    "torch": f"PyTorch, batches of {BATCH}",
    "onnx": f"ONNX Runtime, batches of {BATCH}",
}
Evaluate = Callable[[], float]  # returns the accuracy


def measure(source: str, rounds: int) -> dict:
    """Median seconds of an evaluation, once the images are there; the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        evaluations, images = _evaluations(source, Path(folder))
        accuracy = {kind: evaluate() for kind, evaluate in evaluations.items()}  # warms up
        seconds = medians(in_turns(evaluations, rounds))
    return {"rounds": rounds, "images": images, "seconds": seconds, "accuracy": accuracy}


def _evaluations(source: str, folder: Path) -> tuple[dict[str, Evaluate], int]:
    """Return the evaluations that can run here, and the number of images. folder: for a model."""
    import baseline_tutorial

    from paddle_mnist import MNIST, MnistDataset, evaluate
    from paddle_mnist.mnist.config import TrainConfig

    path = json_file(source)
    with gzip.open(path) as file:
        batches = baseline_tutorial.load_data(json.load(file), "eval")
    dataset = MnistDataset("eval", str(path))
    model, net = MNIST(pretrained=True), baseline_tutorial.Net()
    net.set_state_dict(model.state_dict())
    threads = TrainConfig().net.conv_threads()

    def ours(fast_conv: int) -> float:
        model.fast_conv = fast_conv
        return evaluate(model, dataset).accuracy

    evaluations = {
        "theirs": partial(baseline_tutorial.evaluate, net, batches),
        "plain": partial(ours, 0),
        "ours": partial(ours, threads),
    }
    with contextlib.suppress(ImportError):  # the table says so
        evaluations["torch"] = partial(_accuracy, _torch_logits(model), dataset)
    with contextlib.suppress(DeviceError):
        evaluations["onnx"] = partial(_accuracy, _onnx_logits(model, folder), dataset)
    return evaluations, len(dataset)


def _accuracy(logits: Callable, dataset: Any) -> float:
    """Return the accuracy of a function of images, float32 [B, 1, 28, 28], that gives logits."""
    import numpy as np

    correct = 0
    for start in range(0, len(dataset), BATCH):
        images, labels = dataset.batch(np.arange(start, min(start + BATCH, len(dataset))))
        correct += int((logits(images).argmax(axis=1) == labels[:, 0]).sum())
    return correct / len(dataset)


def _torch_logits(model: Any) -> Callable:
    """The same net and weights. Raises ImportError."""
    import torch

    from benchmarks.torch_net import trained

    logits = trained(model.state_dict(), usable_cpus(), relu_first=False)  # equal, and faster
    return lambda images: logits(torch.from_numpy(images))


def _onnx_logits(model: Any, folder: Path) -> Callable:
    """The same net, exported. Raises DeviceError."""
    from paddle_mnist.mnist.export import export_model
    from paddle_mnist.mnist.predictor import DigitPredictor

    export_model(model, folder / "onnx", ["logits"], "onnx")
    predictor = DigitPredictor(
        folder / "onnx", device="cpu", threads=usable_cpus(), batch_size=BATCH
    )
    return lambda images: predictor.run(images)["logits"]


def table(report: dict) -> str:
    seconds, accuracy = report["seconds"], report["accuracy"]
    same = max(accuracy.values()) - min(accuracy.values()) < 1e-6  # of float32
    lines = [
        (title, seconds[kind], seconds["theirs"] / seconds[kind])
        if kind in seconds
        else (title, "not installed", None)
        for kind, title in TITLES.items()
    ]
    return markdown_table(
        {"evaluation": "", "seconds": ".2f", "times faster": ".1f"},
        lines,
        f"{report['images']:,} images; accuracies {'equal' if same else 'differ'}.",
    )

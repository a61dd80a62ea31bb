"""Evaluation of the eval split: the tutorial's way, ours, and other engines', in turns."""

import functools
import gzip
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.turns import Benchmark, Figures, Report, Session, times_faster
from paddle_mnist.system.machine import usable_cpus

BATCH = 256
BASE = "the tutorial's: image by image from lists, batches of 100"


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    """Return the evaluations of the same weights; the images are there before."""
    import baseline_tutorial

    from paddle_mnist import MNIST, MnistDataset, evaluate
    from paddle_mnist.mnist.config import TrainConfig

    with gzip.open(session.json_file) as file:
        batches = baseline_tutorial.load_data(json.load(file), "eval")
    dataset = MnistDataset("eval", str(session.json_file))
    model, net = MNIST(pretrained=True), baseline_tutorial.Net()
    net.set_state_dict(model.state_dict())
    threads = TrainConfig().net.conv_threads()

    def ours(fast_conv: int) -> float:
        model.fast_conv = fast_conv
        return evaluate(model, dataset).accuracy

    @functools.cache
    def engine(build: Callable) -> Callable:
        return build(model, session)

    evaluations = {
        BASE: partial(baseline_tutorial.evaluate, net, batches),
        "ours, with Paddle's layers": partial(ours, 0),
        "ours": partial(ours, threads),
        f"PyTorch, batches of {BATCH}": lambda: _accuracy(engine(_torch_logits), dataset),
        f"ONNX Runtime, batches of {BATCH}": lambda: _accuracy(engine(_onnx_logits), dataset),
    }
    return {kind: partial(_timed, call, len(dataset)) for kind, call in evaluations.items()}


def _timed(evaluation: Callable[[], float], images: int) -> Figures:
    began = time.perf_counter()
    accuracy = evaluation()
    return {"seconds": time.perf_counter() - began, "accuracy": accuracy, "images": images}


def _accuracy(logits: Callable, dataset: Any) -> float:
    """Return the accuracy of a function of images, float32 [B, 1, 28, 28], that gives logits."""
    import numpy as np

    correct = 0
    for start in range(0, len(dataset), BATCH):
        images, labels = dataset.batch(np.arange(start, min(start + BATCH, len(dataset))))
        correct += int((logits(images).argmax(axis=1) == labels[:, 0]).sum())
    return correct / len(dataset)


def _torch_logits(model: Any, session: Session) -> Callable:
    import torch

    from benchmarks.torch_net import trained

    logits = trained(model.state_dict(), usable_cpus(), relu_first=False)  # equal, and faster
    return lambda images: logits(torch.from_numpy(images))


def _onnx_logits(model: Any, session: Session) -> Callable:
    from paddle_mnist.mnist.export import export_model
    from paddle_mnist.mnist.predictor import DigitPredictor

    folder = session.folder / "onnx"
    export_model(model, folder, ["logits"], "onnx")
    predictor = DigitPredictor(folder, device="cpu", threads=usable_cpus(), batch_size=BATCH)
    return lambda images: predictor.run(images)["logits"]


def _note(report: Report) -> str:
    evaluations = [figures for figures in report.medians.values() if figures]
    accuracies = [figures["accuracy"] for figures in evaluations]
    is_same = max(accuracies) - min(accuracies) < 1e-6  # of float32
    images = evaluations[0]["images"]
    return f"{images:,} images; accuracies {'equal' if is_same else 'differ'}."


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "baseline_tutorial",
        "paddle_mnist.inference.predictor",
        "paddle_mnist.mnist.evaluation",
        "paddle_mnist.nn",
        "paddle_mnist.training.evaluator",
    ),
    kinds=_kinds,
    head="evaluation",
    columns={"seconds": (".2f", "seconds"), "times faster": times_faster(BASE)},
    note=_note,
    warm_up=1,
)

"""Inference by engine: latency and throughput, and evaluations of the eval split."""

import functools
import gzip
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.rivals import arrays, torch_logits
from benchmarks.timing import seconds_of
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session, Turn, ratio
from paddle_mnist.system.environment import usable_cpus

BATCH = 256
Engine = Callable[[np.ndarray], np.ndarray]  # float32 images [B, 1, 28, 28], 0 to 1, to logits


def _in_python(model: Any) -> Engine:
    """Return the net itself, in compiled loops on one thread."""
    import paddle

    model.eval()
    model.fast_conv = 1

    def logits(images: np.ndarray) -> np.ndarray:
        with paddle.no_grad():
            return model(paddle.to_tensor(images)).numpy()

    return logits


def _exported(model: Any, session: Session, form: str, threads: int = 1) -> Engine:
    from paddle_mnist.mnist.export import export_model
    from paddle_mnist.mnist.predictor import DigitPredictor

    export_model(model, session.folder / form, ["logits"], form)
    options = {"device": "cpu", "threads": threads, "batch_size": BATCH}
    predictor = DigitPredictor(session.folder / form, **options)
    return lambda images: predictor.run(images)["logits"]


# ------------------------------------------------------------------ engines


def _engines(session: Session) -> Mapping[str, Turn]:
    """Return a turn of each engine; all get the same images."""
    from paddle_mnist import MNIST

    model = MNIST(pretrained=True)
    digits = arrays(session.source)[0][:BATCH]
    images = np.round(digits / digits.max() * 255).astype(np.uint8)[:, 0]
    expected = _of_bytes(_in_python(model))(images)

    def measured(build: Callable[[], Engine]) -> Turn:
        build = functools.cache(build)

        def turn() -> Figures:
            run = build()
            return {
                "one": [1000 * seconds_of(run, images[:1]) for _ in range(100)],
                "rate": [BATCH / seconds_of(run, images) for _ in range(5)],
                "difference": float(abs(run(images) - expected).max()),
            }

        return turn

    weights = model.state_dict()
    return {
        "Paddle, the net in Python": measured(lambda: _of_bytes(_in_python(model))),
        "Paddle Inference": measured(partial(_exported, model, session, "paddle")),
        "ONNX Runtime": measured(partial(_exported, model, session, "onnx")),
        "PyTorch, the net in Python": measured(lambda: _of_bytes(torch_logits(weights, 1))),
    }


def _of_bytes(engine: Engine) -> Engine:
    """Return an engine that takes uint8 images [B, 28, 28], as exported models do."""
    return lambda images: engine(images[:, np.newaxis].astype(np.float32) / np.float32(256))


def _rows_of_engines(report: Report) -> Rows:
    rows = report.medians
    for engine, row in rows.items():
        if row:
            row["p99"] = statistics.quantiles(report.samples[engine]["one"], n=100)[98]
    return rows


def _note_on_engines(report: Report) -> str:
    largest = max(value for kind in report.samples.values() for value in kind.get("difference", ()))
    return f"One thread, batches of {BATCH}. Logits differ by at most {largest:.2g}."


# ------------------------------------------------------------------ evaluations

BASE = "the tutorial's: image by image from lists, batches of 100"


def _evaluations(session: Session) -> Mapping[str, Turn]:
    """Return a turn of each evaluation of the same weights; the images are in memory before."""
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
    def torch() -> Engine:
        return torch_logits(model.state_dict(), usable_cpus())

    @functools.cache
    def onnx() -> Engine:
        return _exported(model, session, "onnx", usable_cpus())

    def turn(evaluation: Callable[[], float]) -> Figures:
        began = time.perf_counter()
        accuracy = evaluation()
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "accuracy": accuracy, "images": len(dataset)}

    evaluations = {
        BASE: partial(baseline_tutorial.evaluate, net, batches),
        "ours, with Paddle's layers": partial(ours, 0),
        "ours": partial(ours, threads),
        f"PyTorch, batches of {BATCH}": lambda: _accuracy(torch(), dataset),
        f"ONNX Runtime, batches of {BATCH}": lambda: _accuracy(onnx(), dataset),
    }
    return {title: partial(turn, evaluation) for title, evaluation in evaluations.items()}


def _accuracy(logits: Engine, dataset: Any) -> float:
    correct = 0
    for start in range(0, len(dataset), BATCH):
        images, labels = dataset.batch(np.arange(start, min(start + BATCH, len(dataset))))
        correct += int((logits(images).argmax(axis=1) == labels[:, 0]).sum())
    return correct / len(dataset)


def _note_on_evaluations(report: Report) -> str:
    evaluations = [figures for figures in report.medians.values() if figures]
    accuracies = [figures["accuracy"] for figures in evaluations]
    is_same = max(accuracies) - min(accuracies) < 1e-6  # of float32
    images = evaluations[0]["images"]
    return f"{images:,} images; accuracies {'equal' if is_same else 'differ'}."


BENCHMARKS = {
    "evaluate": Benchmark(
        "Evaluation of the eval split: the tutorial's way, ours, and other engines', in turns.",
        code=(
            "tools/baseline_tutorial.py",
            "paddle_mnist/inference/predictor.py",
            "paddle_mnist/mnist/evaluation.py",
            "paddle_mnist/nn",
            "paddle_mnist/training/evaluator.py",
        ),
        kinds=_evaluations,
        head="evaluation",
        columns={
            "seconds": (".2f", "seconds"),
            "times faster": ratio("seconds", BASE, ".1f", is_inverse=True),
        },
        note=_note_on_evaluations,
        warm_up=1,
    ),
    "infer": Benchmark(
        "Latency and throughput of the engines that run the net.",
        code=(
            "paddle_mnist/inference/predictor.py",
            "paddle_mnist/mnist/model.py",
            "paddle_mnist/nn",
        ),
        kinds=_engines,
        head="engine",
        columns={
            "one image: median ms": (".2f", "one"),
            "99th percentile": (".2f", "p99"),
            "images a second": (",.0f", "rate"),
        },
        rows=_rows_of_engines,
        note=_note_on_engines,
        warm_up=1,
    ),
}

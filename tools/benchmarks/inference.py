"""Latency and throughput of the engines that run the net."""

import functools
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.rivals import arrays
from benchmarks.timing import seconds_of
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session

BATCH = 256
Engine = Callable[[np.ndarray], np.ndarray]  # uint8 images to logits


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    """Return the engines; they must agree."""
    from paddle_mnist import MNIST

    model = MNIST(pretrained=True)
    digits = arrays(session.source)[0][:BATCH, 0]
    images = np.round(digits / digits.max() * 255).astype(np.uint8)
    expected = _in_python(model)(images)

    def measured(build: Callable[[], Engine]) -> Callable[[], Figures]:
        build = functools.cache(build)

        def turn() -> Figures:
            run = build()
            return {
                "one": [seconds_of(run, images[:1]) for _ in range(100)],
                "batch": [seconds_of(run, images) for _ in range(5)],
                "difference": float(abs(run(images) - expected).max()),
            }

        return turn

    engines = {
        "Paddle, the net in Python": partial(_in_python, model),
        "Paddle Inference": partial(_exported, model, session, "paddle"),
        "ONNX Runtime": partial(_exported, model, session, "onnx"),
        "PyTorch, the net in Python": partial(_in_pytorch, model),
    }
    return {name: measured(build) for name, build in engines.items()}


def _in_python(model: Any) -> Engine:
    """The net itself, in compiled loops on one thread."""
    import paddle

    model.eval()
    model.fast_conv = 1

    def run(images: np.ndarray) -> np.ndarray:
        with paddle.no_grad():
            pixels = images[:, np.newaxis].astype(np.float32) / np.float32(256)
            return model(paddle.to_tensor(pixels)).numpy()

    return run


def _exported(model: Any, session: Session, form: str) -> Engine:
    from paddle_mnist.mnist.export import export_model
    from paddle_mnist.mnist.predictor import DigitPredictor

    export_model(model, session.folder / form, ["logits"], form)
    predictor = DigitPredictor(session.folder / form, device="cpu")
    return lambda images: predictor.run(images)["logits"]


def _in_pytorch(model: Any) -> Engine:
    import torch

    from benchmarks.torch_net import trained

    logits = trained(model.state_dict(), threads=1)
    return lambda images: logits(torch.from_numpy(images)[:, None].float() / 256)


def _rows(report: Report) -> Rows:
    return {
        engine: {
            "p50": 1000 * statistics.median(seconds["one"]),
            "p99": 1000 * statistics.quantiles(seconds["one"], n=100)[98],
            "rate": BATCH / statistics.median(seconds["batch"]),
        }
        if seconds
        else {}
        for engine, seconds in report.samples.items()
    }


def _note(report: Report) -> str:
    largest = max(value for kind in report.samples.values() for value in kind.get("difference", ()))
    return f"One thread, batches of {BATCH}. Logits differ by at most {largest:.2g}."


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "paddle_mnist.inference.predictor",
        "paddle_mnist.mnist.model",
        "paddle_mnist.mnist.predictor",
        "paddle_mnist.nn",
    ),
    kinds=_kinds,
    head="engine",
    columns={
        "one image: median ms": (".2f", "p50"),
        "99th percentile": (".2f", "p99"),
        "images a second": (",.0f", "rate"),
    },
    rows=_rows,
    note=_note,
    warm_up=1,
)

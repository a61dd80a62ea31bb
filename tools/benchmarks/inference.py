"""Inference by engine: latency and throughput."""

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.rivals import arrays
from benchmarks.timing import seconds_of
from benchmarks.turns import Benchmark, Figures, Report, Session, Turn

BATCH = 256
Engine = Callable[[np.ndarray], np.ndarray]  # uint8 images [B, 28, 28] to logits


def _in_python(model: Any) -> Engine:
    """Return the net itself, in compiled loops on one thread."""
    import paddle

    model.eval()
    model.fast_conv = 1

    def logits(images: np.ndarray) -> np.ndarray:
        pixels = images[:, np.newaxis].astype(np.float32) / np.float32(256)
        with paddle.no_grad():
            return model(paddle.to_tensor(pixels)).numpy()

    return logits


def _exported(model: Any, session: Session, form: str) -> Engine:
    from paddle_mnist.mnist.export import export_model
    from paddle_mnist.mnist.predictor import DigitPredictor

    export_model(model, session.folder / form, ["logits"], form)
    options = {"device": "cpu", "threads": 1, "batch_size": BATCH}
    predictor = DigitPredictor(session.folder / form, **options)
    return lambda images: predictor.run(images)["logits"]


def _engines(session: Session) -> Mapping[str, Turn]:
    """Return a turn of each engine; all get the same images."""
    from paddle_mnist import MNIST

    model = MNIST(pretrained=True)
    digits = arrays(session.source)[0][:BATCH]
    images = np.round(digits / digits.max() * 255).astype(np.uint8)[:, 0]
    expected = _in_python(model)(images)

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

    return {
        "Paddle, the net in Python": measured(partial(_in_python, model)),
        "Paddle Inference": measured(partial(_exported, model, session, "paddle")),
        "ONNX Runtime": measured(partial(_exported, model, session, "onnx")),
    }


def _note_on_engines(report: Report) -> str:
    largest = max(value for kind in report.samples.values() for value in kind.get("difference", ()))
    return f"One thread, batches of {BATCH}. Logits differ by at most {largest:.2g}."


BENCHMARKS = {
    "infer": Benchmark(
        "Latency and throughput of the engines that run the net.",
        kinds=_engines,
        head="engine",
        columns={"one image: median ms": (".2f", "one"), "images a second": (",.0f", "rate")},
        note=_note_on_engines,
        warm_up=1,
    ),
}

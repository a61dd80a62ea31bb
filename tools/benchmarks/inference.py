"""Latency and throughput of the engines that run the net."""

import statistics
import tempfile
from functools import partial
from pathlib import Path

from markdown_tables import table as markdown_table

from benchmarks.rivals import arrays
from benchmarks.timing import in_turns
from paddle_mnist.errors import DeviceError

BATCH = 256


def measure(source: str, rounds: int) -> dict:
    """Milliseconds of one image (median, 99th percentile), images a second in batches.

    Every engine is given uint8 images and returns logits; they must agree.
    """
    import numpy as np

    from paddle_mnist import MNIST

    model = MNIST(pretrained=True)
    digits = arrays(source)[0][:BATCH, 0]
    images = np.round(digits / digits.max() * 255).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        engines, missing = _engines(model, Path(folder))
        expected = engines["Paddle Inference"](images)
        differences = {
            name: float(abs(run(images) - expected).max()) for name, run in engines.items()
        }

        def timed(part: np.ndarray, repeats: int) -> dict[str, list[float]]:
            calls = {name: partial(run, part) for name, run in engines.items()}
            return in_turns(calls, rounds, repeats=repeats)

        single, batches = timed(images[:1], repeats=100), timed(images, repeats=5)
    return {
        "rounds": rounds,
        "missing": missing,
        "engines": {
            name: {
                "p50_ms": 1000 * statistics.median(single[name]),
                "p99_ms": 1000 * statistics.quantiles(single[name], n=100)[98],
                "images_per_second": BATCH / statistics.median(batches[name]),
                "difference": differences[name],
            }
            for name in engines
        },
    }


def _engines(model, folder: Path) -> tuple[dict, list[str]]:
    """Return the engines, functions of images by name, and the names of those not installed."""
    from paddle_mnist.mnist.export import export_model
    from paddle_mnist.mnist.predictor import DigitPredictor

    engines, missing = {"Paddle, the net in Python": _in_python(model)}, []
    for name, form in (("Paddle Inference", "paddle"), ("ONNX Runtime", "onnx")):
        try:
            export_model(model, folder / form, ["logits"], form)
        except DeviceError:
            missing.append(name)
            continue
        predictor = DigitPredictor(folder / form, device="cpu")
        engines[name] = lambda images, run=predictor.run: run(images)["logits"]
    try:
        engines["PyTorch, the net in Python"] = _in_pytorch(model)
    except ImportError:
        missing.append("PyTorch, the net in Python")
    return engines, missing


def _in_python(model):
    """The net itself, in compiled loops on one thread."""
    import numpy as np
    import paddle

    model.eval()
    model.fast_conv = 1

    def run(images):
        with paddle.no_grad():
            pixels = images[:, np.newaxis].astype(np.float32) / np.float32(256)
            return model(paddle.to_tensor(pixels)).numpy()

    return run


def _in_pytorch(model):
    """The same net and weights."""
    import torch

    from benchmarks.torch_net import trained

    logits = trained(model.state_dict(), threads=1)
    return lambda images: logits(torch.from_numpy(images)[:, None].float() / 256)


def table(report: dict) -> str:
    columns = {
        "engine": "",
        "one image: median ms": ".2f",
        "99th percentile": ".2f",
        "images a second": ",.0f",
    }
    rows = [
        (name, engine["p50_ms"], engine["p99_ms"], engine["images_per_second"])
        for name, engine in report["engines"].items()
    ]
    rows += [(name, "not installed", None, None) for name in report["missing"]]
    largest = max(engine["difference"] for engine in report["engines"].values())
    note = f"One thread, batches of {BATCH}. Logits differ by at most {largest:.2g}."
    return markdown_table(columns, rows, note)

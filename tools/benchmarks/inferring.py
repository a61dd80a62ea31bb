"""Latency and throughput of the engines that run the net."""

import statistics
import tempfile
import time
from pathlib import Path

from paddle_mnist.errors import DeviceError

INFER_BATCH = 256


def measured(source: str, rounds: int) -> dict:
    """Milliseconds of one image (median, 99th percentile), images a second in batches.

    Every engine is given uint8 images, and gives logits; they must agree.
    """
    import numpy as np

    from paddle_mnist import MNIST
    from paddle_mnist.mnist.export import export_model
    from paddle_mnist.mnist.predictor import Predictor

    model = MNIST(pretrained=True)
    images = np.random.RandomState(0).randint(0, 256, (INFER_BATCH, 28, 28)).astype(np.uint8)
    engines, missing = {"Paddle, the net in Python": _in_python(model)}, []
    with tempfile.TemporaryDirectory() as folder:
        for name, form in (("Paddle Inference", "paddle"), ("ONNX Runtime", "onnx")):
            try:
                export_model(model, Path(folder, form), ["logits"], form)
            except DeviceError:
                missing.append(name)
                continue
            predictor = Predictor(Path(folder, form), device="cpu")
            engines[name] = lambda images, run=predictor.run: run(images)["logits"]
        try:
            engines["PyTorch, the net in Python"] = _in_pytorch(model)
        except ImportError:
            missing.append("PyTorch, the net in Python")
        expected = engines["Paddle Inference"](images)
        found = {name: {"one": [], "batch": []} for name in engines}
        for name, run in engines.items():
            found[name]["difference"] = float(abs(run(images) - expected).max())
        for _ in range(rounds):
            for name, run in engines.items():
                found[name]["one"] += [_seconds(run, images[:1]) for _ in range(100)]
                found[name]["batch"] += [_seconds(run, images) for _ in range(5)]
    return {
        "rounds": rounds,
        "missing": missing,
        "engines": {
            name: {
                "p50_ms": 1000 * statistics.median(seconds["one"]),
                "p99_ms": 1000 * statistics.quantiles(seconds["one"], n=100)[98],
                "images_per_second": INFER_BATCH / statistics.median(seconds["batch"]),
                "difference": seconds["difference"],
            }
            for name, seconds in found.items()
        },
    }


def _seconds(run, images) -> float:
    began = time.perf_counter()
    run(images)
    return time.perf_counter() - began


def _in_python(model):
    import paddle

    from paddle_mnist.mnist.export import ExportedModel

    served = ExportedModel(model, ["logits"])
    served.eval()

    def run(images):
        with paddle.no_grad():
            return served(paddle.to_tensor(images))[0].numpy()

    return run


def _in_pytorch(model):
    """The same net and weights; PyTorch keeps a linear layer's weights the other way round."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layers = {
        "conv1": nn.Conv2d(1, 20, 5, padding=2),
        "conv2": nn.Conv2d(20, 20, 5, padding=2),
        "fc": nn.Linear(980, 10),
    }
    for name, layer in layers.items():
        for kind in ("weight", "bias"):
            value = model.state_dict()[f"{name}.{kind}"].numpy()
            value = value.T if name == "fc" and kind == "weight" else value
            getattr(layer, kind).data = torch.from_numpy(value.copy())
    block = [nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(
        layers["conv1"], *block, layers["conv2"], *block, nn.Flatten(), layers["fc"]
    )

    @torch.no_grad()
    def run(images):
        return net(torch.from_numpy(images)[:, None].float() / 256).numpy()

    return run


def table(report: dict) -> str:
    rows = ["| engine | one image: median ms | 99th percentile | images a second |"]
    rows.append("|---|---|---|---|")
    for name, engine in report["engines"].items():
        rows.append(
            f"| {name} | {engine['p50_ms']:.2f} | {engine['p99_ms']:.2f} | "
            f"{engine['images_per_second']:,.0f} |"
        )
    rows += [f"| {name} | not installed | | |" for name in report["missing"]]
    most = max(engine["difference"] for engine in report["engines"].values())
    note = f"One thread, batches of {INFER_BATCH}. Logits differ by at most {most:.2g}."
    return "\n".join([*rows, "", note])

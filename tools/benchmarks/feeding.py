"""What an epoch of `fit` takes with each kind of data, as they grow, beside `paddle.Model`."""

import gzip
import struct
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markdown_tables import table as markdown_table

from benchmarks.timing import medians

SIZES = (1_000, 10_000, 60_000)
BATCH = 64


def measure(source: str, rounds: int, sizes: Sequence[int] = SIZES) -> dict:
    """Median seconds of an epoch, the second of each training, by data, size and trainer.

    The images are those of the source, again and again where there are fewer. The net is one linear
    layer: what is measured is how samples get to it.
    """
    from paddle_mnist.mnist.cache import open_data

    split = open_data(source)["train"]
    seconds: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            for name, data in _datasets(split, size, Path(folder)).items():
                trainers = {"fit": partial(_fit, data, Path(folder)), "hapi": partial(_hapi, data)}
                taken = {trainer: [] for trainer in trainers}
                for _ in range(rounds):
                    for trainer, train in trainers.items():
                        taken[trainer].append(train())
                seconds.setdefault(name, {})[str(size)] = medians(taken)
    return {"rounds": rounds, "seconds": seconds}


def _datasets(split: Any, size: int, folder: Path) -> dict[str, Any]:
    """Return the same samples, float32 [1, 28, 28] and int64 [1], in the forms of users."""
    import numpy as np
    import paddle
    from paddle.vision import transforms
    from paddle.vision.datasets import MNIST
    from PIL import Image

    pixels = np.resize(np.asarray(split.images), (size, 28, 28))
    if pixels.dtype != np.uint8:
        pixels = (pixels * 255).astype(np.uint8)
    labels = np.resize(split.labels, size).astype(np.int64)
    images = pixels[:, np.newaxis].astype(np.float32) / 255

    class Arrays(paddle.io.Dataset):
        def __len__(self) -> int:
            return size

        def __getitem__(self, index: int) -> tuple:
            return images[index], labels[index : index + 1]

    class Pictures(Arrays):
        transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5], [0.5])])

        def __getitem__(self, index: int) -> tuple:
            return self.transform(Image.fromarray(pixels[index])), labels[index : index + 1]

    paths = [_write_idx(folder / f"{values.ndim}.gz", values) for values in (pixels, labels)]
    tensors = paddle.io.TensorDataset(
        [paddle.to_tensor(images), paddle.to_tensor(labels[:, np.newaxis])]
    )
    half = size // 2
    return {
        "`paddle.io.TensorDataset`": tensors,
        "a `Dataset` of NumPy arrays": Arrays(),
        "a `Dataset` of PIL images with transforms": Pictures(),
        "`paddle.vision.datasets.MNIST` with transforms": MNIST(
            *map(str, paths), transform=transforms.ToTensor()
        ),
        "`paddle.io.Subset` of tensors": paddle.io.Subset(tensors, range(size)),
        "`paddle.io.ConcatDataset` of tensors": paddle.io.ConcatDataset(
            [
                paddle.io.Subset(tensors, range(half)),
                paddle.io.Subset(tensors, range(half, size)),
            ]
        ),
        "`paddle.io.random_split` of tensors": paddle.io.random_split(tensors, [size, 0])[0],
    }


def _write_idx(path: Path, values: Any) -> Path:
    magic = struct.pack(">HBB", 0, 8, values.ndim)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(magic + struct.pack(f">{values.ndim}I", *values.shape))
        file.write(values.astype("uint8").tobytes())
    return path


def _net() -> Any:
    from paddle import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def _optimizer(parameters: list) -> Any:
    import paddle

    return paddle.optimizer.SGD(0.01, parameters=parameters)


def _fit(data: Any, folder: Path) -> float:
    """Return the seconds of the second epoch."""
    from paddle import nn

    from paddle_mnist import Callback, Figures, Saving, VisualDL, fit

    ends: list[float] = []

    class Clock(Callback):
        def after_epoch(self, view: Any) -> None:
            ends.append(time.perf_counter())

    fit(
        model=_net,
        train=data,
        loss=nn.CrossEntropyLoss(),
        optimizer=_optimizer,
        epochs=2,
        batch_size=BATCH,
        output=folder / "run",
        fresh=True,
        device="cpu",
        callbacks=[Clock(), VisualDL(pages=()), Figures(draw=False)],
        saving=Saving(every_epochs=1000),
    )
    return ends[1] - ends[0]


def _hapi(data: Any) -> float:
    """Return the seconds of the second epoch."""
    import paddle
    from paddle import nn

    begins: list[float] = []
    ends: list[float] = []

    class Clock(paddle.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            begins.append(time.perf_counter())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ends.append(time.perf_counter())

    model = paddle.Model(_net())
    model.prepare(_optimizer(model.parameters()), nn.CrossEntropyLoss())
    model.fit(data, batch_size=BATCH, epochs=2, verbose=0, callbacks=[Clock()])
    return ends[1] - begins[1]


def table(report: dict) -> str:
    rows = report["seconds"]
    sizes = list(next(iter(rows.values())))

    def cell(taken: dict[str, float]) -> str:
        return f"{taken['fit']:.3f} ({taken['fit'] / taken['hapi']:.1f})"

    return markdown_table(
        {"given to `fit`": "", **{f"{int(size):,}": "" for size in sizes}},
        [(name, *(cell(taken[size]) for size in sizes)) for name, taken in rows.items()],
        f"Seconds an epoch of so many samples takes (times those of `paddle.Model.fit`); a linear "
        f"layer, batches of {BATCH}; medians of {report['rounds']} rounds, in turns.",
    )

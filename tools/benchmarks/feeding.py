"""The time of an epoch by kind of data: of `fit`, of `paddle.Model` and of a bare loop."""

import gzip
import struct
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.turns import Benchmark, Figures, Session, Turn

SIZES = (1_000, 10_000, 60_000)


class Task(NamedTuple):
    """Some data, in batches, and the layers of the net that trains on them."""

    data: Any
    batch: int = 64
    features: tuple[int, ...] = (784, 10)


def _kinds(session: Session) -> dict[str, Turn]:
    """Return a turn for each kind of data, which measures the second epoch of all three.

    The images are those of the source, repeated where there are fewer. The net has only one or two
    linear layers: nearly all of the time goes into getting the samples to it.
    """
    from paddle_mnist.mnist.images import open_data

    split = open_data(session.source)["train"]
    sizes = SIZES[:1] if session.is_quick else SIZES
    tasks = {size: _tasks(split, size, session.folder) for size in sizes}

    def turn(kind: str) -> Figures:
        return {
            f"{trainer} {size}": epoch(tasks[size][kind], session.folder)
            for size in sizes
            for trainer, epoch in (("fit", _fit), ("hapi", _hapi), ("bare", _bare))
        }

    return {kind: partial(turn, kind) for kind in tasks[sizes[0]]}


def _tasks(split: Any, size: int, folder: Path) -> dict[str, Task]:
    """Return the same samples, float32 [1, 28, 28] and int64 [1], in each form that users have.

    Those of the last kind and their net are so small that only the loop takes time.
    """
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
    rows = images[:, 0, 6:22:2, 6:22:2].reshape(size, 64)

    class Arrays(paddle.io.Dataset):
        def __len__(self) -> int:
            return size

        def __getitem__(self, index: int) -> tuple:
            return images[index], labels[index : index + 1]

    class Rows(Arrays):
        def __getitem__(self, index: int) -> tuple:
            return rows[index], labels[index : index + 1]

    class Pictures(Arrays):
        transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5], [0.5])])

        def __getitem__(self, index: int) -> tuple:
            return self.transform(Image.fromarray(pixels[index])), labels[index : index + 1]

    paths = [_write_idx(folder / f"{size}-{values.ndim}.gz", values) for values in (pixels, labels)]
    tensors = paddle.io.TensorDataset(
        [paddle.to_tensor(images), paddle.to_tensor(labels[:, np.newaxis])]
    )
    datasets = {
        "`paddle.io.TensorDataset`": tensors,
        "a `Dataset` of NumPy arrays": Arrays(),
        "a `Dataset` of PIL images with transforms": Pictures(),
        "`paddle.vision.datasets.MNIST` with transforms": MNIST(
            *map(str, paths), transform=transforms.ToTensor()
        ),
        "`paddle.io.Subset` of tensors": paddle.io.Subset(tensors, range(size)),
        "`paddle.io.ConcatDataset` of tensors": paddle.io.ConcatDataset(
            paddle.io.random_split(tensors, [size // 2, size - size // 2])
        ),
        "`paddle.io.random_split` of tensors": paddle.io.random_split(tensors, [size, 0])[0],
    }
    return {
        **{kind: Task(data) for kind, data in datasets.items()},
        "64 features, for a net 64-64-10, batches of 32": Task(Rows(), 32, (64, 64, 10)),
    }


def _write_idx(path: Path, values: Any) -> Path:
    magic = struct.pack(">HBB", 0, 8, values.ndim)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(magic + struct.pack(f">{values.ndim}I", *values.shape))
        file.write(values.astype("uint8").tobytes())
    return path


def _net(*features: int) -> Any:
    from paddle import nn

    layers = [nn.Flatten()]
    for inputs, outputs in zip(features, features[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _optimizer(parameters: list) -> Any:
    import paddle

    return paddle.optimizer.SGD(0.01, parameters=parameters)


def _fit(task: Task, folder: Path) -> float:
    """Return the seconds of the second epoch, as the two functions below do."""
    from paddle import nn

    from paddle_mnist import Callback, Figures, Saving, VisualDL, fit

    times: list[float] = []

    class Clock(Callback):
        def after_epoch(self, view: Any) -> None:
            times.append(time.perf_counter())

    fit(
        model=partial(_net, *task.features),
        train=task.data,
        loss=nn.CrossEntropyLoss(),
        optimizer=_optimizer,
        epochs=2,
        batch_size=task.batch,
        output=folder / "run",
        fresh=True,
        device="cpu",
        callbacks=[Clock(), VisualDL(pages=()), Figures(draw=False)],
        saving=Saving(every_epochs=1000),
    )
    return times[1] - times[0]


def _hapi(task: Task, folder: Path) -> float:
    import paddle
    from paddle import nn

    times: list[float] = []

    class Clock(paddle.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

        on_epoch_end = on_epoch_begin

    model = paddle.Model(_net(*task.features))
    model.prepare(_optimizer(model.parameters()), nn.CrossEntropyLoss())
    model.fit(task.data, batch_size=task.batch, epochs=2, verbose=0, callbacks=[Clock()])
    return times[3] - times[2]


def _bare(task: Task, folder: Path) -> float:
    import paddle
    from paddle import nn

    net, loss = _net(*task.features), nn.CrossEntropyLoss()
    optimizer = _optimizer(net.parameters())
    loader = paddle.io.DataLoader(task.data, batch_size=task.batch, shuffle=True)
    for _ in range(2):
        began = time.perf_counter()
        for inputs, labels in loader:
            loss(net(inputs), labels).backward()
            optimizer.step()
            optimizer.clear_grad()
    return time.perf_counter() - began


def _cell(size: int, row: Figures) -> str:
    if f"fit {size}" not in row:
        return ""
    fit, hapi, bare = (row[f"{trainer} {size}"] for trainer in ("fit", "hapi", "bare"))
    return f"{fit:.3f} ({fit / hapi:.2f}, {fit / bare:.2f})"


BENCHMARKS = {
    "feeding": Benchmark(
        __doc__,
        code=("paddle_mnist/data", "paddle_mnist/training/loop.py"),
        kinds=_kinds,
        head="given to `fit`",
        columns={f"{n:,}": ("", lambda row, rows, n=n: _cell(n, row)) for n in SIZES},
        note=lambda report: (
            "Seconds per epoch of that many samples (times those of `paddle.Model.fit`, of a "
            "bare loop over a `DataLoader`); except in the last row, a linear layer and batches of "
            f"64; medians of {report.rounds} rounds, in turns."
        ),
    )
}

"""The time of an epoch of samples in memory: of `fit`, of `paddle.Model` and of a bare loop."""

import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.turns import Benchmark, Figures, Session, Turn

SIZE = 60_000  # samples


class Task(NamedTuple):
    """The samples of an epoch, their batches, and the layers of the net that trains on them."""

    data: Any
    batch: int
    features: tuple[int, ...]


def _kinds(session: Session) -> dict[str, Turn]:
    """Return a turn for each net, which measures the second epoch of all three trainers.

    The nets have only one or two linear layers: nearly all of the time goes into getting the
    samples to them.
    """
    import numpy as np
    import paddle

    class Samples(paddle.io.Dataset):
        def __init__(self, *shape: int) -> None:
            draw, count = np.random.default_rng(1), 1_000 if session.is_quick else SIZE
            self.inputs = draw.random((count, *shape), dtype=np.float32)
            self.labels = draw.integers(0, 10, (count, 1))

        def __len__(self) -> int:
            return len(self.inputs)

        def __getitem__(self, index: int) -> tuple:
            return self.inputs[index], self.labels[index]

    tasks = {
        "images 1x28x28, a linear layer, batches of 64": Task(Samples(1, 28, 28), 64, (784, 10)),
        "64 features, a net 64-64-10, batches of 32": Task(Samples(64), 32, (64, 64, 10)),
    }

    def turn(task: Task) -> Figures:
        hapi, fitted, bare = _hapi(task), _fit(task, session.folder), _bare(task)
        # Quotients of one turn: what else the machine does changes from turn to turn.
        return {
            "seconds": fitted,
            "of hapi": fitted / hapi,
            "of bare": fitted / bare,
            "samples": len(task.data),
        }

    return {kind: partial(turn, task) for kind, task in tasks.items()}


def _net(*features: int) -> Any:
    from paddle import nn

    layers: list[nn.Layer] = [nn.Flatten()]
    for inputs, outputs in zip(features, features[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _optimizer(parameters: list) -> Any:
    import paddle

    return paddle.optimizer.SGD(0.01, parameters=parameters)


def _fit(task: Task, folder: Path) -> float:
    """Return the seconds of the second epoch, as the two functions below do.

    With the default callbacks, and the checkpoint of the first epoch.
    """
    from paddle import nn

    from paddle_mnist import Callback, fit

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
        callbacks=[Clock()],
    )
    return times[1] - times[0]


def _hapi(task: Task) -> float:
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


def _bare(task: Task) -> float:
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


BENCHMARKS = {
    "feeding": Benchmark(
        __doc__,
        kinds=_kinds,
        head="samples and net",
        columns={
            "seconds": (".3f", "seconds"),
            "times `paddle.Model.fit`": (".2f", "of hapi"),
            "times a bare loop": (".2f", "of bare"),
        },
        rounds=9,
        note=lambda report: (
            f"An epoch of {next(iter(report.medians.values()))['samples']:,.0f} samples of a "
            "`Dataset` of NumPy arrays; `fit` has its default callbacks, and saves a checkpoint; "
            "the bare loop reads the samples by a `DataLoader`. "
            f"Medians of {report.rounds} rounds, in turns."
        ),
    )
}

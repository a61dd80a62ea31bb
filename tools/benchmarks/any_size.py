"""Steps of nets of other sizes: `ConvBlocks`, the same in Paddle's layers, and in PyTorch."""

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.rivals import arrays
from benchmarks.timing import seconds_of
from benchmarks.turns import Benchmark, Figures, Report, Session

BATCH = 64
STEPS = 3  # timed together
# Channels, outputs, kernel and padding of each block.
NETS = {
    "LeNet-5's blocks, 1x28x28": ((1, 28), [(1, 6, 5, 2), (6, 16, 5, 0)]),
    "three blocks, 3x32x32": ((3, 32), [(3, 32, 5, 2), (32, 32, 5, 2), (32, 64, 3, 1)]),
}


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    return {net: _rates(session.source, *sizes) for net, sizes in NETS.items()}


def _rates(source: str, shape: tuple[int, int], blocks: Sequence) -> Callable[[], Figures]:
    """Return what measures images a second of one thread. source: of images of one channel."""
    channels, size = shape
    draw = np.random.default_rng(1)
    images = draw.random((BATCH, channels, size, size), dtype=np.float32)
    if channels == 1:  # digits, most of whose pixels are 0
        images = np.ascontiguousarray(arrays(source)[0][:BATCH])
    labels = draw.integers(0, 10, BATCH)
    calls = {kind: _paddle_steps(blocks, images, labels, kind) for kind in ("own", "fast")}
    with contextlib.suppress(ModuleNotFoundError):  # the table says so
        calls["torch"] = _torch_steps(blocks, images, labels)
    return lambda: {kind: STEPS * BATCH / seconds_of(call) for kind, call in calls.items()}


def _paddle_steps(blocks, images: np.ndarray, labels: np.ndarray, kind: str) -> Callable[[], None]:
    import paddle
    from paddle import nn

    from paddle_mnist import ConvBlocks

    paddle.seed(1)
    layers = []
    for channels, outputs, kernel, padding in blocks:
        conv = nn.Conv2D(channels, outputs, kernel, padding=padding)
        layers += [conv, nn.ReLU(), nn.MaxPool2D(2, 2)]
    layers.append(nn.Flatten())
    features = nn.Sequential(*layers)(paddle.to_tensor(images[:1])).shape[1]
    layers.append(nn.Linear(features, 10))
    model = ConvBlocks(*layers, fast_conv=1 if kind == "fast" else "off")
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    inputs, targets = paddle.to_tensor(images), paddle.to_tensor(labels)

    def steps() -> None:
        for _ in range(STEPS):
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.clear_grad()

    return steps


def _torch_steps(blocks, images: np.ndarray, labels: np.ndarray) -> Callable[[], None]:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for channels, outputs, kernel, padding in blocks:
        conv = nn.Conv2d(channels, outputs, kernel, padding=padding)
        layers += [conv, nn.MaxPool2d(2), nn.ReLU()]  # quicker than the other way round
    layers.append(nn.Flatten())
    features = nn.Sequential(*layers)(torch.from_numpy(images[:1])).shape[1]
    layers.append(nn.Linear(features, 10))
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    inputs = torch.from_numpy(images).to(memory_format=torch.channels_last)
    targets = torch.from_numpy(labels)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return steps


def _note(report: Report) -> str:
    return (
        f"Images a second, steps of batches of {BATCH} with Momentum, one thread; medians of "
        f"{report.rounds} rounds in turns. The images of one channel are digits; those of three "
        "are random, and have no zeros."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(__name__, "paddle_mnist.nn"),
    kinds=_kinds,
    head="net",
    columns={
        "Paddle's layers": (",.0f", "own"),
        "`ConvBlocks`": (",.0f", "fast"),
        "PyTorch, channels last": (",.0f", lambda net, _: net.get("torch", "not installed")),
        "times Paddle's": (".2f", lambda net, _: net["fast"] / net["own"]),
        "times PyTorch's": (
            ".2f",
            lambda net, _: net["fast"] / net["torch"] if "torch" in net else None,
        ),
    },
    note=_note,
    warm_up=1,  # which compiles
)

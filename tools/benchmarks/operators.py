"""Where the time of a step goes: each compiled loop by itself, and what is around them."""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.rivals import BATCH, arrays, paddle_loop
from benchmarks.timing import seconds_of
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session

IMAGES = 20  # that the loops are timed on
REPEATS = 30
STEPS = 10
PARTS = {
    "image": "the image: stored and listed",
    "scatter0": "first convolution",
    "pool0": "first pooling, bias and ReLU",
    "list1": "listing its outputs that are not zero",
    "scatter1": "second convolution",
    "pool1": "second pooling, bias and ReLU",
    "linear": "linear layer",
    "cross-entropy": "cross-entropy, and the gradients of the logits",
    "linear back": "gradients of the linear layer",
    "gradients1": "second block: listing the gradients that are not zero",
    "windows1": "second block: gradient of the kernels",
    "back1": "second block: gradient of its inputs",
    "gradients0": "first block: listing the gradients that are not zero",
    "windows0": "first block: gradient of the kernels",
}
# Of the loops that functions of `sparse_net` make, the parts, in the order in which they are made;
# "" is never called.
LOOPS = {
    "list_inputs_loop": ("", "list1"),
    "scatter_loop": ("scatter0", "scatter1", "", "back1"),
    "pool_loop": ("pool0", "pool1"),
    "list_gradients_loop": ("gradients0", "gradients1"),
    "add_windows_loop": ("windows0", "windows1"),
}
REST = "everything else: Python, Paddle's tensors, optimizer, colder caches"


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    """Return what measures microseconds an image, of one thread: a whole step, and each loop.

    dense: the loops where no value is 0, but for the gradients that the pooling cuts off.
    """
    from paddle_mnist import MNIST

    step = paddle_loop(session.source, threads=1, own_step=True)

    def run_steps() -> None:
        for number in range(STEPS):
            step(number)

    images = arrays(session.source)[0][:IMAGES]
    parameters = [parameter.numpy().ravel() for parameter in MNIST(pretrained=True).parameters()]
    weights = np.concatenate(parameters)
    return {
        "step": lambda: {"step": seconds_of(run_steps) / STEPS / BATCH * 1e6},
        "loops": partial(_time_loops, images, weights),
        "dense": partial(_time_loops, 1 + images, np.abs(weights)),  # ReLU cuts nothing off
    }


def _time_loops(images: np.ndarray, parameters: np.ndarray) -> Figures:
    """Return the microseconds an image of each loop, as the passes of `sparse_net` call them.

    parameters: of the net, flat.
    """
    from paddle_mnist.mnist.options import net_sizes
    from paddle_mnist.nn.compiled_net import compiled_net
    from paddle_mnist.nn.sparse_layout import aligned_zeros
    from paddle_mnist.nn.sparse_linear import cross_entropy_loop
    from paddle_mnist.nn.sparse_net import new_workspace

    net, count = net_sizes(), len(images)
    _, memory = compiled_net(net).forward(images, parameters, 1)
    kept, winners, weights = memory.inputs, memory.winners, memory.weights
    logits, gradients = np.zeros((2, count, net.classes), np.float32)
    losses, labels = np.zeros(count, np.float32), np.zeros(count, np.int64)
    skipped, work = np.zeros(count, np.float32), new_workspace(net)
    sums, none = aligned_zeros((net.sums.size,), np.float32), np.zeros((count, 0), np.float32)
    times = dict.fromkeys(PARTS, 0.0)
    forward, backward = _passes(net, times)
    forward(images.reshape(count, -1), logits, kept, winners, skipped, weights, skipped[0], work)
    loss = _timed(cross_entropy_loop(net.classes), "cross-entropy", times)
    for number in range(count):
        one = slice(number, number + 1)
        loss(logits[one], labels[one], 0.0, 1.0, losses[one], gradients[one])
    backward(gradients, none, kept, winners, skipped, weights, sums, work)
    return {name: seconds / count * 1e6 for name, seconds in times.items()}


def _passes(net: Any, times: dict[str, float]) -> tuple[Callable, Callable]:
    """Return the net's passes as Python runs them, whose compiled loops are timed by name."""
    from paddle_mnist.nn import sparse_net

    load, linear = sparse_net.load_loop(net), sparse_net.linear_loops(net, net.classes)

    def named(factory: str) -> Callable:
        make, names = getattr(sparse_net, factory), iter(LOOPS[factory])
        return lambda *args, **sizes: _timed(make(*args, **sizes), next(names), times)

    factories = {factory: named(factory) for factory in LOOPS}
    factories["load_loop"] = lambda net: _timed(load, "image", times)
    factories["linear_loops"] = lambda *sizes: (
        _timed(linear[0], "linear", times),
        _timed(linear[1], "linear back", times),
    )
    python = {"compiled": lambda function: function, "inlined": lambda function: function}
    with patch.multiple(sparse_net, **factories, **python):
        return sparse_net.build(net)


def _timed(loop: Callable, name: str, times: dict[str, float]) -> Callable:
    """Return a loop that is repeated, and adds the median seconds of a call to those of its name.

    What a repetition adds up once more does not change the time of the loops after it.
    """

    def timed(*args: Any) -> Any:
        loop(*args)
        times[name] += statistics.median(seconds_of(loop, *args) for _ in range(REPEATS))
        return loop(*args)

    return timed


def _rows(report: Report) -> Rows:
    step, loops, dense = report.medians.values()
    parts = {title: (loops[name], dense[name]) for name, title in PARTS.items()}
    total, whole = sum(loops.values()), step["step"]
    parts["all of these loops"] = total, sum(dense.values())
    parts[REST] = whole - total, None
    parts["a step"] = whole, None
    return {
        title: {"loop": loop, "share": loop / whole, "dense": worst}
        for title, (loop, worst) in parts.items()
    }


def _note(report: Report) -> str:
    return (
        f"One thread, batches of {BATCH}; each loop is timed by itself, on images of the training "
        "split and with the trained weights that come with the package. Last column: the worst "
        "case, images without a zero and weights with which ReLU passes everything on; only the "
        "pooling still cuts off gradients. In a step, each loop runs once on each image, and finds "
        "less in the caches than in these repetitions."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(__name__, "paddle_mnist.nn", "paddle_mnist.training.steps"),
    kinds=_kinds,
    head="what",
    columns={
        "microseconds an image": (".1f", "loop"),
        "share": (".1%", "share"),
        "microseconds if nothing is zero": (".1f", "dense"),
    },
    rows=_rows,
    note=_note,
    warm_up=1,
)

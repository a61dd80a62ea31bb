"""Where the time of a step goes: each compiled loop by itself, and what is around them."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from markdown_tables import table as markdown_table

from benchmarks.rivals import BATCH, arrays, paddle_loop
from benchmarks.timing import seconds_of

IMAGES = 20  # that the loops are timed on
REPEATS = 30
STEPS = 10
ZERO = np.float32(0)  # what is not visited
PARTS = {
    "image": "the image: stored and listed",
    "scatter0": "first convolution",
    "pool0": "its pooling, bias and ReLU",
    "list1": "listing its outputs that are not zero",
    "scatter1": "second convolution",
    "pool1": "its pooling, bias and ReLU",
    "linear": "linear layer",
    "cross-entropy": "cross-entropy, and the gradients of the logits",
    "linear back": "gradients of the linear layer",
    "gradients1": "second block: listing the gradients that are not zero",
    "windows1": "second block: gradient of the kernels",
    "back1": "second block: gradient of its inputs",
    "gradients0": "first block: listing the gradients that are not zero",
    "windows0": "first block: gradient of the kernels",
}
REST = "everything else: Python, Paddle's tensors, optimizer, colder caches"

Calls = Iterator[tuple[str, Callable[[], None]]]  # by name


def measure(source: str, rounds: int) -> dict:
    """Median microseconds an image, of one thread: of each loop, and of a whole step.

    dense: of the loops where no value is 0, but for the gradients that the pooling cuts off.
    """
    from paddle_mnist import MNIST

    step = paddle_loop(source, threads=1, own_step=True)

    def run_steps() -> None:
        for number in range(STEPS):
            step(number)

    run_steps()
    images = arrays(source)[0][:IMAGES]
    parameters = [parameter.numpy().ravel() for parameter in MNIST(pretrained=True).parameters()]
    weights = np.concatenate(parameters)
    calls = {
        "loops": list(_calls(images, weights)),
        "dense": list(_calls(1 + images, np.abs(weights))),  # ReLU cuts nothing off
    }
    steps: list[float] = []
    timed: dict[str, list[dict[str, float]]] = {kind: [] for kind in calls}
    for _ in range(rounds):
        steps.append(seconds_of(run_steps) / STEPS / BATCH * 1e6)
        for kind in calls:
            timed[kind].append(_time(calls[kind]))
    return {
        "step": statistics.median(steps),
        **{
            kind: {name: statistics.median(times[name] for times in repeated) for name in PARTS}
            for kind, repeated in timed.items()
        },
    }


def _time(calls: Sequence[tuple[str, Callable[[], None]]]) -> dict[str, float]:
    """Return the microseconds an image of each loop: of one image after another, as in a pass."""
    totals = dict.fromkeys(PARTS, 0.0)
    for name, call in calls:
        call()
        repeated = [seconds_of(call) for _ in range(REPEATS)]
        totals[name] += statistics.median(repeated) / IMAGES * 1e6
    return totals


def _calls(images: np.ndarray, parameters: np.ndarray) -> Calls:
    """Yield each loop of each image's passes, by name. parameters: of the net, flat.

    Loops and arguments are those of `paddle_mnist.nn.sparse_net`. A loop reads what those before it
    have left in `work`: the calls are to be made in this order.
    """
    from paddle_mnist.mnist.sizes import net_sizes
    from paddle_mnist.nn.compiled_net import compiled_net
    from paddle_mnist.nn.sparse_net import new_workspace

    net, logits = net_sizes(), np.zeros(10, np.float32)
    _, memory = compiled_net(net).forward(images, parameters, 1)
    forward, loss = _forward(net, memory.weights, logits), _loss(net, logits)
    backward = _backward(net, memory.weights)
    flat = images.reshape(len(images), -1)
    for image, kept, winners in zip(flat, memory.inputs, memory.winners):
        work = new_workspace(net)
        yield from forward(image, kept, winners, work)
        yield "cross-entropy", loss
        yield from backward(kept, winners, work)


def _part(values: np.ndarray, layout, name: str) -> np.ndarray:
    """Return a flat array from a named part on."""
    return values[layout.parts[name].start :]


def _forward(net, weights: np.ndarray, logits: np.ndarray) -> Callable[..., Calls]:
    """Return what yields the loops from an image to its logits."""
    from paddle_mnist.nn.sparse_conv import list_inputs_loop, pool_loop, scatter_loop
    from paddle_mnist.nn.sparse_linear import linear_loops
    from paddle_mnist.nn.sparse_net import load_loop

    load, list_inputs, linear = (
        load_loop(net),
        list_inputs_loop(net.maps[1]),
        linear_loops(net, net.classes)[0],
    )
    scatter, pool = [], []
    for block, outputs in zip(net.blocks, net.maps[1:]):
        scatter.append(scatter_loop(block.inputs, block.kernel, block.sums))
        pool.append(pool_loop(block, outputs))
    kernels = [_part(weights, net.weights, f"forward{n}") for n in (0, 1)]
    bias = [_part(weights, net.weights, f"bias{n}") for n in (0, 1)]

    def calls(image: np.ndarray, kept: np.ndarray, winners: np.ndarray, work) -> Calls:
        pooled = [_part(kept, net.kept, f"inputs{n}") for n in (1, 2)]
        won = [_part(winners, net.winners, f"winners{n}") for n in (0, 1)]
        yield "image", partial(load, image, kept, ZERO, work)
        yield "scatter0", partial(scatter[0], work, kernels[0], work.target)
        yield "pool0", partial(pool[0], work.target, bias[0], won[0], pooled[0])
        yield "list1", partial(list_inputs, pooled[0], ZERO, work)
        yield "scatter1", partial(scatter[1], work, kernels[1], work.target)
        yield "pool1", partial(pool[1], work.target, bias[1], won[1], pooled[1])
        yield "linear", partial(linear, kept, weights, logits, work.target)

    return calls


def _loss(net, logits: np.ndarray) -> Callable[[], None]:
    """Return the loop from an image's logits to their gradients."""
    from paddle_mnist.nn.sparse_linear import cross_entropy_loop

    label, smoothing, scale = np.zeros(1, np.int64), 0.0, 1.0
    losses, gradients = np.zeros(1, np.float32), np.zeros((1, 10), np.float32)
    loop = cross_entropy_loop(net.classes)
    return partial(loop, logits[np.newaxis], label, smoothing, scale, losses, gradients)


def _backward(net, weights: np.ndarray) -> Callable[..., Calls]:
    """Return what yields the loops from the gradients of an image's logits to all others."""
    from paddle_mnist.nn.sparse_conv import add_windows_loop, list_gradients_loop, scatter_loop
    from paddle_mnist.nn.sparse_layout import aligned_zeros
    from paddle_mnist.nn.sparse_linear import linear_loops

    linear = linear_loops(net, net.classes)[1]
    list_gradients = [list_gradients_loop(net, n) for n in (0, 1)]
    add_windows = [add_windows_loop(net.blocks[n], net.windows[n]) for n in (0, 1)]
    block = net.blocks[1]
    scatter = scatter_loop(block.unpooled, block.kernel, block.inputs)
    kernels = _part(weights, net.weights, "backward1")
    logit_gradients = np.linspace(-0.1, 0.1, 10, dtype=np.float32)
    sums = aligned_zeros((net.sums.size,), np.float32)
    kernel_sums = [_part(sums, net.sums, f"kernel{n}") for n in (0, 1)]
    bias_sums = [_part(sums, net.sums, f"bias{n}") for n in (0, 1)]

    def calls(kept: np.ndarray, winners: np.ndarray, work) -> Calls:
        inputs = [_part(kept, net.kept, f"inputs{n}") for n in (0, 1, 2)]
        won = [_part(winners, net.winners, f"winners{n}") for n in (0, 1)]
        gradients = [_part(work.gradients, net.gradients, f"inputs{n}") for n in (1, 2)]
        to_list = [(gradients[n], inputs[n + 1], won[n], ZERO, bias_sums[n], work) for n in (0, 1)]
        yield "linear back", partial(linear, logit_gradients, kept, weights, sums, work.gradients)
        yield "gradients1", partial(list_gradients[1], *to_list[1])
        yield "windows1", partial(add_windows[1], inputs[1], work, kernel_sums[1])
        yield "back1", partial(scatter, work, kernels, gradients[0])
        yield "gradients0", partial(list_gradients[0], *to_list[0])
        yield "windows0", partial(add_windows[0], inputs[0], work, kernel_sums[0])

    return calls


def table(report: dict) -> str:
    loops, dense, step = report["loops"], report["dense"], report["step"]
    rows = [(title, loops[name], loops[name] / step, dense[name]) for name, title in PARTS.items()]
    total = sum(loops.values())
    rows.append(("all of these loops", total, total / step, sum(dense.values())))
    rest = step - total
    rows.append((REST, rest, rest / step, None))
    rows.append(("a step", step, 1.0, None))
    columns = {
        "what": "",
        "microseconds an image": ".1f",
        "share": ".1%",
        "microseconds if nothing is zero": ".1f",
    }
    return markdown_table(
        columns,
        rows,
        f"One thread, batches of {BATCH}; each loop is timed by itself, on images of the training "
        "split and with the trained weights that come with the package. Last column: the worst "
        "case, images without a zero and weights with which ReLU passes everything on; only the "
        "pooling still cuts off gradients. In a step, each loop runs once on each image, and finds "
        "less in the caches than in these repetitions.",
    )

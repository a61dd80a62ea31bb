"""Where the time of a step goes: each compiled loop by itself, and what is around them."""

import statistics
from collections.abc import Callable

import numpy as np
from markdown_tables import table as markdown_table

from benchmarks.rivals import BATCH, arrays, paddle_loop
from benchmarks.timing import seconds_of

IMAGES = 20  # that the loops are timed on
REPEATS = 30
STEPS = 10
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


def measure(source: str, rounds: int) -> dict:
    """Median microseconds an image, of one thread: of each loop, and of a whole step."""
    loops: dict[str, list[float]] = {name: [] for name in PARTS}
    steps = []
    step = paddle_loop(source, threads=1, own_step=True)

    def run_steps() -> None:
        for number in range(STEPS):
            step(number)

    run_steps()
    images = arrays(source)[0][:IMAGES]
    calls = list(_calls(images))
    for _ in range(rounds):
        steps.append(seconds_of(run_steps) / STEPS / BATCH * 1e6)
        totals = dict.fromkeys(PARTS, 0.0)
        for name, call in calls:  # of one image after another, as in a pass
            call()
            repeated = [seconds_of(call) for _ in range(REPEATS)]
            totals[name] += statistics.median(repeated) / IMAGES * 1e6
        for name, total in totals.items():
            loops[name].append(total)
    return {
        "step": statistics.median(steps),
        "loops": {name: statistics.median(values) for name, values in loops.items()},
    }


def _calls(images: np.ndarray):
    """Yield each loop of each image's passes, by name, with the trained net's weights."""
    from paddle_mnist import MNIST
    from paddle_mnist.mnist.sizes import net_sizes
    from paddle_mnist.nn import sparse_conv, sparse_linear, sparse_net
    from paddle_mnist.nn.compiled_net import compiled_net
    from paddle_mnist.nn.sparse_layout import Map, aligned_zeros

    net = net_sizes()
    second = net.blocks[1]
    parameters = [parameter.numpy().ravel() for parameter in MNIST(pretrained=True).parameters()]
    _, memory = compiled_net(net).forward(images, np.concatenate(parameters), 1)
    sums, logits = aligned_zeros((net.sums.size,), np.float32), np.zeros(10, np.float32)
    gradient, zero = np.linspace(-0.1, 0.1, 10, dtype=np.float32), np.float32(0)
    load = sparse_net.load_loop(net)
    scatter = [
        sparse_conv.scatter_loop(
            height=block.height,
            width=block.width,
            channels=block.channels,
            kernel=block.kernel,
            target=Map(block.target_height, block.target_width, block.outputs),
        )
        for block in net.blocks
    ]
    scatter_back = sparse_conv.scatter_loop(
        height=second.height,
        width=second.width,
        channels=second.outputs,
        kernel=second.kernel,
        target=Map(second.padded_height, second.padded_width, second.channels),
    )
    pools = [sparse_conv.pool_loop(block, net.maps[n + 1]) for n, block in enumerate(net.blocks)]
    list_inputs = sparse_conv.list_inputs_loop(net.maps[1])
    list_gradients = [sparse_conv.list_gradients_loop(net, number) for number in (0, 1)]
    windows = [
        sparse_conv.add_windows_loop(block, net.windows[number])
        for number, block in enumerate(net.blocks)
    ]
    linear, linear_back = sparse_linear.linear_loops(net)
    cross_entropy = sparse_linear.cross_entropy_loop(net)
    label, loss = np.zeros(1, np.int64), np.zeros(1, np.float32)

    def weights(name: str) -> np.ndarray:
        start, stop = net.weights.bounds(name)
        return memory.weights[start:stop]

    for number, image in enumerate(images.reshape(len(images), -1)):
        kept, winners = memory.inputs[number], memory.winners[number]
        work = sparse_net.new_work(net)
        inputs = [kept[net.kept.bounds(f"inputs{n}")[0] :] for n in range(3)]
        won = [winners[net.winners.bounds(f"winners{n}")[0] :] for n in range(2)]
        back = [work.gradients[net.gradients.bounds(f"inputs{n}")[0] :] for n in range(3)]
        lists = (work.counts, work.channels, work.values)
        by_output = (work.ends, work.places, work.amounts)
        own_sums = [sums[net.sums.bounds(f"kernel{n}")[0] :] for n in range(2)]
        calls: list[tuple[str, Callable, tuple]] = [
            ("image", load, (image, kept, zero, work)),
            ("scatter0", scatter[0], (*lists, weights("forward0"), work.target)),
            ("pool0", pools[0], (work.target, weights("bias0"), won[0], inputs[1])),
            ("list1", list_inputs, (inputs[1], zero, *lists)),
            ("scatter1", scatter[1], (*lists, weights("forward1"), work.target)),
            ("pool1", pools[1], (work.target, weights("bias1"), won[1], inputs[2])),
            ("linear", linear, (kept, memory.weights, logits, work.target)),
            (
                "cross-entropy",
                cross_entropy,
                (logits[None], label, 0.0, 1.0, loss, np.zeros((1, 10), np.float32)),
            ),
            ("linear back", linear_back, (gradient, kept, memory.weights, sums, work.gradients)),
            (
                "gradients1",
                list_gradients[1],
                (back[2], inputs[2], won[1], zero, np.zeros(20, np.float32), work),
            ),
            ("windows1", windows[1], (inputs[1], *by_output, own_sums[1])),
            ("back1", scatter_back, (*lists, weights("backward1"), back[1])),
            (
                "gradients0",
                list_gradients[0],
                (back[1], inputs[1], won[0], zero, np.zeros(20, np.float32), work),
            ),
            ("windows0", windows[0], (inputs[0], *by_output, own_sums[0])),
        ]
        for name, function, arguments in calls:
            yield name, lambda function=function, arguments=arguments: function(*arguments)


def table(report: dict) -> str:
    loops, step = report["loops"], report["step"]
    rows = [(title, loops[name], loops[name] / step) for name, title in PARTS.items()]
    rest = step - sum(loops.values())
    rows.append(("everything else: Python, Paddle's tensors, optimizer", rest, rest / step))
    rows.append(("a step", step, 1.0))
    return markdown_table(
        {"what": "", "microseconds an image": ".1f", "share": ".1%"},
        rows,
        f"One thread, batches of {BATCH}; each loop is timed by itself, on images of the training "
        "split and with the trained weights that come with the package.",
    )

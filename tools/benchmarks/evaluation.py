"""Evaluation of the eval split: the tutorial's way and ours, in turns."""

import gzip
import json
import time

from markdown_tables import table as markdown_table

from benchmarks.data import json_file
from benchmarks.timing import medians

TITLES = {
    "theirs": "the tutorial's: image by image from lists, batches of 100",
    "plain": "ours, with Paddle's layers",
    "ours": "ours",
}


def measure(source: str, rounds: int) -> dict:
    """Median seconds of an evaluation, once the images are there; the same weights."""
    import baseline_tutorial

    from paddle_mnist import MNIST, MnistDataset, evaluate
    from paddle_mnist.mnist.config import TrainConfig
    from paddle_mnist.parallel.process_count import fast_conv_threads

    path = json_file(source)
    with gzip.open(path) as file:
        batches = baseline_tutorial.load_data(json.load(file), "eval")
    dataset = MnistDataset("eval", str(path))
    model, net = MNIST(pretrained=True), baseline_tutorial.Net()
    net.set_state_dict(model.state_dict())
    seconds = {kind: [] for kind in TITLES}
    accuracy = {}
    threads = fast_conv_threads(TrainConfig())
    for round_number in range(rounds + 1):
        for kind in TITLES:
            model.fast_conv = threads if kind == "ours" else 0
            began = time.perf_counter()
            if kind == "theirs":
                accuracy[kind] = baseline_tutorial.evaluate(net, batches)
            else:
                accuracy[kind] = evaluate(model, dataset).accuracy
            if round_number > 0:  # the first warms up
                seconds[kind].append(time.perf_counter() - began)
    return {
        "rounds": rounds,
        "images": len(dataset),
        "seconds": medians(seconds),
        "accuracy": {kind: accuracy[kind] for kind in ("theirs", "ours")},
    }


def table(report: dict) -> str:
    seconds, accuracy = report["seconds"], report["accuracy"]
    same = abs(accuracy["theirs"] - accuracy["ours"]) < 1e-6  # of float32
    return markdown_table(
        {"evaluation": "", "seconds": ".2f", "times faster": ".1f"},
        [
            (title, seconds[kind], seconds["theirs"] / seconds[kind])
            for kind, title in TITLES.items()
        ],
        f"{report['images']:,} images; accuracies {'equal' if same else 'differ'}.",
    )

"""Evaluation of the eval split: the tutorial's way and ours, in turns."""

import gzip
import json
import statistics
import time

from benchmarks.data import json_file


def measured(source: str, rounds: int) -> dict:
    """Median seconds of an evaluation, once the images are there; the same weights."""
    import baseline_tutorial

    from paddle_mnist import MNIST, MnistDataset, evaluate
    from paddle_mnist.mnist.config import TrainConfig
    from paddle_mnist.parallel.process_count import fast_conv_threads

    path = json_file(source)
    with gzip.open(path) as file:
        theirs = baseline_tutorial.load_data(json.load(file), "eval")
    dataset = MnistDataset("eval", str(path))
    model, net = MNIST(pretrained=True), baseline_tutorial.Net()
    net.set_state_dict(model.state_dict())
    kinds = {"theirs": [], "plain": [], "ours": []}
    threads = fast_conv_threads(TrainConfig())
    for _ in range(rounds + 1):
        for kind, seconds in kinds.items():
            model.fast_conv = threads if kind == "ours" else 0
            began = time.perf_counter()
            if kind == "theirs":
                accuracy = baseline_tutorial.evaluate(net, theirs)
            else:
                found = evaluate(model, dataset)
            seconds.append(time.perf_counter() - began)
    medians = {kind: statistics.median(seconds[1:]) for kind, seconds in kinds.items()}
    return {
        "rounds": rounds,
        "images": len(dataset),
        "seconds": medians,
        "accuracy": {"theirs": accuracy, "ours": found.accuracy},
    }


def table(report: dict) -> str:
    seconds = report["seconds"]
    rows = ["| evaluation | seconds | times faster |", "|---|---|---|"]
    for kind, title in (
        ("theirs", "the tutorial's: image by image from lists, batches of 100"),
        ("plain", "ours, with Paddle's layers"),
        ("ours", "ours"),
    ):
        rows.append(f"| {title} | {seconds[kind]:.2f} | {seconds['theirs'] / seconds[kind]:.1f} |")
    same = abs(report["accuracy"]["theirs"] - report["accuracy"]["ours"]) < 1e-6  # of float32
    rows += ["", f"{report['images']:,} images; accuracies {'equal' if same else 'differ'}."]
    return "\n".join(rows)

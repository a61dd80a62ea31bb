"""What the documents' ways of counting, sorting, resuming and sharing come to."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.compared import QUICK, Scale
from reproduction.shown import Shown
from reproduction.trainings import QUIET

TRAIN = Path(__file__).parents[1] / "train.py"
SIZES = (100, 64, 96, 3000)


def averages(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """The pretrained net's answers on the eval split, averaged batch by batch, and counted."""
    from paddle_mnist import MNIST, MnistDataset, evaluate

    found = evaluate(MNIST(pretrained=True), MnistDataset("eval", data))
    right = found.labels == found.predictions
    means = {}
    for size in SIZES:
        batches = [right[start : start + size] for start in range(0, len(right), size)]
        means[str(size)] = sum(batch.mean() for batch in batches) / len(batches)
    return {"counted": found.accuracy, "images": len(right), "mean_of_means": means}


def averages_table(report: Mapping[str, Any]) -> str:
    rows = [
        "| batches of | mean of the batches' accuracies | counted | off by |",
        "|---|---|---|---|",
    ]
    counted = report["counted"]
    for size, mean in report["mean_of_means"].items():
        off = round(mean - counted, 7) + 0.0  # no minus before a zero
        rows.append(f"| {size} | {mean:.4%} | {counted:.4%} | {off:+.4%} |")
    return "\n".join(rows)


def averages_verdict(report: Mapping[str, Any]) -> str:
    off = max(abs(mean - report["counted"]) for mean in report["mean_of_means"].values())
    return (
        f"Right only where the batches divide the {report['images']:,} images; here off by up to "
        f"{off:.3%}."
    )


EPOCHS = 12


def names(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Real checkpoints of twelve short epochs; the newest by name, and by what they say."""
    from paddle_mnist.rundir import RunDirectory

    told = ["--recipe", "digits", "--epochs", str(EPOCHS), "--train_limit", "320", *QUIET]
    _train([*told, "--output", str(output)])
    store = RunDirectory(output).checkpoints
    by_name = sorted(path.name for path in store.folder.glob("*.pdparams"))[-1]
    return {"by_name": by_name, "newest": f"{store.newest().name}.pdparams", "epochs": EPOCHS}


def names_table(report: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            "| the newest of the checkpoints of epochs "
            f"0 to {report['epochs'] - 1} | is taken to be |",
            "|---|---|",
            f"| by name, as in the document | `{report['by_name']}` |",
            f"| by the step in the manifest | `{report['newest']}` |",
        ]
    )


def names_verdict(report: Mapping[str, Any]) -> str:
    wrong = report["by_name"] != report["newest"]
    return "Names sorted as texts lose epochs." if wrong else "The names sort rightly."


def resumed(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """The recipe `tutorial-resume`, unbroken, and killed after its first epoch and resumed."""
    told = ["--recipe", "tutorial-resume", "--data", data, *QUIET]
    if scale.quick:
        told += [word for key, value in QUICK.items() for word in (f"--{key}", str(value))]
        told += ["--epochs", "2"]
    unbroken, broken = output / "unbroken", output / "broken"
    _train([*told, "--output", str(unbroken)])
    with subprocess.Popen(
        [sys.executable, str(TRAIN), *told, "--output", str(broken)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not list((broken / "checkpoints").glob("mnist_epoch0.json")):
            time.sleep(0.01)
            if process.poll() is not None:
                break
        process.send_signal(signal.SIGKILL)
    _train([*told, "--output", str(broken)])
    weights = [(folder / "mnist.pdparams").read_bytes() for folder in (unbroken, broken)]
    losses = [_losses(folder) for folder in (unbroken, broken)]
    return {
        "sha256": [hashlib.sha256(one).hexdigest() for one in weights],
        "losses_compared": len(losses[0]),
        "losses_equal": losses[0] == losses[1],
    }


def _losses(folder: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [(line["step"], line["value"]) for line in lines if line["tag"] == "train/loss"]


def resumed_table(report: Mapping[str, Any]) -> str:
    rows = ["| training | SHA-256 of the weights |", "|---|---|"]
    for title, digest in zip(("unbroken", "killed and resumed"), report["sha256"]):
        rows.append(f"| {title} | `{digest[:24]}...` |")
    return "\n".join(rows)


def resumed_verdict(report: Mapping[str, Any]) -> str:
    first, second = report["sha256"]
    same = first == second and report["losses_equal"]
    return (
        f"The same to the last bit, and so are the {report['losses_compared']} losses of the log: "
        '"about the same" is too modest.'
        if same
        else "Not the same."
    )


def everyone(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """One epoch in two processes: each with all images, as the document's loop, and its share."""
    from paddle_mnist.distributed import spawn

    output.mkdir(parents=True, exist_ok=True)
    found = {}
    for way in ("everyone all", "each its share"):
        path = output / f"{way}.json"
        limit = QUICK["train_limit"] if scale.quick else None
        spawn(_epoch, (data, limit, way == "each its share", str(path)), 2)
        found[way] = json.loads(path.read_text("utf-8"))
    return found


def _epoch(data: str, limit: int, shared: bool, path: str) -> None:
    from paddle.nn.functional import cross_entropy

    from paddle_mnist import MnistDataset, TrainConfig, Trainer, evaluate
    from paddle_mnist.data import open_data
    from paddle_mnist.data.dataset import BatchLoader, epoch_batches, shards_of
    from paddle_mnist.distributed import join
    from paddle_mnist.exchange import make_exchange
    from paddle_mnist.start import build

    world = join()
    config = TrainConfig(epochs=1, train_limit=limit)
    parts = build(config, open_data(data), None, world)
    loader = parts.loader
    if not shared:  # in an order of its own, as the document's shuffle has it
        dataset = MnistDataset("train", data, limit)
        loader = BatchLoader(dataset, config.batch_size, seed=1 + world.rank)
    exchange = make_exchange(parts.model, world, None)
    # DataParallel takes the mean of the processes' gradients, the exchange their sum.
    part = 1 if shared else 1 / world.size
    trainer = Trainer(
        *(f"{path}.pdparams", parts.model, parts.optimizer),
        loss_fn=lambda logits, labels: part * cross_entropy(logits, labels),
        exchange=exchange,
    )
    world.gather_objects(None)
    began = time.perf_counter()
    samples = 0
    for batch in epoch_batches(loader, 0):
        trainer.train_step(batch)
        samples += sum(len(shard.labels) for shard in shards_of(batch))
    samples = sum(world.gather_objects(samples))
    seconds = time.perf_counter() - began
    found = evaluate(parts.model, MnistDataset("eval", data), world)
    if world.leads:
        report = {"steps": trainer.state.step, "samples": samples, "seconds": seconds}
        report["eval_acc"] = found.accuracy
        Path(path).write_text(json.dumps(report), "utf-8")


def everyone_table(report: Mapping[str, Any]) -> str:
    rows = ["| one epoch in two processes | steps | samples | seconds | eval accuracy |"]
    rows.append("|---|---|---|---|---|")
    for way, one in report.items():
        rows.append(
            f"| {way} | {one['steps']:,} | {one['samples']:,} | {one['seconds']:.0f} | "
            f"{one['eval_acc']:.2%} |"
        )
    return "\n".join(rows)


def everyone_verdict(report: Mapping[str, Any]) -> str:
    every, share = report["everyone all"], report["each its share"]
    return (
        f"Every process trains on everything: {every['samples'] / share['samples']:.1f} times the "
        f"samples and {every['seconds'] / share['seconds']:.1f} times the seconds of an epoch, for "
        "no fewer steps; a second process brings nothing but a larger batch."
    )


def _train(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(TRAIN), *arguments],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, arguments, done.stdout, done.stderr)


CLAIMS = (
    Shown(
        "averages",
        "the tutorial, part two",
        "the accuracy is the mean of the batches' accuracies",
        "the pretrained net on the eval split, in batches of several sizes",
        averages,
        averages_table,
        averages_verdict,
    ),
    Shown(
        "names",
        "ModelArts: resume",
        "the newest checkpoint is the last by name",
        "twelve epochs of the embedded digits",
        names,
        names_table,
        names_verdict,
    ),
    Shown(
        "resumed",
        "the tutorial, part three",
        'a resumed training has "about the same" losses as an unbroken one',
        "recipe `tutorial-resume`, killed by SIGKILL after its first epoch and started again",
        resumed,
        resumed_table,
        resumed_verdict,
    ),
    Shown(
        "everyone",
        "the tutorial, several GPUs",
        "several devices train faster with the document's loop, which reads all data in each",
        "two processes on CPUs, batches of 64 in each (all) or of both together (share)",
        everyone,
        everyone_table,
        everyone_verdict,
    ),
)

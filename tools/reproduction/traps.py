"""What the documents' ways of counting, of sharing work and of stepping come to."""

import json
import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.compared import QUICK, Scale
from reproduction.shown import Shown

SIZES = (100, 64, 96, 3000)
FIRST, LAST, STEPS = 0.01, 0.001, 100  # rates of the tutorial's part three; steps of a trial
SAVES = 300


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
    judged = "Refuted in general" if off else "Confirmed for these"
    return (
        f"{judged}: right only where the batches divide the {report['images']:,} images; "
        f"here off by up to {off:.3%}."
    )


def everyone(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """One epoch in one process; in two with all images each, as in the document; and shared."""
    from paddle_mnist.distributed import spawn

    output.mkdir(parents=True, exist_ok=True)
    found = {}
    for way, processes in (("one process", 1), ("everyone all", 2), ("each its share", 2)):
        path = output / f"{way}.json"
        limit = QUICK["train_limit"] if scale.quick else None
        spawn(_epoch, (data, limit, way != "everyone all", str(path)), processes)
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
    config = TrainConfig(epochs=1, train_limit=limit, threads=1)
    parts = build(config, open_data(data), None, world)
    loader = parts.loader
    if not shared:  # in an order of its own, as the document's shuffle has it
        dataset = MnistDataset("train", data, limit)
        loader = BatchLoader(dataset, config.batch_size, seed=1 + world.rank, shuffle=True)
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
    rows = ["| one epoch | steps | samples | seconds | eval accuracy |"]
    rows.append("|---|---|---|---|---|")
    for way, one in report.items():
        rows.append(
            f"| {way} | {one['steps']:,} | {one['samples']:,} | {one['seconds']:.0f} | "
            f"{one['eval_acc']:.2%} |"
        )
    return "\n".join(rows)


def everyone_verdict(report: Mapping[str, Any]) -> str:
    one, every, share = report.values()
    judged = "Refuted" if every["seconds"] >= one["seconds"] else "Confirmed"
    return (
        f"{judged}: every process trains on everything, "
        f"{every['samples'] / share['samples']:.1f} times the samples of a shared epoch. "
        "Against one process an epoch takes "
        f"{every['seconds'] / one['seconds']:.2f} of the seconds, with shares "
        f"{share['seconds'] / one['seconds']:.2f}; what a second process brings is a batch twice "
        "as large."
    )


def unstepped(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """The rate at the end of some real steps, with Paddle's own schedule."""
    import itertools

    import paddle
    from paddle.nn.functional import cross_entropy

    from paddle_mnist import MNIST, BatchLoader, MnistDataset
    from paddle_mnist.data.dataset import epoch_batches

    found = {}
    for way in ("never, as in the document", "after each batch"):
        model, schedule = MNIST(), paddle.optimizer.lr.PolynomialDecay(FIRST, STEPS, LAST)
        optimizer = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
        loader = BatchLoader(MnistDataset("train", data), 2, shuffle=False)
        for images, labels in itertools.islice(epoch_batches(loader, 0), STEPS):
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.clear_grad()
            if way == "after each batch":
                schedule.step()
        found[way] = optimizer.get_lr()
    return found


def unstepped_table(report: Mapping[str, Any]) -> str:
    rows = [f"| `scheduler.step()` | rate after {STEPS} steps of {STEPS} |", "|---|---|"]
    return "\n".join([*rows, *(f"| {way} | {rate:g} |" for way, rate in report.items())])


def unstepped_verdict(report: Mapping[str, Any]) -> str:
    never, each = report.values()
    judged = "Refuted" if abs(never - FIRST) < 1e-9 else "Confirmed"
    return f"{judged}: never stepped, the rate ends at {never:g}; stepped, at {each:g}."


def race(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Two processes save to one path, again and again; how often it cannot be read meanwhile."""
    import paddle

    output.mkdir(parents=True, exist_ok=True)
    found = {}
    for way, save, processes in (("everybody", _save, 2), ("one", _save_atomically, 1)):
        path = output / f"{way}.pdparams"
        context = multiprocessing.get_context("spawn")
        count = SAVES // 10 if scale.quick else SAVES
        saving = [context.Process(target=save, args=(str(path), count)) for _ in range(processes)]
        for process in saving:
            process.start()
        looks = broken = 0
        while any(process.is_alive() for process in saving):
            if path.exists():
                looks += 1
                try:
                    paddle.load(str(path))
                except Exception:  # half a pickle raises nearly anything
                    broken += 1
        found[way] = {"saves": count * processes, "looks": looks, "broken": broken}
    return found


def _save(path: str, count: int) -> None:
    import paddle

    from paddle_mnist import MNIST

    model = MNIST()
    for _ in range(count):
        paddle.save(model.state_dict(), path)


def _save_atomically(path: str, count: int) -> None:
    import paddle

    from paddle_mnist import MNIST, Trainer

    model = MNIST()
    trainer = Trainer(path, model, paddle.optimizer.SGD(parameters=model.parameters()))
    for _ in range(count):
        trainer.save()


def race_table(report: Mapping[str, Any]) -> str:
    rows = ["| one path, saved to by | saves | looks at it | not readable |", "|---|---|---|---|"]
    titles = {"everybody": "each of two processes, `paddle.save`", "one": "one of them, here"}
    for way, one in report.items():
        rows.append(f"| {titles[way]} | {one['saves']:,} | {one['looks']:,} | {one['broken']:,} |")
    return "\n".join(rows)


def race_verdict(report: Mapping[str, Any]) -> str:
    theirs, ours = report["everybody"], report["one"]
    judged = "Refuted" if theirs["broken"] else "Undecided"
    return (
        f"{judged}: {theirs['broken'] / theirs['looks']:.1%} of the looks found a file that cannot "
        f"be read, a part or a mixture; here {ours['broken'] / ours['looks']:.1%}, for one "
        "process writes, to another name first."
    )


CLAIMS = (
    Shown(
        "averages",
        "the tutorial, part two",
        "the accuracy is the mean of the batches' accuracies",
        "the pretrained net on the eval split, in batches of several sizes",
        averages,
        averages_table,
        averages_verdict,
        settings=SIZES,
        of_the_weights=True,
    ),
    Shown(
        "everyone",
        "the tutorial, several GPUs",
        "several devices train faster with the document's loop, which reads all data in each",
        "processes on CPUs, one thread each; batches of 64 in each (all) or together (share); the "
        "gradients by this package's exchange, which gives what `DataParallel` gives",
        everyone,
        everyone_table,
        everyone_verdict,
    ),
    Shown(
        "race",
        "the tutorial, several GPUs",
        "every process saves the net, to one and the same path",
        "two processes that do nothing else, a third that reads",
        race,
        race_table,
        race_verdict,
        settings=SAVES,
    ),
    Shown(
        "unstepped",
        "the tutorial, part three",
        f"`PolynomialDecay` from {FIRST} to {LAST}, without a call of `scheduler.step()`",
        "real steps of Momentum with Paddle's own schedule",
        unstepped,
        unstepped_table,
        unstepped_verdict,
        settings=[FIRST, LAST, STEPS],
    ),
)

"""What the tutorial's loop for several GPUs comes to: all data in each, one file for all."""

import json
import multiprocessing
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.compared import QUICK, Scale
from reproduction.shown import SAVING, Shown

SAVES = 300
ROUNDS, LIMIT = 3, 16_000  # images of an epoch that is timed


def everyone(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """An epoch in one process; in two with all images each, as in the document; and shared.

    In turns, ROUNDS times.
    """
    from paddle_mnist.parallel.world import spawn

    output.mkdir(parents=True, exist_ok=True)
    found = {}
    for _ in range(ROUNDS):
        for way, processes in (("one process", 1), ("everyone all", 2), ("each its share", 2)):
            path = output / f"{way}.json"
            limit = QUICK["train_limit"] if scale.quick else LIMIT
            spawn(_epoch, (data, limit, way != "everyone all", str(path)), processes)
            report = json.loads(path.read_text("utf-8"))
            before = found.get(way, {"seconds": []})["seconds"]
            found[way] = {**report, "seconds": [*before, report["seconds"]]}
    return found


def _epoch(data: str, limit: int, shared: bool, path: str) -> None:
    from paddle.nn.functional import cross_entropy

    from paddle_mnist import MnistDataset, TrainConfig, Trainer, evaluate
    from paddle_mnist.data.loader import BatchLoader, epoch_batches, shards_of
    from paddle_mnist.mnist.cache import open_data
    from paddle_mnist.mnist.setup import build
    from paddle_mnist.parallel.gradients import build_gradient_exchange
    from paddle_mnist.parallel.world import join

    world = join()
    config = TrainConfig(epochs=1, train_limit=limit, threads=1)
    parts = build(config, open_data(data), None, world)
    loader = parts.loader
    if not shared:  # in an order of its own, as the document's shuffle has it
        dataset = MnistDataset("train", data, limit)
        loader = BatchLoader(dataset, config.batch_size, seed=1 + world.rank, shuffle=True)
    exchange = build_gradient_exchange(parts.model, world, None)
    # DataParallel takes the mean of the processes' gradients, the exchange their sum.
    part = 1 if shared else 1 / world.size
    trainer = Trainer(
        *(f"{path}.pdparams", parts.model, parts.optimizer),
        loss_fn=lambda logits, labels: part * cross_entropy(logits, labels),
        exchange=exchange,
    )
    world.all_gather_objects(None)
    began = time.perf_counter()
    samples = 0
    for batch in epoch_batches(loader, 0):
        trainer.train_step(batch)
        samples += sum(len(shard.labels) for shard in shards_of(batch))
    samples = sum(world.all_gather_objects(samples))
    seconds = time.perf_counter() - began
    found = evaluate(parts.model, MnistDataset("eval", data), world)
    if world.is_main_process:
        report = {"steps": trainer.state.step, "samples": samples, "seconds": seconds}
        report["eval_acc"] = found.accuracy
        Path(path).write_text(json.dumps(report), "utf-8")


def everyone_table(report: Mapping[str, Any]) -> str:
    rows = ["| one epoch | steps | samples | seconds: median | least | most | eval accuracy |"]
    rows.append("|---|---|---|---|---|---|---|")
    for way, one in report.items():
        rows.append(
            f"| {way} | {one['steps']:,} | {one['samples']:,} | "
            f"{statistics.median(one['seconds']):.1f} | {min(one['seconds']):.1f} | "
            f"{max(one['seconds']):.1f} | {one['eval_acc']:.2%} |"
        )
    return "\n".join(rows)


def everyone_verdict(report: Mapping[str, Any]) -> str:
    one, every, share = report.values()
    judged = "Undecided"
    if min(every["seconds"]) > max(one["seconds"]):
        judged = "Refuted"
    elif max(every["seconds"]) < min(one["seconds"]):
        judged = "Confirmed"
    alone, all_, shared = (statistics.median(way["seconds"]) for way in report.values())
    return (
        f"{judged}: an epoch takes {all_ / alone:.2f} times the seconds of one process, for each "
        f"trains on everything, {every['samples'] / share['samples']:.1f} times the samples of a "
        f"shared epoch, which takes {shared / alone:.2f} times. What a second process brings is a "
        "batch twice as large. (How much two processes gain depends on the machine: "
        "docs/several-processes.md.)"
    )


def race(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Processes save to one path, again and again; how often it cannot be read meanwhile, and
    whether it can when all have ended."""
    output.mkdir(parents=True, exist_ok=True)
    found = {}
    ways = (("everybody", _save, 2), ("one", _save, 1), ("here", _save_atomically, 1))
    for way, save, processes in ways:
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
                broken += not _readable(path)
        report = {"saves": count * processes, "looks": looks, "broken": broken}
        found[way] = {**report, "readable_after": _readable(path)}
    return found


def _readable(path: Path) -> bool:
    import paddle

    try:
        paddle.load(str(path))
    except Exception:  # half a pickle raises nearly anything
        return False
    return True


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
    rows = [
        "| one path, saved to by | saves | looks at it | not readable | readable in the end |",
        "|---|---|---|---|---|",
    ]
    titles = {
        "everybody": "each of two processes, `paddle.save`",
        "one": "one process, `paddle.save`",
        "here": "one process, `Trainer.save` here",
    }
    for way, one in report.items():
        after = "yes" if one["readable_after"] else "no"
        rows.append(
            f"| {titles[way]} | {one['saves']:,} | {one['looks']:,} | {one['broken']:,} | {after} |"
        )
    return "\n".join(rows)


def race_verdict(report: Mapping[str, Any]) -> str:
    two, one, ours = (way["broken"] / way["looks"] for way in report.values())
    judged = "Refuted" if two or one else "Undecided"
    after = all(way["readable_after"] for way in report.values())
    return (
        f"{judged}: while one process saves in place {one:.1%} of the looks cannot load the file, "
        f"while two do {two:.1%}; here, where one writes, and to another name first, {ours:.1%}. "
        + ("In the end it loads in each case" if after else "In the end it does not always load")
        + "."
    )


CLAIMS = (
    Shown(
        "everyone",
        "the tutorial, several GPUs",
        "several devices train faster with the document's loop, which reads all data in each",
        "processes on CPUs, one thread each; batches of 64 in each (all) or together (share); the "
        "gradients by this package's exchange, which gives what `DataParallel` gives",
        everyone,
        everyone_table,
        everyone_verdict,
        settings=[ROUNDS, LIMIT],
        uses=(_epoch,),
    ),
    Shown(
        "race",
        "the tutorial, several GPUs",
        "a file may be read while one process, or every process, saves the net to it",
        "one or two processes that do nothing else, another that reads",
        race,
        race_table,
        race_verdict,
        settings=SAVES,
        uses=(_save, _save_atomically, _readable, *SAVING),
    ),
)

"""What the tutorial's loop for several GPUs comes to: all data in each, one file for all."""

import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

from markdown_tables import table
from measuring.parts import build_parts

from reproduction.claims import Experiment, Report
from reproduction.comparison import QUICK
from reproduction.workspace import Scale

SAVES = 300
ROUNDS, LIMIT = 3, 16_000  # images of an epoch that is timed


def measure_everyone(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Time an epoch in one process; in two with all images each, as in the document; and shared.

    They take turns, ROUNDS times.
    """
    from paddle_mnist.parallel.world import spawn

    limit = scale.choose(LIMIT, QUICK["train_limit"])
    report = {}
    for _ in range(ROUNDS):
        for way, processes in (("one process", 1), ("everyone all", 2), ("each its share", 2)):
            path = output / f"{way}.json"
            spawn(_epoch, (data, limit, way != "everyone all", str(path)), processes)
            epoch = json.loads(path.read_text("utf-8"))
            before = report.get(way, {"seconds": []})["seconds"]
            report[way] = {**epoch, "seconds": [*before, epoch["seconds"]]}
    return report


def _epoch(data: str, limit: int, shared: bool, path: str) -> None:
    from paddle.nn.functional import cross_entropy

    from paddle_mnist import MnistDataset, TrainConfig, Trainer, evaluate
    from paddle_mnist.data.loader import BatchLoader, shards_of
    from paddle_mnist.mnist.setup import parts as parts_of
    from paddle_mnist.parallel.gradients import build_gradient_exchange
    from paddle_mnist.parallel.world import join

    world = join()
    config = TrainConfig(data=data, epochs=1, train_limit=limit, threads=1)
    parts = build_parts(parts_of(config), world)
    loader = parts.loader
    if not shared:  # in an order of its own, as the document's shuffle has it
        dataset = MnistDataset("train", data, limit)
        loader = BatchLoader(dataset, config.batch_size, seed=1 + world.rank, shuffle=True)
    # DataParallel takes the mean of the processes' gradients, the exchange their sum.
    weight = 1 if shared else 1 / world.size
    trainer = Trainer(
        f"{path}.pdparams",
        parts.model,
        parts.optimizer,
        loss_fn=lambda logits, labels: weight * cross_entropy(logits, labels),
        exchange=build_gradient_exchange(parts.model, world, None),
    )
    world.all_gather_objects(None)
    began = time.perf_counter()
    samples = 0
    for batch in loader.epoch(0):
        trainer.train_step(batch)
        samples += sum(shard.samples for shard in shards_of(batch))
    samples = sum(world.all_gather_objects(samples))
    seconds = time.perf_counter() - began
    evaluation = evaluate(parts.model, MnistDataset("eval", data), world)
    if world.is_main_process:
        report = {"steps": trainer.state.step, "samples": samples, "seconds": seconds}
        report["eval_acc"] = evaluation.accuracy
        Path(path).write_text(json.dumps(report), "utf-8")


def tabulate_everyone(report: Report) -> str:
    whole = {"one epoch": "", "steps": ",d", "samples": ",d"}
    seconds = {"seconds: median": ".1f", "min": ".1f", "max": ".1f"}
    titles = (
        "one process",
        "two processes, each with all the data",
        "two processes, each with its share",
    )
    rows = (
        (
            title,
            one["steps"],
            one["samples"],
            *(figure(one["seconds"]) for figure in (statistics.median, min, max)),
            one["eval_acc"],
        )
        for title, one in zip(titles, report.values())
    )
    return table({**whole, **seconds, "eval accuracy": ".2%"}, rows)


def compare_epochs(report: Report) -> dict[str, Any]:
    """Return the median times relative to one process, the samples, and what always takes longer.

    slower: whether each epoch with all the data takes longer than each epoch of one process.
    """
    one, every, share = report.values()
    alone, every_seconds, shared = (statistics.median(way["seconds"]) for way in report.values())
    return {
        "every": every_seconds / alone,
        "shared": shared / alone,
        "samples": every["samples"] / share["samples"],
        "slower": min(every["seconds"]) > max(one["seconds"]),
    }


def measure_race(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Save to one path from other processes, again and again, and read it meanwhile.

    Counts how often it cannot be read, and tells whether it can when all have ended.
    """
    context = multiprocessing.get_context("spawn")
    count = SAVES // 10 if scale.quick else SAVES
    report = {}
    ways = (("everybody", _save, 2), ("one", _save, 1), ("here", _save_atomically, 1))
    for way, save, processes in ways:
        path = output / f"{way}.pdparams"
        saving = [context.Process(target=save, args=(str(path), count)) for _ in range(processes)]
        for process in saving:
            process.start()
        looks = broken = 0
        while any(process.is_alive() for process in saving):
            if path.exists():
                looks += 1
                broken += not _is_readable(path)
        report[way] = {
            "saves": count * processes,
            "looks": looks,
            "broken": broken,
            "readable_after": _is_readable(path),
        }
    return report


def _is_readable(path: Path) -> bool:
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


WAYS = {
    "everybody": "two processes, `paddle.save`",
    "one": "one process, `paddle.save`",
    "here": "one process, this package's `Trainer.save`",
}


def tabulate_race(report: Report) -> str:
    counts = {"saves": ",d", "reads": ",d", "failed": ",d"}
    rows = (
        (
            WAYS[way],
            *(one[key] for key in ("saves", "looks", "broken")),
            "yes" if one["readable_after"] else "no",
        )
        for way, one in report.items()
    )
    return table({"saving to one path": "", **counts, "readable in the end": ""}, rows)


CLAIMS = (
    Experiment(
        "everyone",
        measure_everyone,
        tabulate_everyone,
        compare_epochs,
        settings={"rounds": ROUNDS, "images": LIMIT},
    ),
    Experiment("race", measure_race, tabulate_race, settings={"saves": SAVES}),
)

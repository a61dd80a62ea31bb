"""Trainings that are interrupted and resumed, against unbroken ones."""

import hashlib
import itertools
import json
import multiprocessing
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from markdown_tables import table
from measuring.children import command

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import PaddleMnistError
from reproduction.claims import Experiment, Report
from reproduction.comparison import QUICK
from reproduction.initialization import plain_steps
from reproduction.trainings import QUIET, train, train_losses
from reproduction.workspace import Scale

RECIPE = "tutorial-resume"
PLAIN = "plain Paddle, after its first epoch"
IN_ORDER = "killed after its first epoch"
SHUFFLED = "shuffled, killed within its second epoch"
BATCH, PLAIN_LOSSES = 32, 10  # of plain Paddle: images of a batch, steps between losses
REHEARSAL = {**QUICK, "epochs": 2, "batch_size": 4}


def measure(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Resume the document's way in plain Paddle, and the recipe `tutorial-resume` when killed.

    The recipe is killed and resumed in the document's order, which is the same in each epoch; and
    shuffled, within an epoch.
    """
    options = {"fast_conv": "on", "data": data, **(REHEARSAL if scale.quick else {})}
    shuffled = {**options, "shuffle": "true", "save_every_steps": 50}
    return {
        PLAIN: _measure_plain(data, output / "plain", 640 if scale.quick else None),
        IN_ORDER: _measure_killed(options, output / IN_ORDER),
        SHUFFLED: _measure_killed(shuffled, output / SHUFFLED),
    }


def _measure_killed(options: Mapping[str, Any], output: Path) -> dict[str, Any]:
    unbroken, broken = output / "unbroken", output / "broken"
    train(RECIPE, options, unbroken)
    killed_at = _train_and_kill(options, broken)
    train(RECIPE, options, broken)
    return _compare(unbroken, broken, killed_at, RunDirectory(unbroken).checkpoints.newest().step)


def _compare(unbroken: Path, resumed: Path, broken_at: int, steps: int) -> dict[str, Any]:
    """Compare the final weights, and the losses after the step that the training broke at."""
    losses, resumed_losses = train_losses(unbroken), train_losses(resumed)
    after = [step for step in losses if step > broken_at]
    if not after or after != [step for step in resumed_losses if step > broken_at]:
        raise PaddleMnistError(
            f"{resumed}: losses of steps {list(resumed_losses)}; expected those after {broken_at} "
            f"of {list(losses)}"
        )
    weights = ((folder / "mnist.pdparams").read_bytes() for folder in (unbroken, resumed))
    return {
        "sha256": [hashlib.sha256(data).hexdigest() for data in weights],
        "broken_at": broken_at,
        "steps": steps,
        "losses_compared": len(after),
        "losses_differ_by": max(abs(losses[step] - resumed_losses[step]) for step in after),
    }


def _measure_plain(data: str, output: Path, limit: Optional[int]) -> dict[str, Any]:
    """Train part three's loop in plain Paddle, each time in a process of its own.

    Three epochs; and one, whose weights and optimizer state are loaded for the other two.
    """
    from paddle_mnist import MnistDataset

    unbroken, first, resumed = (output / name for name in ("unbroken", "first", "resumed"))
    context = multiprocessing.get_context("spawn")
    for folder, epochs, start in (
        (unbroken, range(3), None),
        (first, range(1), None),
        (resumed, range(1, 3), first),
    ):
        arguments = (data, limit, epochs, folder, start)
        process = context.Process(target=_train_plain, args=arguments)
        process.start()
        process.join()
        if process.exitcode:
            raise PaddleMnistError(f"{folder}: the training ended with {process.exitcode}")
    steps = -(-len(MnistDataset("train", data, limit)) // BATCH)
    return _compare(unbroken, resumed, steps, 3 * steps)


def _train_plain(
    data: str, limit: Optional[int], epochs: range, folder: Path, start: Optional[Path]
) -> None:
    """Train the epochs as the document writes them, from the files in `start`; save in `folder`."""
    import paddle

    from paddle_mnist import MNIST, BatchLoader, MnistDataset

    paddle.seed(1)
    model = MNIST()
    model.fast_conv = 0
    schedule = paddle.optimizer.lr.PolynomialDecay(0.01, 4689, 0.001)  # never stepped, as there
    optimizer = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
    if start:
        model.set_state_dict(paddle.load(f"{start}/mnist.pdparams"))
        optimizer.set_state_dict(paddle.load(f"{start}/mnist.pdopt"))
    loader = BatchLoader(MnistDataset("train", data, limit), BATCH, shuffle=False)
    batches = itertools.chain.from_iterable(loader.epoch(epoch) for epoch in epochs)
    losses = plain_steps(model, optimizer, batches)
    lines = [
        {"step": step, "tag": "train/loss", "value": loss.item()}
        for step, loss in enumerate(losses, epochs.start * len(loader) + 1)
        if step % PLAIN_LOSSES == 0
    ]
    folder.mkdir(parents=True)
    paddle.save(model.state_dict(), f"{folder}/mnist.pdparams")
    paddle.save(optimizer.state_dict(), f"{folder}/mnist.pdopt")
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")


def _train_and_kill(options: Mapping[str, Any], folder: Path) -> int:
    """Kill a training once its first epoch is saved, and return the step of the last checkpoint.

    Where it also saves within epochs, it is killed after the next save.
    """
    store, first = RunDirectory(folder).checkpoints, folder / "checkpoints/mnist_epoch0.json"
    within = "save_every_steps" in options
    with subprocess.Popen(
        command("train.py", {"recipe": RECIPE, **QUIET, **options, "output": folder}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None and not (
            first.exists() and (not within or store.newest().name != first.stem)
        ):
            time.sleep(0.01)
        process.kill()
    if process.returncode != -signal.SIGKILL or (folder / "result.json").exists():
        raise PaddleMnistError(
            f"{folder}: the training was to be killed after its first epoch, but it ended with "
            f"{process.returncode}; expected {-signal.SIGKILL}"
        )
    return store.newest().step


def tabulate(report: Report) -> str:
    columns = {
        "interrupted": "",
        "resumed from step": "",
        "SHA-256 of the weights: uninterrupted": "",
        "resumed": "",
        "later losses compared": "d",
        "largest difference": ".2g",
    }
    rows = (
        (
            way,
            f"{one['broken_at']:,} of {one['steps']:,}",
            *(f"`{digest[:16]}...`" for digest in one["sha256"]),
            one["losses_compared"],
            one["losses_differ_by"],
        )
        for way, one in report.items()
    )
    return table(columns, rows)


def same_bits(one: Mapping[str, Any]) -> bool:
    """Return whether weights and losses are bit-identical."""
    return len(set(one["sha256"])) == 1 and one["losses_differ_by"] == 0


def find_equal(report: Report) -> dict[str, Any]:
    """Name the ways that come to the same bits as the unbroken training."""
    return {"equal": [way for way, one in report.items() if same_bits(one)]}


CLAIM = Experiment(
    "resumed", measure, tabulate, find_equal, settings={"plain_losses": PLAIN_LOSSES}
)

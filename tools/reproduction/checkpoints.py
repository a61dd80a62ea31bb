"""What the documents' ways of saving, naming and resuming come to."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.training.run_directory import RunDirectory
from reproduction.compared import QUICK, Scale
from reproduction.shown import SAVING, Shown
from reproduction.trainings import QUIET, TOOLS, run

TRAIN = TOOLS / "train.py"
EPOCHS = 12
PLAIN = "plain Paddle, after its first epoch"
ALIKE = 0.1  # losses that differ by less are "about the same"
PLAIN_LOSSES = 10  # every so many steps


def names(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Real checkpoints of twelve short epochs; the newest by name, and by what they say."""
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
    return (
        f"Refuted: names sorted as texts put `{report['by_name']}` after `{report['newest']}`."
        if wrong
        else "Confirmed: the names sort rightly."
    )


def resumed(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """The document's way in plain Paddle; and the recipe `tutorial-resume`, unbroken, and killed
    and resumed: in the document's order, the same in each epoch; and shuffled, within an epoch."""
    found = {PLAIN: _plainly(data, output / "plain", scale)}
    for way, more in (
        ("killed after its first epoch", []),
        (
            "shuffled, killed within its second epoch",
            ["--shuffle", "true", "--save_every_steps", "50"],
        ),
    ):
        told = ["--recipe", "tutorial-resume", "--fast_conv", "on", "--data", data, *QUIET, *more]
        if scale.quick:
            told += [word for key, value in QUICK.items() for word in (f"--{key}", str(value))]
            told += ["--epochs", "2", "--batch_size", "4"]
        unbroken, broken = output / way / "unbroken", output / way / "broken"
        _train([*told, "--output", str(unbroken)])
        killed_at = _killed([*told, "--output", str(broken)], broken, within=bool(more))
        _train([*told, "--output", str(broken)])
        steps = RunDirectory(unbroken).checkpoints.newest().step
        found[way] = _compared(
            *(unbroken / "mnist.pdparams", broken / "mnist.pdparams"),
            *(_losses(unbroken), _losses(broken)),
            *(killed_at, steps),
        )
    return found


def _compared(
    whole: Path,
    again: Path,
    losses: Mapping[int, float],
    later: Mapping[int, float],
    broken_at: int,
    steps: int,
) -> dict[str, Any]:
    """The weights of an unbroken training and of a resumed one, and their losses by step."""
    after = [step for step in losses if step > broken_at]
    if not after or after != [step for step in later if step > broken_at]:
        raise PaddleMnistError(
            f"{again}: losses of steps {list(later)}; expected those after {broken_at} of "
            f"{list(losses)}"
        )
    return {
        "sha256": [hashlib.sha256(one.read_bytes()).hexdigest() for one in (whole, again)],
        "broken_at": broken_at,
        "steps": steps,
        "losses_compared": len(after),
        "losses_differ_by": max(abs(losses[step] - later[step]) for step in after),
    }


def _plainly(data: str, folder: Path, scale: Scale) -> dict[str, Any]:
    """Part three's loop by Paddle alone, each time in a process of its own: three epochs; and one,
    whose weights and optimizer's state are loaded for the other two."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    losses, steps = {}, {}
    for way, first, last in (("unbroken", 0, 3), ("first", 0, 1), ("resumed", 1, 3)):
        told = (data, QUICK["train_limit"] * scale.quick, first, last, str(folder / way))
        start = str(folder / "first") if first else None
        process = context.Process(target=_epochs, args=(*told, start))
        process.start()
        process.join()
        if process.exitcode:
            raise PaddleMnistError(f"{folder / way}: the training ended with {process.exitcode}")
        told = json.loads((folder / f"{way}.json").read_text("utf-8"))
        losses[way], steps[way] = dict(told["losses"]), told["steps"]
    return _compared(
        *(folder / "unbroken.pdparams", folder / "resumed.pdparams"),
        *(losses["unbroken"], losses["resumed"]),
        *(steps["first"], steps["unbroken"]),
    )


def _epochs(data: str, limit: int, first: int, last: int, path: str, start: Optional[str]) -> None:
    """Epochs from first to before last, as the document writes them; saved at path."""
    import paddle
    from paddle.nn.functional import cross_entropy

    from paddle_mnist import MNIST, BatchLoader, MnistDataset
    from paddle_mnist.data.loader import epoch_batches

    paddle.seed(1)
    model = MNIST()
    model.fast_conv = 0
    schedule = paddle.optimizer.lr.PolynomialDecay(0.01, 4689, 0.001)  # never stepped, as there
    optimizer = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
    if start:
        model.set_state_dict(paddle.load(f"{start}.pdparams"))
        optimizer.set_state_dict(paddle.load(f"{start}.pdopt"))
    loader = BatchLoader(MnistDataset("train", data, limit or None), 32, shuffle=False)
    step, losses = first * len(loader), []
    for epoch in range(first, last):
        for images, labels in epoch_batches(loader, epoch):
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            step += 1
            if step % PLAIN_LOSSES == 0:
                losses.append([step, loss.item()])
    paddle.save(model.state_dict(), f"{path}.pdparams")
    paddle.save(optimizer.state_dict(), f"{path}.pdopt")
    Path(f"{path}.json").write_text(json.dumps({"steps": step, "losses": losses}), "utf-8")


def _killed(arguments: list[str], folder: Path, within: bool) -> int:
    """Train until the first epoch is saved, or, within the second, more; the step that is saved."""
    store, first = RunDirectory(folder).checkpoints, folder / "checkpoints/mnist_epoch0.json"
    with subprocess.Popen(
        [sys.executable, str(TRAIN), *arguments],
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


def _losses(folder: Path) -> dict[int, float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return {line["step"]: line["value"] for line in lines if line["tag"] == "train/loss"}


def resumed_table(report: Mapping[str, Any]) -> str:
    rows = [
        "| broken off | resumed from step | weights, SHA-256: unbroken | resumed | losses after "
        "it, compared | differ by at most |",
        "|---|---|---|---|---|---|",
    ]
    for way, one in report.items():
        digests = " | ".join(f"`{digest[:16]}...`" for digest in one["sha256"])
        rows.append(
            f"| {way} | {one['broken_at']:,} of {one['steps']:,} | {digests} | "
            f"{one['losses_compared']} | {one['losses_differ_by']:.2g} |"
        )
    return "\n".join(rows)


def same_bits(one: Mapping[str, Any]) -> bool:
    return len(set(one["sha256"])) == 1 and one["losses_differ_by"] == 0


def resumed_verdict(report: Mapping[str, Any]) -> str:
    plain, *ours = report.values()
    told = f"its losses differ by up to {plain['losses_differ_by']:.2g}"
    judged = "Confirmed" if plain["losses_differ_by"] < ALIKE else "Refuted"
    if same_bits(plain):
        told = "the weights and losses are the same bits, at an epoch's end and in a fixed order"
    here = "the same bits, killed within a shuffled epoch too"
    if not all(map(same_bits, ours)):
        off = max(one["losses_differ_by"] for one in ours)
        here = f"not the same bits, losses differ by up to {off:.2g}"
    return f"{judged} of the document's way in plain Paddle: {told}. This package: {here}."


def pattern(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """The three traps of the checkpoint pattern, walked into with real trainings."""
    told = ["--recipe", "digits", "--epochs", "2", "--train_limit", "640", *QUIET]
    by_clock, one = output / "by the clock", output / "one"
    _train([*told, "--save_every_seconds", "3600", "--output", str(by_clock)])
    saved = RunDirectory(by_clock).checkpoints.all()
    only = ["--keep_epochs", "false", "--keep_best", "false", "--keep_last", "1"]
    only += ["--save_every_steps", "1", "--output", str(one)]
    with subprocess.Popen(
        [sys.executable, str(TRAIN), *told, *only],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        counts = []
        while process.poll() is None:
            counts.append(len(list((one / "checkpoints").glob("*.json"))))
            time.sleep(0.001)
    if process.returncode or not any(counts):
        raise PaddleMnistError(
            f"{one}: a training that saves each step ended with {process.returncode} and "
            f"{max(counts, default=0)} checkpoints; expected 0, and some"
        )
    after_the_first = counts[next(i for i, count in enumerate(counts) if count) :]
    oldest, *_, newest = sorted(saved, key=lambda one: one.step)
    os.utime(oldest.path)  # as a copy would: now it is the youngest file
    files = [checkpoint.path for checkpoint in saved]
    return {
        "steps": newest.step,
        "saved": len(saved),
        "looks": len(after_the_first),
        "least": min(after_the_first),
        "by_mtime": max(files, key=os.path.getmtime).stem,
        "newest": RunDirectory(by_clock).checkpoints.newest().name,
    }


def pattern_table(report: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            "| trap | the pattern, by its own rules (not run) | here |",
            "|---|---|---|",
            "| save every hour, the steps left at their default of 1 | "
            f"{report['steps']} saves in {report['steps']} steps | "
            f"{report['saved']}: one an epoch |",
            "| keep 1, deleted before the next is written | none at times: a crash loses all | "
            f"at least {report['least']}, whole (its manifest is written last), in each of "
            f"{report['looks']:,} looks at a training that saves each step |",
            "| the newest by the files' times, one having been touched | "
            f"`{report['by_mtime']}` | `{report['newest']}` |",
        ]
    )


def pattern_verdict(report: Mapping[str, Any]) -> str:
    fine = (
        report["least"] > 0
        and report["by_mtime"] != report["newest"]
        and report["saved"] < report["steps"]
    )
    return (
        "Confirmed here, by these trainings; the pattern itself was not run."
        if fine
        else "Not all are avoided here."
    )


def _train(arguments: list[str]) -> None:
    run([str(TRAIN), *arguments], f"the training in {arguments[-1]}")


CLAIMS = (
    Shown(
        "names",
        "ModelArts: resume",
        "the newest checkpoint is the last by name",
        "twelve epochs of the embedded digits",
        names,
        names_table,
        names_verdict,
        settings=EPOCHS,
        uses=(_train, *SAVING),
    ),
    Shown(
        "resumed",
        "the tutorial, part three",
        'a resumed training has "about the same" losses as an unbroken one',
        "the document's code (Momentum, three epochs; its text says Adam and five) in plain "
        "Paddle, ended after one epoch and gone on with in another process; recipe "
        "`tutorial-resume`, the same with a rate that is stepped, with this package's convolution, "
        "killed by SIGKILL and started again. Both with Paddle's default weights",
        resumed,
        resumed_table,
        resumed_verdict,
        settings=PLAIN_LOSSES,
        uses=(_killed, _losses, _compared, _plainly, _epochs, _train, *SAVING),
    ),
    Shown(
        "pattern",
        "the checkpoint pattern, MindSpore's `CheckpointConfig`",
        "this package avoids three traps of the pattern",
        "real trainings of the embedded digits, against the rules that [MindSpore's documentation]("
        "https://www.mindspore.cn/docs/zh-CN/r2.3.1/api_python/train/"
        "mindspore.train.CheckpointConfig.html) gives (if steps are set, and by default they are "
        "1, the seconds are void); MindSpore itself was not run",
        pattern,
        pattern_table,
        pattern_verdict,
        uses=(_train, *SAVING),
    ),
)

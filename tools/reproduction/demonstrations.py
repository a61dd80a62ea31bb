"""Claims about the documents' ways of resuming, saving, loading and sharing.

Their code is in the scripts of `plain/`, which print JSON.
"""

import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from markdown_tables import table
from measuring.children import command, run_from_small_process

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import PaddleMnistError
from reproduction.claims import Experiment, Report
from reproduction.comparison import QUICK
from reproduction.trainings import QUIET, train, train_losses
from reproduction.workspace import Scale

PLAIN = Path(__file__).with_name("plain")


def plain(script: str, *arguments: Any, launcher: Sequence[str] = (), **environment: str) -> Any:
    """Run a script of `plain/` on one core; return the JSON that it prints, None for none."""
    words = [sys.executable, *launcher, PLAIN / script, *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = run_from_small_process(words, env=env)
    if done.code:
        raise PaddleMnistError(f"{script}: exit code {done.code}:\n{done.errors}")
    lines = [line for line in done.printed.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


# ------------------------------------------------------------------ checkpoints by name and time

EPOCHS = 12


def measure_names(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Write checkpoints of twelve short epochs; return the newest by name and by manifest."""
    train("digits", {"epochs": EPOCHS, "train_limit": 320}, output)
    store = RunDirectory(output).checkpoints
    by_name = max(path.name for path in store.folder.glob("*.pdparams"))
    return {"by_name": by_name, "newest": f"{store.newest().name}.pdparams", "epochs": EPOCHS}


def tabulate_names(report: Report) -> str:
    rows = [
        ("by name, as in the document", f"`{report['by_name']}`"),
        ("by the step in the manifest", f"`{report['newest']}`"),
    ]
    newest = f"newest of the checkpoints of epochs 0 to {report['epochs'] - 1}"
    return table({newest: "", "taken as the newest": ""}, rows)


def measure_pattern(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Walk into the three traps of the checkpoint pattern with real trainings."""
    options = {"epochs": 2, "train_limit": 640}
    by_clock, single = output / "by the clock", output / "single"
    train("digits", {**options, "save_every_seconds": 3600}, by_clock)
    saved = RunDirectory(by_clock).checkpoints.all()
    keep_one = {"keep_epochs": "false", "keep_best": "false", "keep_last": 1, "save_every_steps": 1}
    with checkpoints_counted(single / "checkpoints") as counts:
        train("digits", {**options, **keep_one}, single)
    oldest, *_, newest = sorted(saved, key=lambda checkpoint: checkpoint.step)
    os.utime(oldest.path)  # as a copy would: now it is the youngest file
    by_mtime = max((checkpoint.path for checkpoint in saved), key=os.path.getmtime)
    return {
        "steps": newest.step,
        "saved": len(saved),
        "looks": len(counts),
        "least": min(counts),
        "by_mtime": by_mtime.stem,
        "newest": RunDirectory(by_clock).checkpoints.newest().name,
    }


@contextmanager
def checkpoints_counted(folder: Path) -> Iterator[list[int]]:
    """Count the checkpoints of a folder every millisecond, from the first one on."""
    counts, ended = [], threading.Event()

    def look() -> None:
        while not ended.wait(0.001):
            count = len(list(folder.glob("*.json")))
            if count or counts:
                counts.append(count)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield counts
    finally:
        ended.set()
        thread.join()


def tabulate_pattern(report: Report) -> str:
    steps = report["steps"]
    rows = [
        (
            "save every hour, steps left at their default of 1",
            f"{steps} saves in {steps} steps",
            f"{report['saved']}: one per epoch",
        ),
        (
            "keep 1, deleted before the next is written",
            "sometimes none: a crash loses all",
            f"at least {report['least']} complete checkpoint in each of {report['looks']:,} looks "
            "during a training that saves each step",
        ),
        (
            "the newest by the files' times, after one was touched",
            f"`{report['by_mtime']}`",
            f"`{report['newest']}`",
        ),
    ]
    headers = ("trap", "the pattern, by its own rules (not run)", "this package")
    return table(dict.fromkeys(headers, ""), rows)


# ------------------------------------------------------------------ resuming

RECIPE = "tutorial-resume"
BY_HAND = "plain Paddle, after its first epoch"
IN_ORDER = "killed after its first epoch"
SHUFFLED = "shuffled, killed within its second epoch"


def measure_resumed(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Resume the document's way in plain Paddle, and the recipe `tutorial-resume` when killed.

    The recipe is killed and resumed in the document's order, which is the same in each epoch; and
    shuffled, within an epoch.
    """
    small = {**QUICK, "epochs": 2, "batch_size": 4} if scale.quick else {}
    options = {"fast_conv": "on", "data": data, **small}
    shuffled = {**options, "shuffle": "true", "save_every_steps": 50}
    return {
        BY_HAND: _resumed_by_hand(data, output / "plain", 640 if scale.quick else 0),
        IN_ORDER: _resumed(options, output / IN_ORDER),
        SHUFFLED: _resumed(shuffled, output / SHUFFLED),
    }


def _resumed_by_hand(data: str, output: Path, limit: int) -> dict[str, Any]:
    """Train three epochs; and one, from whose files another process trains the other two."""
    unbroken, first, resumed = (output / name for name in ("unbroken", "first", "resumed"))
    whole = plain("resume.py", data, limit, 0, 3, unbroken)
    broken = plain("resume.py", data, limit, 0, 1, first)
    rest = plain("resume.py", data, limit, 1, 3, resumed, first)
    losses = (whole["losses"], rest["losses"])
    return _compare((unbroken, resumed), losses, broken["steps"], whole["steps"])


def _resumed(options: Mapping[str, Any], output: Path) -> dict[str, Any]:
    unbroken, broken = output / "unbroken", output / "broken"
    train(RECIPE, options, unbroken)
    killed_at = _train_and_kill(options, broken)
    train(RECIPE, options, broken)
    folders = (unbroken, broken)
    steps = RunDirectory(unbroken).checkpoints.newest().step
    return _compare(folders, [train_losses(folder) for folder in folders], killed_at, steps)


def _compare(
    folders: Sequence[Path], losses: Sequence[Mapping[Any, float]], broken_at: int, steps: int
) -> dict[str, Any]:
    """Compare the final weights, and the losses after the step that the training broke at."""
    whole, resumed = ({int(step): loss for step, loss in one.items()} for one in losses)
    after = [step for step in whole if step > broken_at]
    if not after or after != [step for step in resumed if step > broken_at]:
        raise PaddleMnistError(
            f"{folders[1]}: losses of steps {list(resumed)}; expected those after {broken_at} of "
            f"{list(whole)}"
        )
    weights = ((folder / "mnist.pdparams").read_bytes() for folder in folders)
    return {
        "sha256": [hashlib.sha256(data).hexdigest() for data in weights],
        "broken_at": broken_at,
        "steps": steps,
        "losses_compared": len(after),
        "losses_differ_by": max(abs(whole[step] - resumed[step]) for step in after),
    }


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
        raise PaddleMnistError(f"{folder}: the training ended before it was killed")
    return store.newest().step


def tabulate_resumed(report: Report) -> str:
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


def find_equal(report: Report) -> dict[str, Any]:
    """Name the ways that come to the same bits as the unbroken training, losses included."""
    is_equal = {
        way: len(set(one["sha256"])) == 1 and one["losses_differ_by"] == 0
        for way, one in report.items()
    }
    return {"equal": [way for way in report if is_equal[way]]}


# ------------------------------------------------------------------ a schedule

NEVER, EACH = "never, as in the document", "after each batch"
SCHEDULED = 100  # steps


def measure_unstepped(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Return the rate at the end of some real steps, with Paddle's own schedule."""
    return plain("schedule.py", data, SCHEDULED)


def tabulate_unstepped(report: Report) -> str:
    columns = {"`scheduler.step()`": "", f"rate after {SCHEDULED} steps of {SCHEDULED}": "g"}
    return table(columns, zip(("never, as in the tutorial", EACH), report.values()))


# ------------------------------------------------------------------ several processes

ROUNDS, LIMIT, SAVES = 3, 16_000, 300  # LIMIT: images of an epoch that is timed
LAUNCH = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2")
EVERYONE = {
    "one process": "one process",
    "everyone all": "two processes, each with all the data",
    "each its share": "two processes, each with its share",
}
RACE = {
    "everybody": "two processes, `paddle.save`",
    "one": "one process, `paddle.save`",
    "here": "one process, this package's `Trainer.save`",
}


def measure_everyone(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Time an epoch in one process; in two with all images each, as in the document; and shared.

    They take turns, ROUNDS times.
    """
    limit = scale.choose(LIMIT, QUICK["train_limit"])
    launch = (*LAUNCH, "--log_dir", str(output / "log"))
    ways = zip(EVERYONE, ((), launch, launch), ("all", "all", "share"))
    report: dict[str, Any] = {way: {"seconds": []} for way in EVERYONE}
    for way, launcher, kind in list(ways) * scale.choose(ROUNDS, 1):
        path = output / f"{way}.json"
        arguments = (data, limit, kind, path)
        plain("parallel.py", *arguments, launcher=launcher, PADDLE_DISTRI_BACKEND="gloo")
        epoch = json.loads(path.read_text("utf-8"))
        report[way] = {**epoch, "seconds": [*report[way]["seconds"], epoch["seconds"]]}
    return report


def tabulate_everyone(report: Report) -> str:
    whole = {"one epoch": "", "steps": ",d", "samples": ",d"}
    seconds = {"seconds: median": ".1f", "min": ".1f", "max": ".1f"}
    rows = (
        (
            EVERYONE[way],
            one["steps"],
            one["samples"],
            *(figure(one["seconds"]) for figure in (statistics.median, min, max)),
            one["eval_acc"],
        )
        for way, one in report.items()
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
    count = SAVES // 10 if scale.quick else SAVES
    report = {}
    for way, kind, processes in (("everybody", "paddle", 2), ("one", "paddle", 1), ("here", "", 1)):
        path = output / f"{way}.pdparams"
        words = [sys.executable, PLAIN / "save.py", path, count, kind or "trainer"]
        saving = [subprocess.Popen([*map(str, words)]) for _ in range(processes)]
        looks = broken = 0
        while any(process.poll() is None for process in saving):
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


def tabulate_race(report: Report) -> str:
    counts = {"saves": ",d", "reads": ",d", "failed": ",d"}
    rows = (
        (
            RACE[way],
            *(one[key] for key in ("saves", "looks", "broken")),
            "yes" if one["readable_after"] else "no",
        )
        for way, one in report.items()
    )
    return table({"saving to one path": "", **counts, "readable in the end": ""}, rows)


# ------------------------------------------------------------------ trained weights

SEEDS = (1, 2, 3)
THEIRS = "`save` of its `Trainer`, the file"  # ways to leave weights behind
CALLERS = "`train(model)` of its part two, the caller's net"
OURS = "`Trainer.save` here, the file"
TITLES = {
    THEIRS: "the file written by `save` of its `Trainer`",
    CALLERS: "the caller's net after `train(model)` of its part two",
    OURS: "the file written by this package's `Trainer.save`",
}


def measure_globals(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Return, for each way, the accuracies of the trained nets and of what is left, by seed."""
    printed = [plain("globals.py", data, seed, output) for seed in scale.choose(SEEDS, SEEDS[:2])]
    ways = {THEIRS: "theirs", CALLERS: "callers", OURS: "ours"}
    return {
        way: {kind: [one[name][n] for one in printed] for n, kind in enumerate(("trained", "kept"))}
        for way, name in ways.items()
    }


def tabulate_globals(report: Report) -> str:
    rows = (
        (TITLES[way], _spread(one["trained"]), _spread(one["kept"])) for way, one in report.items()
    )
    headers = (
        "weights left behind",
        "accuracy of the trained net",
        "accuracy of the weights left behind",
    )
    return table(dict.fromkeys(headers, ""), rows)


def _spread(accuracies: Sequence[float]) -> str:
    mean, sd = statistics.mean(accuracies), statistics.stdev(accuracies)
    return f"{mean:.1%} (sd {sd:.1%}, {min(accuracies):.1%} to {max(accuracies):.1%})"


def find_lost(report: Report) -> dict[str, Any]:
    """Name the ways whose weights are far below those of the trained nets with every seed."""
    lost = (way for way, one in report.items() if max(one["kept"]) < min(one["trained"]) - 0.1)
    return {"lost": list(lost)}


def measure_partly(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Load a trained net's weights into one with another second convolution: Paddle's way, ours."""
    printed = [plain("partly.py", data, seed) for seed in scale.choose(SEEDS, SEEDS[:2])]
    return {
        **printed[-1],
        **{kind: [one[kind] for one in printed] for kind in ("trained", "loaded")},
        "untouched": all(one["untouched"] for one in printed),
    }


def tabulate_partly(report: Report) -> str:
    warnings = "; ".join(f"`{warning}`" for warning in report["warnings"]) or "-"
    refused = f"`{report['refused']}`" if "refused" in report else "no error"
    rows = [
        ("into the original net", None, _spread(report["trained"])),
        (
            "with `set_state_dict`",
            f"no error; warning: {warnings}",
            _spread(report["loaded"]),
        ),
        ("with this package", refused),
    ]
    headers = ("loaded into a net with 3x3 kernels in conv2", "outcome", "accuracy")
    return table(dict.fromkeys(headers, ""), rows)


CHECKPOINTS = ("paddle_mnist/checkpoint",)
NAMES = Experiment("names", measure_names, tabulate_names, code=CHECKPOINTS)
RESUMED = Experiment(
    "resumed", measure_resumed, tabulate_resumed, find_equal, code=("paddle_mnist/training",)
)
PATTERN = Experiment("pattern", measure_pattern, tabulate_pattern, code=CHECKPOINTS)
UNSTEPPED = Experiment(
    "unstepped",
    measure_unstepped,
    tabulate_unstepped,
    lambda report: {"never": report[NEVER], "each": report[EACH]},
    code=(),
)
WEIGHTS = (
    Experiment("everyone", measure_everyone, tabulate_everyone, compare_epochs, code=()),
    Experiment("race", measure_race, tabulate_race, code=CHECKPOINTS),
    Experiment("globals", measure_globals, tabulate_globals, find_lost, code=()),
    Experiment("partly", measure_partly, tabulate_partly, code=("paddle_mnist/nn/state_dict.py",)),
)

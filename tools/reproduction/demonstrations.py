"""Claims about the documents' ways of resuming, scoring, saving, loading and sharing.

Their code in plain Paddle is in the scripts of `plain/`, which print JSON.
"""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import TOOLS, TRAIN, run_python
from markdown_tables import table, table_of_rows

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import PaddleMnistError
from reproduction.claims import Experiment, Report, Workspace
from reproduction.trainings import QUICK, QUIET, train, train_losses

PLAIN = Path(__file__).with_name("plain")


def plain(script: str, *arguments: Any, launcher: Sequence[str] = (), **environment: str) -> Any:
    """Run a script of `plain/` on one core; return the JSON that it prints, None for none."""
    environment["OMP_NUM_THREADS"] = "1"
    done = run_python(*launcher, PLAIN / script, *arguments, **environment)
    lines = [line for line in done.printed.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def while_it_trains(recipe: str, options: Mapping[str, Any], output: Path) -> Iterator[None]:
    """Train a recipe in another process, and yield again and again; kill it when closed."""
    given = {"recipe": recipe, **QUIET, **options, "output": output}
    words = [f"--{name}={value}" for name, value in given.items()]
    command = [sys.executable, TOOLS / TRAIN, *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                yield
                time.sleep(0.001)
        finally:
            process.kill()
    if process.returncode:
        raise PaddleMnistError(f"{output}: the training ended with exit code {process.returncode}")


# ------------------------------------------------------------------ checkpoints by name and time

EPOCHS = 12


def measure_names(work: Workspace, folder: Path) -> dict[str, Any]:
    """Write checkpoints of twelve short epochs; return the newest by name and by manifest."""
    train("digits", {"epochs": EPOCHS, "train_limit": 320}, folder)
    store = RunDirectory(folder).checkpoints
    by_name = max(path.name for path in store.folder.glob("*.pdparams"))
    return {"by_name": by_name, "newest": f"{store.newest().name}.pdparams", "epochs": EPOCHS}


def tabulate_names(report: Report) -> str:
    rows = [
        ("by name, as in the document", f"`{report['by_name']}`"),
        ("by the step in the manifest", f"`{report['newest']}`"),
    ]
    newest = f"newest of the checkpoints of epochs 0 to {report['epochs'] - 1}"
    return table({newest: "", "taken as the newest": ""}, rows)


def measure_pattern(work: Workspace, folder: Path) -> dict[str, Any]:
    """Set the three traps of the checkpoint pattern for real trainings."""
    options = {"epochs": 2, "train_limit": 640}
    by_clock, single = folder / "by the clock", folder / "single"
    train("digits", {**options, "save_every_seconds": 3600}, by_clock)
    store = RunDirectory(by_clock).checkpoints
    saved = store.all()
    keep_one = {"keep_epochs": False, "keep_best": False, "keep_last": 1, "save_every_steps": 1}
    counts: list[int] = []  # from the first checkpoint on
    for _ in while_it_trains("digits", {**options, **keep_one}, single):
        if (count := len(list(single.glob("checkpoints/*.json")))) or counts:
            counts.append(count)
    oldest, *_, newest = sorted(saved, key=lambda checkpoint: checkpoint.step)
    os.utime(oldest.path)  # as a copy would: now it is the youngest file
    by_mtime = max((checkpoint.path for checkpoint in saved), key=os.path.getmtime)
    return {
        "steps": newest.step,
        "saved": len(saved),
        "looks": len(counts),
        "least": min(counts),
        "by_mtime": by_mtime.stem,
        "newest": store.newest().name,
    }


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


def measure_resumed(work: Workspace, folder: Path) -> dict[str, Any]:
    """Resume the document's way in plain Paddle; and the recipe `tutorial-resume`, shuffled."""
    small = {**QUICK, "epochs": 2, "batch_size": 4} if work.is_quick else {}
    options = {"fast_conv": "on", "data": work.data.path, "shuffle": True, **small}
    by_hand = _resumed_by_hand(work.data.path, folder / "plain", work.choose(0, 640))
    return {
        "plain Paddle, after its first epoch": by_hand,
        "shuffled, killed within its second epoch": _resumed(options, folder / "shuffled"),
    }


def _resumed_by_hand(data: str, folder: Path, limit: int) -> dict[str, Any]:
    """Train three epochs; and one, from whose files another process trains the other two."""
    unbroken, first, resumed = (folder / name for name in ("unbroken", "first", "resumed"))
    whole = plain("resume.py", data, limit, 0, 3, unbroken)
    broken = plain("resume.py", data, limit, 0, 1, first)
    rest = plain("resume.py", data, limit, 1, 3, resumed, first)
    losses = [
        {int(step): loss for step, loss in printed["losses"].items()} for printed in (whole, rest)
    ]
    return _compare((unbroken, resumed), losses, broken["steps"], whole["steps"])


def _resumed(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Kill a run after its first save in the second epoch, and resume it."""
    unbroken, broken = folder / "unbroken", folder / "broken"
    options = {**options, "save_every_steps": 50}
    train(RECIPE, options, unbroken)
    store = RunDirectory(broken).checkpoints
    first = store.folder / "mnist_epoch0.json"
    training = while_it_trains(RECIPE, options, broken)
    for _ in training:
        if first.exists() and store.newest().name != first.stem:
            break
    training.close()
    killed_at = store.newest().step
    train(RECIPE, options, broken)
    folders = (unbroken, broken)
    steps = RunDirectory(unbroken).checkpoints.newest().step
    return _compare(folders, [train_losses(folder) for folder in folders], killed_at, steps)


def _compare(
    folders: Sequence[Path], losses: Sequence[Mapping[int, float]], broken_at: int, steps: int
) -> dict[str, Any]:
    """Compare the final weights, and the losses after the step that the training broke at."""
    whole, resumed = losses
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


def tabulate_resumed(report: Report) -> str:
    def digest(number: int) -> Any:
        return lambda row, rows: f"`{row['sha256'][number][:16]}...`"

    columns = {
        "resumed from step": ("", lambda row, rows: f"{row['broken_at']:,} of {row['steps']:,}"),
        "SHA-256 of the weights: uninterrupted": ("", digest(0)),
        "resumed": ("", digest(1)),
        "later losses compared": ("d", "losses_compared"),
        "largest difference": (".2g", "losses_differ_by"),
    }
    return table_of_rows("interrupted", columns, report)


def find_equal(report: Report) -> dict[str, Any]:
    """Return the ways that end with the bits of the unbroken training, losses included."""

    def is_equal(figures: Mapping[str, Any]) -> bool:
        return len(set(figures["sha256"])) == 1 and figures["losses_differ_by"] == 0

    return {"equal": [way for way, figures in report.items() if is_equal(figures)]}


# ------------------------------------------------------------------ a schedule

SCHEDULED = 100  # steps


def measure_unstepped(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the rate at the end of some steps, with Paddle's own schedule."""
    import paddle

    rates = {}
    for way in ("never", "each"):
        schedule = paddle.optimizer.lr.PolynomialDecay(0.01, SCHEDULED, 0.001)
        weight = paddle.create_parameter([1], "float32")
        optimizer = paddle.optimizer.Momentum(schedule, parameters=[weight])
        for _ in range(SCHEDULED):
            weight.sum().backward()
            optimizer.step()
            optimizer.clear_grad()
            if way == "each":
                schedule.step()
        rates[way] = optimizer.get_lr()
    return rates


def tabulate_unstepped(report: Report) -> str:
    columns = {"`scheduler.step()`": "", f"rate after {SCHEDULED} steps of {SCHEDULED}": "g"}
    rows = (("never, as in the tutorial", report["never"]), ("after each batch", report["each"]))
    return table(columns, rows)


# ------------------------------------------------------------------ averages of batches

SIZES = (100, 64, 96, 3000)  # of batches


def measure_averages(work: Workspace, folder: Path) -> dict[str, Any]:
    """Average the pretrained net's accuracy on the eval split batch by batch, and count it."""
    from paddle_mnist import MNIST, MnistDataset, evaluate

    evaluation = evaluate(MNIST(pretrained=True), MnistDataset("eval", work.data))
    correct = evaluation.labels == evaluation.predictions
    means = {}
    for size in SIZES:
        batches = [correct[start : start + size] for start in range(0, len(correct), size)]
        means[str(size)] = sum(batch.mean() for batch in batches) / len(batches)
    return {"counted": evaluation.accuracy, "images": len(correct), "mean_of_means": means}


def tabulate_averages(report: Report) -> str:
    counted = report["counted"]
    rows = (
        (size, mean, counted, round(mean - counted, 7) + 0.0)  # no minus before a zero
        for size, mean in report["mean_of_means"].items()
    )
    means = "mean of the batches' accuracies"
    return table({"batch size": "", means: ".4%", "counted": ".4%", "error": "+.4%"}, rows)


def largest_error(report: Report) -> dict[str, Any]:
    means = report["mean_of_means"].values()
    return {"error": max(abs(mean - report["counted"]) for mean in means)}


# ------------------------------------------------------------------ several processes

ROUNDS, LIMIT, SAVES = 3, 16_000, 300  # LIMIT: images of an epoch that is timed
LAUNCH = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2")
# By title: what starts Python, and what each process reads.
EVERYONE = {
    "one process": ((), "all"),
    "two processes, each with all the data": (LAUNCH, "all"),
    "two processes, each with its share": (LAUNCH, "share"),
}
# By name: the title, what saves, and how many processes do.
RACE = {
    "everybody": ("two processes, `paddle.save`", "paddle", 2),
    "one": ("one process, `paddle.save`", "paddle", 1),
    "here": ("one process, this package's `Trainer.save`", "trainer", 1),
}


def measure_everyone(work: Workspace, folder: Path) -> dict[str, Any]:
    """Time an epoch in one process; in two with all images each, as in the document; and shared.

    They take turns, ROUNDS times.
    """
    report: dict[str, Any] = {}
    for way, (launcher, kind) in [*EVERYONE.items()] * work.choose(ROUNDS, 1):
        path = folder / f"{way}.json"
        launch = (*launcher, "--log_dir", folder / "log") if launcher else ()
        limit = work.choose(LIMIT, QUICK["train_limit"])
        arguments = (work.data.path, limit, kind, path)
        plain("parallel.py", *arguments, launcher=launch, PADDLE_DISTRI_BACKEND="gloo")
        epoch = json.loads(path.read_text("utf-8"))
        seconds = report.get(way, {}).get("seconds", [])
        report[way] = {**epoch, "seconds": [*seconds, epoch["seconds"]]}
    return report


def tabulate_everyone(report: Report) -> str:
    def seconds(summary: Any) -> Any:
        return lambda row, rows: summary(row["seconds"])

    columns = {
        "steps": (",d", "steps"),
        "samples": (",d", "samples"),
        "seconds: median": (".1f", seconds(statistics.median)),
        "min": (".1f", seconds(min)),
        "max": (".1f", seconds(max)),
        "eval accuracy": (".2%", "eval_acc"),
    }
    return table_of_rows("one epoch", columns, report)


def compare_epochs(report: Report) -> dict[str, Any]:
    """Return the median times relative to one process, the samples, and what always takes longer.

    slower: whether each epoch with all the data takes longer than each epoch of one process.
    """
    alone, every, share = report.values()
    medians = [statistics.median(way["seconds"]) for way in report.values()]
    return {
        "every": medians[1] / medians[0],
        "shared": medians[2] / medians[0],
        "samples": every["samples"] / share["samples"],
        "slower": min(every["seconds"]) > max(alone["seconds"]),
    }


def measure_race(work: Workspace, folder: Path) -> dict[str, Any]:
    """Save to one path from other processes, again and again, and read it meanwhile.

    Counts how often it cannot be read, and whether it can when all have ended.
    """
    count, report = work.choose(SAVES, SAVES // 10), {}
    for way, (_, kind, processes) in RACE.items():
        path = folder / f"{way}.pdparams"
        words = [sys.executable, PLAIN / "save.py", path, count, kind]
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
    columns = {
        "saves": (",d", "saves"),
        "reads": (",d", "looks"),
        "failed": (",d", "broken"),
        "readable in the end": ("", lambda row, rows: "yes" if row["readable_after"] else "no"),
    }
    rows = {RACE[way][0]: figures for way, figures in report.items()}
    return table_of_rows("saving to one path", columns, rows)


# ------------------------------------------------------------------ slips

COUNTED, WHOLE = 10, 10_000  # steps on all images; images of a whole epoch
WAYS = {
    "reading": "by reading them all at each step, as in the tutorial",
    "once": "once, before the loop",
}


def measure_counted(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the processor seconds of steps on all images, and what a whole epoch sees, by way."""
    everything, whole = work.choose((50_000, WHOLE), (640, 640))
    steps = plain("counted.py", work.data.path, everything, work.choose(COUNTED, 3))
    epoch = plain("counted.py", work.data.path, whole, whole // 100)
    return {
        way: {"step": statistics.median(steps[way]["seconds"]), "seen": epoch[way]["seen"]}
        for way in WAYS
    }


def tabulate_counted(report: Report) -> str:
    columns = {
        "processor time of a step, relative": (
            ".1f",
            lambda row, rows: row["step"] / rows[WAYS["once"]]["step"],
        ),
        "different images in an epoch": (".1%", "seen"),
    }
    rows = {WAYS[way]: figures for way, figures in report.items()}
    return table_of_rows("the batches are counted", columns, rows)


def measure_option(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return how Paddle's `spawn` and this package's end with the tutorial's option."""
    from paddle import distributed

    from paddle_mnist.parallel.world import spawn

    report = {}
    for way, function in (("paddle", distributed.spawn), ("here", spawn)):
        try:
            function(print, nprocs=2, selelcted_gpus="4,5")
            report[way] = ""
        except Exception as error:
            report[way] = f"{type(error).__name__}: {error}".replace("`", "")  # ends a code span
    return report


def tabulate_option(report: Report) -> str:
    names = {"paddle": "`paddle.distributed.spawn`", "here": "this package's `spawn`"}
    rows = [(names[way], f"`{text}`" if text else "no error") for way, text in report.items()]
    return table({"called with `selelcted_gpus='4,5'`": "", "outcome": ""}, rows)


GIVEN = {
    "visible": "`CUDA_VISIBLE_DEVICES=0,1`",
    "tutorial": "`CUDA_VISIABLE_DEVICES=0,1`, as in the tutorial",
    "here": "this package's option misspelt, `--gups 0,1`",
}


def measure_variable(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return what Paddle's launcher starts for each variable, and what an option's slip does."""
    report: dict[str, Any] = {}
    for way, name in (("visible", "CUDA_VISIBLE_DEVICES"), ("tutorial", "CUDA_VISIABLE_DEVICES")):
        ranks = folder / way
        ranks.mkdir()
        launch = ("-m", "paddle.distributed.launch", "--log_dir", folder / "log")
        done = _run([*launch, PLAIN / "rank.py", ranks], **{name: "0,1"})
        gpus = [path.read_text("utf-8") for path in sorted(ranks.iterdir())]
        told = [line for line in done.stderr.splitlines() if "VISIABLE" in line]
        report[way] = {"code": done.returncode, "gpus": gpus, "told": told}
    done = _run([TOOLS / TRAIN, "--gups", "0,1", "--output", folder / "run"])
    report["here"] = {"code": done.returncode, "gpus": [], "told": done.stderr.splitlines()[-1:]}
    return report


def _run(words: Sequence[Any], **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env={**inherited, **environment})


def tabulate_variable(report: Report) -> str:
    columns = {
        "processes started": ("d", lambda row, rows: len(row["gpus"])),
        "their GPUs": ("", lambda row, rows: ", ".join(filter(None, row["gpus"])) or "none"),
        "message": ("", lambda row, rows: "; ".join(f"`{t}`" for t in row["told"]) or "none"),
        "exit code": ("d", "code"),
    }
    rows = {GIVEN[way]: figures for way, figures in report.items()}
    return table_of_rows("the GPUs are chosen by", columns, rows)


# ------------------------------------------------------------------ trained weights

SEEDS = (1, 2, 3)
# Ways to leave weights behind, by what `globals.py` calls them.
LEFT_BEHIND = {
    "theirs": "the file written by `save` of its `Trainer`",
    "callers": "the caller's net after `train(model)` of its part two",
    "ours": "the file written by this package's `Trainer.save`",
}


def measure_globals(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return, for each way, the accuracies of the trained nets and of what is left, by seed."""
    printed = [
        plain("globals.py", work.data.path, seed, folder) for seed in work.choose(SEEDS, SEEDS[:2])
    ]
    return {
        way: {
            "trained": [accuracies[way][0] for accuracies in printed],
            "kept": [accuracies[way][1] for accuracies in printed],
        }
        for way in LEFT_BEHIND
    }


def tabulate_globals(report: Report) -> str:
    columns = {
        "accuracy of the trained net": ("", lambda row, rows: _spread(row["trained"])),
        "accuracy of the weights left behind": ("", lambda row, rows: _spread(row["kept"])),
    }
    rows = {LEFT_BEHIND[way]: accuracies for way, accuracies in report.items()}
    return table_of_rows("weights left behind", columns, rows)


def _spread(accuracies: Sequence[float]) -> str:
    mean, sd = statistics.mean(accuracies), statistics.stdev(accuracies)
    return f"{mean:.1%} (sd {sd:.1%}, {min(accuracies):.1%} to {max(accuracies):.1%})"


def find_lost(report: Report) -> dict[str, Any]:
    """Return the ways whose weights are far below those of the trained nets with every seed."""

    def is_lost(accuracies: Mapping[str, list[float]]) -> bool:
        return max(accuracies["kept"]) < min(accuracies["trained"]) - 0.1

    return {"lost": [way for way, accuracies in report.items() if is_lost(accuracies)]}


def measure_partly(work: Workspace, folder: Path) -> dict[str, Any]:
    """Load a trained net's weights into one with another second convolution: Paddle's way, ours."""
    printed = [plain("partly.py", work.data.path, seed) for seed in work.choose(SEEDS, SEEDS[:2])]
    return {
        **printed[-1],
        **{kind: [seed[kind] for seed in printed] for kind in ("trained", "loaded")},
        "untouched": all(seed["untouched"] for seed in printed),
    }


def tabulate_partly(report: Report) -> str:
    warnings = "; ".join(f"`{warning}`" for warning in report["warnings"]) or "-"
    refused = f"`{report['refused']}`" if "refused" in report else "no error"
    rows = [
        ("into the original net", None, _spread(report["trained"])),
        ("with `set_state_dict`", f"no error; warning: {warnings}", _spread(report["loaded"])),
        ("with this package", refused),
    ]
    headers = ("loaded into a net with 3x3 kernels in conv2", "outcome", "accuracy")
    return table(dict.fromkeys(headers, ""), rows)


CLAIMS = (
    Experiment("names", measure_names, tabulate_names),
    Experiment("resumed", measure_resumed, tabulate_resumed, find_equal),
    Experiment("pattern", measure_pattern, tabulate_pattern),
    Experiment("averages", measure_averages, tabulate_averages, largest_error),
    Experiment("unstepped", measure_unstepped, tabulate_unstepped),
    Experiment("everyone", measure_everyone, tabulate_everyone, compare_epochs),
    Experiment("race", measure_race, tabulate_race),
    Experiment("counted", measure_counted, tabulate_counted),
    Experiment("option", measure_option, tabulate_option),
    Experiment("variable", measure_variable, tabulate_variable),
    Experiment("globals", measure_globals, tabulate_globals, find_lost),
    Experiment("partly", measure_partly, tabulate_partly),
)

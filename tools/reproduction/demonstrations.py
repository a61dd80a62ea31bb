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

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import PaddleMnistError
from reproduction.claims import Experiment, Workspace
from reproduction.trainings import QUICK, QUIET, train, train_losses

PLAIN = Path(__file__).with_name("plain")


def plain(script: str, *arguments: Any, launcher: Sequence[str] = (), **environment: str) -> Any:
    """Run a script of `plain/` on one core; return the JSON that it prints, if it prints some."""
    environment["OMP_NUM_THREADS"] = "1"
    done = run_python(*launcher, PLAIN / script, *arguments, **environment)
    lines = [line for line in done.printed.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def while_it_trains(recipe: str, options: Mapping[str, Any], output: Path) -> Iterator[None]:
    """Train a recipe in another process; yield about every millisecond until it has ended.

    Closing the iterator kills the process.
    """
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


def measure_names(work: Workspace, folder: Path) -> dict[str, Any]:
    """Write checkpoints of twelve short epochs; return the newest by name and by manifest."""
    train("digits", {"epochs": 12, "train_limit": 320}, folder)
    store = RunDirectory(folder).checkpoints
    by_name = max(path.name for path in store.folder.glob("*.pdparams"))
    return {"by_name": by_name, "newest": f"{store.newest().name}.pdparams"}


def measure_pattern(work: Workspace, folder: Path) -> dict[str, Any]:
    """Train where each of the three traps of the checkpoint pattern is set; return what happens.

    saved, steps: of a training that saves by the clock. least: the fewest checkpoints that one of
    so many looks finds while a training keeps one. by_mtime, newest: the newest checkpoint by the
    files' times and by the manifests, after the oldest file was touched.
    """
    options = {"epochs": 2, "train_limit": 640}
    by_clock, single = folder / "by the clock", folder / "single"
    train("digits", {**options, "save_every_seconds": 3600}, by_clock)
    store = RunDirectory(by_clock).checkpoints
    saved = store.all()
    keep_one = {"keep_epochs": False, "keep_best": False, "keep_last": 1, "save_every_steps": 1}
    counts: list[int] = []  # of checkpoints, once there is one
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


# ------------------------------------------------------------------ resuming

RECIPE = "tutorial-resume"


def measure_resumed(work: Workspace, folder: Path) -> dict[str, Any]:
    """Resume a training in plain Paddle as the document does, and a shuffled run after a kill."""
    small = {**QUICK, "epochs": 2, "batch_size": 4} if work.is_quick else {}
    options = {"fast_conv": "on", "data": work.data.path, "shuffle": True, **small}
    by_hand = _resumed_by_hand(work.data.path, folder / "plain", work.choose(0, 640))
    return {"plain": by_hand, "shuffled": _resumed(options, folder / "shuffled")}


def _resumed_by_hand(data: str, folder: Path, limit: int) -> dict[str, Any]:
    """Train three epochs at once, and one whose files another process resumes for the others."""
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
    """Compare the final weights of two trainings, and their losses after the interruption."""
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


# ------------------------------------------------------------------ a schedule

SCHEDULED = 100  # steps


def measure_unstepped(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the learning rate after some steps, with a schedule stepped never and each time."""
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


# ------------------------------------------------------------------ averages of batches

SIZES = (100, 64, 96, 3000)  # of batches


def measure_averages(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the pretrained net's accuracy on the eval split, counted and averaged over batches."""
    from paddle_mnist import MNIST, MnistDataset, evaluate

    evaluation = evaluate(MNIST(pretrained=True), MnistDataset("eval", work.data))
    correct = evaluation.labels == evaluation.predictions
    means = {}
    for size in SIZES:
        batches = [correct[start : start + size] for start in range(0, len(correct), size)]
        means[str(size)] = sum(batch.mean() for batch in batches) / len(batches)
    counted = evaluation.accuracy
    error = max(abs(mean - counted) for mean in means.values())
    return {"counted": counted, "images": len(correct), "mean_of_means": means, "error": error}


# ------------------------------------------------------------------ several processes

ROUNDS, LIMIT, SAVES = 3, 16_000, 300  # LIMIT: images of an epoch that is timed
LAUNCH = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2")
# What starts Python, and what each process reads.
EVERYONE = {"one": ((), "all"), "every": (LAUNCH, "all"), "share": (LAUNCH, "share")}
# What saves, and in how many processes.
RACE = {"everybody": ("paddle", 2), "one": ("paddle", 1), "here": ("trainer", 1)}


def measure_everyone(work: Workspace, folder: Path) -> dict[str, Any]:
    """Time an epoch of one process, and of two that read all images each or share them, in turns.

    With the document's loop, each reads all.
    """
    report: dict[str, Any] = {way: {"seconds": []} for way in EVERYONE}
    for way, (launcher, kind) in [*EVERYONE.items()] * work.choose(ROUNDS, 1):
        path = folder / f"{way}.json"
        launch = (*launcher, "--log_dir", folder / "log") if launcher else ()
        limit = work.choose(LIMIT, QUICK["train_limit"])
        arguments = (work.data.path, limit, kind, path)
        plain("parallel.py", *arguments, launcher=launch, PADDLE_DISTRI_BACKEND="gloo")
        epoch = json.loads(path.read_text("utf-8"))
        report[way] = {**epoch, "seconds": [*report[way]["seconds"], epoch["seconds"]]}
    return report


def measure_race(work: Workspace, folder: Path) -> dict[str, Any]:
    """Read a file again and again while other processes save to it.

    Returns how often it was read, how often that failed, and whether it can be read afterwards.
    """
    count, report = work.choose(SAVES, SAVES // 10), {}
    for way, (kind, processes) in RACE.items():
        path = folder / f"{way}.pdparams"
        words = [sys.executable, PLAIN / "save.py", path, count, kind]
        saving = [subprocess.Popen([*map(str, words)]) for _ in range(processes)]
        looks = broken = 0
        while any(process.poll() is None for process in saving):
            if path.exists():
                looks += 1
                broken += not _is_readable(path)
        report[way] = {"looks": looks, "broken": broken, "readable_after": _is_readable(path)}
    return report


def _is_readable(path: Path) -> bool:
    import paddle

    try:
        paddle.load(str(path))
    except Exception:  # half a pickle raises nearly anything
        return False
    return True


# ------------------------------------------------------------------ slips

COUNTED, WHOLE = 10, 10_000  # steps on all images; images of a whole epoch


def measure_counted(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the processor seconds of a step, and the share of images that an epoch sees.

    reading: the batches are counted by reading them all at each step. once: before the loop.
    """
    everything, whole = work.choose((50_000, WHOLE), (640, 640))
    steps = plain("counted.py", work.data.path, everything, work.choose(COUNTED, 3))
    epoch = plain("counted.py", work.data.path, whole, whole // 100)
    return {
        way: {"step": statistics.median(steps[way]["seconds"]), "seen": epoch[way]["seen"]}
        for way in steps
    }


def measure_option(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the errors of Paddle's `spawn` and of this package's for the misspelt option."""
    from paddle import distributed

    from paddle_mnist.parallel.world import spawn

    report = {}
    for way, function in (("paddle", distributed.spawn), ("here", spawn)):
        try:
            function(print, nprocs=2, selelcted_gpus="4,5")
            report[way] = ""
        except Exception as error:
            report[way] = f"{type(error).__name__}: {error}"
    return report


def measure_variable(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the GPUs, messages and exit codes for the right variable and the misspelt one.

    here: those for a misspelt option of this package.
    """
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


# ------------------------------------------------------------------ trained weights

SEEDS = (1, 2, 3)


def measure_globals(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the accuracies of the trained nets and of what is left of them, by way and seed.

    theirs: the file of `save` of the tutorial's `Trainer`. callers: the caller's net after its
    `train(model)`. ours: the file of this package's `Trainer.save`.
    """
    printed = [
        plain("globals.py", work.data.path, seed, folder) for seed in work.choose(SEEDS, SEEDS[:2])
    ]
    return {
        way: {
            "trained": [accuracies[way][0] for accuracies in printed],
            "kept": [accuracies[way][1] for accuracies in printed],
        }
        for way in ("theirs", "callers", "ours")
    }


def measure_partly(work: Workspace, folder: Path) -> dict[str, Any]:
    """Load weights into a net whose second convolution is another, with Paddle and this package."""
    printed = [plain("partly.py", work.data.path, seed) for seed in work.choose(SEEDS, SEEDS[:2])]
    return {
        **printed[-1],
        **{kind: [seed[kind] for seed in printed] for kind in ("trained", "loaded")},
        "untouched": all(seed["untouched"] for seed in printed),
    }


CLAIMS = (
    Experiment("names", measure_names),
    Experiment("resumed", measure_resumed),
    Experiment("pattern", measure_pattern),
    Experiment("averages", measure_averages),
    Experiment("unstepped", measure_unstepped),
    Experiment("everyone", measure_everyone),
    Experiment("race", measure_race),
    Experiment("counted", measure_counted),
    Experiment("option", measure_option),
    Experiment("variable", measure_variable),
    Experiment("globals", measure_globals),
    Experiment("partly", measure_partly),
)

"""Whole commands, from their start to their end: seconds, memory, and the accuracy they print.

A command is a line of arguments of Python, run in `tools/`. In it, {json} is the AI Studio file of
the images, {data} their source, {seed} the number of the round and {run} a new folder. The commands
of a round share a cache, which is empty at its beginning; those of `looking` share one for all
rounds.
"""

import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Union

from benchmarks.timing import TOOLS, TRAIN, TUTORIAL, Finished, run_python
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session, Turn, ratio


def run(session: Session, line: Union[str, tuple[str, ...]], **environment: str) -> Finished:
    """Run a command, with its placeholders filled, on the cache of this round."""
    words = line.split() if isinstance(line, str) else line
    runs = len(list(session.folder.glob("run*")))
    (session.folder / f"run{runs}").mkdir()
    places = {
        "{json}": session.json_file if "{json}" in words else "",
        "{data}": session.source,
        "{seed}": session.number,
        "{run}": session.folder / f"run{runs}/output",
    }
    given = {**session.own_cache, **environment}
    return run_python(*(places.get(word, word) for word in words), **given)


def figures_of(session: Session, line: str, **environment: str) -> Figures:
    """Run a command; return its figures."""
    done = run(session, line, **environment)
    figures = {"seconds": done.seconds, "mib": done.peak_mib}
    accuracies = re.findall(r"eval accuracy ([\d.]+)", done.printed)
    return {**figures, "accuracy": float(accuracies[-1])} if accuracies else figures


def whole_commands(commands: Mapping[str, str]) -> Callable[[Session], Mapping[str, Turn]]:
    """Return the kinds of a benchmark of commands."""
    return lambda session: {
        title: partial(figures_of, session, line) for title, line in commands.items()
    }


# ------------------------------------------------------------------ from the command to the net

LOOP = f"{TUTORIAL} --data {{json}}"
CACHED = f"{TRAIN} --data {{json}} --output {{run}}"
BASE = "the tutorial's loop"
FIVE_EPOCHS = f"{BASE}, its five epochs"
COLD, WARM = (f"this package, recipe `fast`, {kind} cached" for kind in ("nothing", "images"))
TO_ACCURACY = {
    FIVE_EPOCHS: f"{LOOP} --seed {{seed}}",
    COLD: f"{CACHED} --recipe fast --seed {{seed}}",
    WARM: f"{CACHED} --recipe fast --seed {{seed}}",
    "PyTorch eager, the tutorial's recipe, images in memory": (
        "-m benchmarks.torch_tutorial --data {json} --seed {seed}"
    ),
}


def _rows_to_accuracy(report: Report) -> Rows:
    rows = report.medians
    for kind, row in rows.items():
        if row:
            accuracies = report.samples[kind]["accuracy"]
            row["mean"] = f"{statistics.mean(accuracies):.2%} (of {len(accuracies)})"
    return rows


def _note_to_accuracy(report: Report) -> str:
    worst = min(min(report.samples[kind]["accuracy"]) for kind in (COLD, WARM))
    return (
        "Medians; import, reading, training and evaluation included. `fast` aims at a mean of "
        f"98.6%, and its worst seed came to {worst:.2%}; the others train the tutorial's "
        "whole recipe and came to what their rows show."
    )


# ------------------------------------------------------------------ what looking costs

LOOKS, BLIND = (
    f"--watch {n} --visualdl {on} --figures {on}" for n, on in ((100, "true"), (0, "false"))
)
# By recipe: without anything to look at, and with it.
LOOKING = {
    f"recipe `{recipe}`, {title}": f"{CACHED} --recipe {recipe} {options}"
    for recipe in ("fast", "default")
    for title, options in (("without them", BLIND), ("with them", LOOKS))
}


def _looks(session: Session) -> Mapping[str, Turn]:
    """Return the commands, on one cache, which the warm-up fills."""
    cache = str(session.root / "cache")
    return {
        title: partial(figures_of, session, line, PADDLE_MNIST_CACHE=cache)
        for title, line in LOOKING.items()
    }


# ------------------------------------------------------------------ memory, data

SHORT = "train.py --recipe default --epochs 1 --learning_rate 0.01 --output {run}"  # 20 steps
SMALL = f"{SHORT} --data {{json}} --batch_size 64 --train_limit 1280"
FIRST_TIME = "JSON, read for the first time"
MEMORY = {
    BASE: f"{LOOP} --epochs 0",  # holds all it ever does once its file is parsed
    FIRST_TIME: f"{SMALL} --optimizer momentum",
    "the defaults: JSON, cached; batches of 64; Momentum": f"{SMALL} --optimizer momentum",
    "the embedded digits": f"{SHORT} --data digits --batch_size 64 --train_limit 1280",
    **{
        f"batches of {size}": (
            f"{SHORT} --data {{json}} --batch_size {size} --train_limit {20 * size}"
        )
        for size in (16, 256, 1024)
    },
    "SGD, no state": f"{SMALL} --optimizer sgd",
    "Adam, two states a parameter": f"{SMALL} --optimizer adam",
}
# Imports come before the clock starts.
PARSE = """
import gzip, json, sys, time
began = time.perf_counter()
json.load(gzip.open(sys.argv[1]))
print(time.perf_counter() - began)
"""
OPEN = """
import sys, time
from paddle_mnist.mnist.images import open_data
began = time.perf_counter()
open_data(sys.argv[1])
print(time.perf_counter() - began)
"""
PARSED = "`json.load(gzip.open(...))`"
DATA = {PARSED: PARSE, "this package, first time": OPEN, "this package, cached": OPEN}


def _opened(session: Session, program: str) -> Figures:
    done = run(session, ("-c", program, "{json}"))
    return {"seconds": float(done.printed), "peak_mib": done.peak_mib}


# ------------------------------------------------------------------ log


def _log_lines(session: Session) -> Figures:
    """Return the lines that a run prints."""
    scripts = os.path.dirname(sys.executable)  # on the PATH of an activated environment
    path = os.pathsep.join([scripts, os.environ["PATH"]])
    done = run_python(TOOLS / TRAIN, "--recipe", "digits", cwd=session.folder, PATH=path)
    return {"lines": done.printed.splitlines()}


def _excerpt(report: Report) -> str:
    lines = report.samples["digits"]["lines"]
    return "\n".join(["```text", *lines[:4], "...", *lines[-4:], "```"])


BENCHMARKS = {
    "data": Benchmark(
        "Time until the images of an AI Studio JSON file are there, and peak memory.",
        kinds=lambda session: {
            kind: partial(_opened, session, program) for kind, program in DATA.items()
        },
        head="images ready",
        columns={
            "seconds": (".3g", "seconds"),
            "peak MiB": (".0f", "peak_mib"),
            "json.load takes": (
                "",
                lambda row, rows: f"{rows[PARSED]['seconds'] / row['seconds']:.1f}x",
            ),
        },
    ),
    "time-to-accuracy": Benchmark(
        "From the command to the evaluated net: everything included, whole commands timed.",
        kinds=whole_commands(TO_ACCURACY),
        head="from the command to the evaluated net",
        columns={
            "seconds": (".1f", "seconds"),
            "eval accuracy": ("", "mean"),
            "times faster": ratio("seconds", FIVE_EPOCHS, ".1f", is_inverse=True),
        },
        rows=_rows_to_accuracy,
        note=_note_to_accuracy,
    ),
    "looking": Benchmark(
        "What the watch, VisualDL and figures add to a whole command.",
        kinds=_looks,
        head="watch, VisualDL, figures",
        columns={
            "seconds": (".1f", "seconds"),
            "times as long": ratio("seconds", lambda title: title.replace(", with ", ", without ")),
        },
        note=lambda report: (
            "Whole commands; images and compiled code are cached. Medians of "
            f"{len(next(iter(report.samples.values()))['seconds'])} rounds, in turns."
        ),
        warm_up=1,
    ),
    "memory": Benchmark(
        "Peak memory of a run: by source, batch size and optimizer, and of the tutorial's loop.",
        kinds=whole_commands(MEMORY),
        head="training",
        columns={"peak MiB": (",.0f", "mib"), "of the tutorial's": ratio("mib", BASE)},
        quick=(BASE, FIRST_TIME),
    ),
    "log": Benchmark(
        "The log of a first training without MNIST: the excerpt that the pages show.",
        kinds=lambda session: {"digits": lambda: _log_lines(session)},
        text=_excerpt,
        rounds=1,
        warm_up=1,  # which may compile
    ),
}

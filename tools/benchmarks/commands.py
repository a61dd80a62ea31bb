"""Whole commands, from their start to their end: seconds, memory, and the accuracy they print.

A command is a line of arguments of Python, run in `tools/`. In it, {json} is the AI Studio file of
the images, {data} their source, {seed} the number of the round and {run} a new folder. The commands
of a round share a cache, which is empty at its beginning.
"""

import contextlib
import os
import re
import statistics
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Union

from benchmarks.timing import TOOLS, TRAIN, TUTORIAL, Finished, run_python
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session, Turn, ratio

MNIST = "paddle_mnist/mnist"


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
    figures = {"seconds": done.seconds, "cpu": done.cpu_seconds, "mib": done.peak_mib}
    accuracies = re.findall(r"eval accuracy ([\d.]+)", done.printed)
    return {**figures, "accuracy": float(accuracies[-1])} if accuracies else figures


def whole_commands(
    commands: Mapping[str, str], before: str = ""
) -> Callable[[Session], Mapping[str, Turn]]:
    """Return the kinds of a benchmark of commands.

    before: a command that fills the cache of the first round.
    """

    def kinds(session: Session) -> Mapping[str, Turn]:
        if before:
            run(session, before)
        return {title: partial(figures_of, session, line) for title, line in commands.items()}

    return kinds


# ------------------------------------------------------------------ from the command to the net

BARE = "--visualdl false --figures false --watch 0"
LOOP = f"{TUTORIAL} --data {{json}}"
CACHED = f"{TRAIN} --data {{json}} --output {{run}}"
BASE, ARRAY = "the tutorial's loop", "images in one array, cached; batches by one index"
# Each command differs from the one before in what its title says.
LADDER = {
    BASE: LOOP,
    ARRAY: f"{CACHED} --recipe tutorial --fast_conv off {BARE}",
    "the fast convolution, one thread": (
        f"{CACHED} --recipe tutorial --fast_conv on --threads 1 {BARE}"
    ),
    "a thread on each core": f"{CACHED} --recipe tutorial --fast_conv on {BARE}",
    "the recipe `default`: Momentum, one-cycle, weight decay, batches of 64": (
        f"{CACHED} --recipe default {BARE}"
    ),
    "one epoch instead of five": f"{CACHED} --recipe default --epochs 1 {BARE}",
    "42,000 images instead of 50,000": f"{CACHED} --recipe fast",
    "plus the default watching, VisualDL and figures": (
        f"{CACHED} --recipe fast --visualdl true --figures true --watch 100"
    ),
}
ROW_BEFORE = dict(zip([*LADDER][1:], LADDER))

FIVE_EPOCHS = "the tutorial's loop, its five epochs"
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


# ------------------------------------------------------------------ memory, data, start

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


# Prints the seconds since the process was started, which is an argument.
STEADY = 100  # steps
START = f"""
import sys, time
def lap(): print("lap", time.time() - float(sys.argv[2]))
from paddle_mnist.system.devices import require_paddle
require_paddle()
from paddle_mnist import Callback, Saving, TrainConfig, fit
from paddle_mnist.mnist.setup import fit_arguments
lap()
arguments = fit_arguments(TrainConfig(data=sys.argv[1], epochs=100, max_steps={STEADY + 1}))
lap()
class Laps(Callback):
    def after_step(self, view):
        if view.state.step in (1, {STEADY + 1}): lap()
saving = Saving(at_start=False, rehearse=False)
fit(**{{**arguments, "saving": saving, "callbacks": [Laps()], "output": sys.argv[3]}})
"""


def _started(session: Session) -> Figures:
    """Return the seconds of each part of a start, with nothing cached and with a filled cache."""
    imported, bare = (run(session, ("-c", text)) for text in ("import paddle_mnist", ""))
    cold, cached = _laps(session), _laps(session)
    return {
        "`tools/train.py --help`": run(session, f"{TRAIN} --help").seconds,
        "`import paddle_mnist` (in a running Python)": imported.seconds - bare.seconds,
        "Paddle and everything that training needs, imported": [cold[0], cached[0]],
        "images ready, first time": cold[1],
        "images ready, cached": cached[1],
        "first step, including the compilation of the convolution": cold[2],
        "first step, already compiled": cached[2],
        "a steady step": [cold[3] / STEADY, cached[3] / STEADY],
    }


def _laps(session: Session) -> list[float]:
    done = run(session, ("-c", START, "{json}", str(time.time()), "{run}"))
    times = [0.0, *map(float, re.findall(r"^lap (\S+)$", done.printed, re.MULTILINE))]
    return [after - before for before, after in zip(times, times[1:])]


def _rows_of_figures(report: Report) -> Rows:
    (figures,) = report.medians.values()
    return {title: {"seconds": value} for title, value in figures.items()}


# ------------------------------------------------------------------ mirror, log

ALONE, MIRRORED = "none", "an S3 server on the same machine"


def _mirror_kinds(session: Session) -> Mapping[str, Turn]:
    quick = "--epochs 2 --train_limit 6400" if session.is_quick else ""
    line = f"{TRAIN} --recipe default --data {{data}} --output {{run}} {quick}"

    def mirrored() -> Figures:
        with s3_server() as (environment, sent):
            figures = figures_of(session, f"{line} --mirror s3://runs/run", **environment)
        requests, size = (sent[name] / sent["manifests"] for name in ("requests", "size"))
        return {**figures, "requests": requests, "size": size / 2**20}

    return {ALONE: partial(figures_of, session, line), MIRRORED: mirrored}


@contextlib.contextmanager
def s3_server() -> Iterator[tuple[dict[str, str], Counter[str]]]:
    """Run moto's server in a thread, with an empty bucket `runs`.

    Yields the environment of commands that use it, and counts requests, the bytes of their bodies,
    and manifests, one for each checkpoint. Raises ModuleNotFoundError without moto.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)
    sent, lock = Counter[str](), threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        path, is_upload = environ["PATH_INFO"], environ["REQUEST_METHOD"] == "PUT"
        is_manifest = is_upload and "/checkpoints/" in path and path.endswith(".json")
        with lock:
            size = int(environ.get("CONTENT_LENGTH") or 0)
            sent.update(requests=1, size=size, manifests=is_manifest)
        return application(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.port}"
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    environment = {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}
    try:
        for method, path in (("POST", "moto-api/reset"), ("PUT", "runs")):
            urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", method=method)).close()
        sent.clear()
        yield {**environment, **dict.fromkeys(keys, "secret")}, sent
    finally:
        server.shutdown()
        server.server_close()


def _more(figure: str) -> Callable[[Figures, Rows], Any]:
    """Return a column's function: the share of a figure that the mirror adds."""
    return lambda row, rows: row[figure] / rows[ALONE][figure] - 1 if "size" in row else None


def _log_lines(session: Session) -> Figures:
    """Return the lines that a run prints."""
    scripts = os.path.dirname(sys.executable)  # on the PATH of an activated environment
    path = os.pathsep.join([scripts, os.environ["PATH"]])
    done = run_python(TOOLS / TRAIN, "--recipe", "digits", cwd=session.folder, PATH=path)
    return {"lines": done.printed.splitlines()}


def _excerpt(report: Report) -> str:
    lines = report.samples["digits"]["lines"]
    return "\n".join(["```text", *lines[:4], "...", *lines[-4:], "```"])


TRAINING = ("paddle_mnist/data", "paddle_mnist/nn", "paddle_mnist/training/loop.py")
READING = tuple(f"{MNIST}/{name}.py" for name in ("arrays", "images", "json_reader"))
BENCHMARKS = {
    "data": Benchmark(
        "Time until the images of an AI Studio JSON file are there, and peak memory.",
        code=(*READING, f"{MNIST}/readers.py"),
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
    "clocks": Benchmark(
        "The clocks of a start, apart: import, images ready, first step, steady step; --help.",
        code=("paddle_mnist/commands", *TRAINING, *READING, f"{MNIST}/setup.py"),
        kinds=lambda session: {"start": lambda: _started(session)},
        head="what",
        columns={"seconds": (".3f", "seconds")},
        rows=_rows_of_figures,
    ),
    "time-to-accuracy": Benchmark(
        "From the command to the evaluated net: everything included, whole commands timed.",
        code=("tools/baseline_tutorial.py", *TRAINING, *READING, f"{MNIST}/setup.py"),
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
    "ladder": Benchmark(
        "From the tutorial's loop to ours, one change a row: speed and accuracy of whole commands.",
        code=("tools/baseline_tutorial.py", *TRAINING, "paddle_mnist/monitor/watch.py"),
        kinds=whole_commands(LADDER, before=f"{SMALL} {BARE}"),
        head="change",
        columns={
            "times faster than the tutorial's loop": ratio("seconds", BASE, ".0f", is_inverse=True),
            "times faster than the row before": ratio("seconds", ROW_BEFORE.get, is_inverse=True),
            "eval accuracy": (".2%", "accuracy"),
        },
        note=lambda report: (
            "Whole commands, seed 1, once each, so an accuracy is one of many that chance allows. "
            "[REPRODUCTION.md](../../REPRODUCTION.md#default) has several seeds of `default`."
        ),
        rounds=1,
        quick=(BASE, ARRAY),
    ),
    "memory": Benchmark(
        "Peak memory of a run: by source, batch size and optimizer, and of the tutorial's loop.",
        code=("tools/baseline_tutorial.py", *TRAINING, *READING, f"{MNIST}/setup.py"),
        kinds=whole_commands(MEMORY),
        head="training",
        columns={"peak MiB": (",.0f", "mib"), "of the tutorial's": ratio("mib", BASE)},
        quick=(BASE, FIRST_TIME),
    ),
    "mirror": Benchmark(
        "What a copy in an object store adds to a run: time, requests and bytes.",
        code=(
            "paddle_mnist/checkpoint/mirror.py",
            "paddle_mnist/checkpoint/mirror_copy.py",
            "paddle_mnist/system/remote.py",
        ),
        kinds=_mirror_kinds,
        head="mirror",
        columns={
            "time, s": (".1f", "seconds"),
            "more time": ("+.1%", _more("seconds")),
            "processor time, s": (".1f", "cpu"),
            "more processor time": ("+.1%", _more("cpu")),
            "requests a checkpoint": (".0f", "requests"),
            "MiB a checkpoint": (".2f", "size"),
        },
        note=lambda report: (
            "Whole commands with the recipe `default`, the end of the uploads included; medians of "
            f"{report.rounds} rounds in turns. The server, not part of the command, ran on the "
            "same processors. Requests and MiB are those of the whole training, divided by its "
            "checkpoints."
        ),
    ),
    "log": Benchmark(
        "The log of a first training without MNIST: the excerpt that the pages show.",
        kinds=lambda session: {"digits": lambda: _log_lines(session)},
        text=_excerpt,
        rounds=1,
        warm_up=1,  # which may compile
    ),
}

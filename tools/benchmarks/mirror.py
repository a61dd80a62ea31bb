"""What a copy in an object store adds to a training: time, requests and bytes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from measuring.s3_server import BUCKET, s3_server

from benchmarks.timing import TRAIN, run_python
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session

BASE, MIRRORED = "none", "an S3 server on the same machine"


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    return {BASE: partial(_train, session, "alone"), MIRRORED: partial(_mirrored, session)}


def _mirrored(session: Session) -> Figures:
    with s3_server() as sent:
        seconds = _train(session, "mirrored", "--mirror", f"s3://{BUCKET}/run")
        count = sent()
    return {
        **seconds,
        "requests": count.requests / count.manifests,
        "size": count.size / count.manifests / 2**20,
    }


def _train(session: Session, folder: str, *options: str) -> Figures:
    """Train by `default`; return the seconds of the whole command and of its processors."""
    words: list[Any] = [TRAIN, "--recipe", "default", "--data", session.source]
    if session.is_quick:
        words += ["--epochs", 2, "--train_limit", 6400]
    done = run_python(*words, "--output", session.folder / folder, *options)
    return {"seconds": done.seconds, "cpu": done.cpu_seconds}


def _rows(report: Report) -> Rows:
    rows = report.medians
    for name in ("seconds", "cpu") if rows[MIRRORED] else ():
        rows[MIRRORED][f"more {name}"] = rows[MIRRORED][name] / rows[BASE][name] - 1
    return rows


def _note(report: Report) -> str:
    return (
        "Whole commands with the recipe `default`, the end of the uploads included; medians of "
        f"{report.rounds} rounds in turns. The server, which is none of the command, ran on the "
        "same processors. Requests and MiB are those of the whole training, divided by its "
        "checkpoints."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        *(f"paddle_mnist.checkpoint.{name}" for name in ("mirror", "mirror_copy", "uploader")),
        "paddle_mnist.system.remote",
    ),
    kinds=_kinds,
    head="mirror",
    columns={
        "time, s": (".1f", "seconds"),
        "more time": ("+.1%", "more seconds"),
        "processor time, s": (".1f", "cpu"),
        "more processor time": ("+.1%", "more cpu"),
        "requests a checkpoint": (".0f", "requests"),
        "MiB a checkpoint": (".2f", "size"),
    },
    rows=_rows,
    note=_note,
)

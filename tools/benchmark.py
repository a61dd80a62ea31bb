#!/usr/bin/env python
"""Measure this package. Everything is measured side by side in one run; quote the ratios.

data        time until the images of an AI Studio JSON file are there, and peak memory: the standard
            library's json.load, this package without its cache, and with it
clocks      seconds to --help, to import, to the images, to the first step and of a steady one
train       images a second of steady training: Paddle's layers, this package, PyTorch where it is
            installed; what our own loop adds to a step
time-to-accuracy  seconds from the command to a net of 98.6%, everything included: the tutorial's
            loop, PyTorch, the recipe `fast`
ladder      from the tutorial's loop to ours, one change a row: seconds and accuracy
memory      peak memory by source, batch size and optimizer, and the tutorial's
evaluate    seconds to evaluate the eval split: the tutorial's way, ours, PyTorch, ONNX Runtime
operators   where the time of a step goes: each compiled loop, and what is around them
conv-blocks  images a second of nets of other sizes: `ConvBlocks`, Paddle's layers, PyTorch
checkpoint  the share of a training's time that goes into saving, after each epoch and every 50
            steps: the time inside the saves of a real training, over its whole time
watch       what looking into the net costs a training, its writers included: off, every 100 steps
            (the default), every step; the same training takes turns, a step at a time
sparse      time of a step of a text classifier whose embedding has dense or sparse gradients
promises    what a small training keeps when it is killed, damaged, changed and called again: with
            `fit`, with paddle.Model and, where it is installed, with Lightning
scale       images a second of the whole machine with 1, 2 and 4 processes, with and without
            --grad_shards; all kinds take turns in each round, each in processes of its own
infer       latency of one image and images a second in batches of 256, with one thread: the net in
            Python, Paddle Inference, and, where they are installed, ONNX Runtime and PyTorch with
            the same net and weights; all take turns
pictures    what of drawn pictures is read and what is refused: digits on paper of many kinds,
            MNIST's own images, pages, and what is no digit
signal      seconds from SIGTERM, sent at random moments of a training and its evaluations, to the
            committed checkpoint; in each round 100 of them
all         all of these

--quick is a rehearsal: one round, on the few digits in the box instead of MNIST. Its figures say
nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from benchmarks import (
    any_size,
    checkpoint,
    clocks,
    data,
    evaluation,
    inference,
    ladder,
    memory,
    operators,
    pictures,
    promises,
    scale,
    sigterm,
    sparse,
    time_to_accuracy,
    training,
    watch,
)
from benchmarks.headlines import headlines
from benchmarks.machine import machine
from markdown_tables import write_table

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError

BENCHMARKS = {
    "data": data,
    "clocks": clocks,
    "train": training,
    "time-to-accuracy": time_to_accuracy,
    "ladder": ladder,
    "memory": memory,
    "evaluate": evaluation,
    "operators": operators,
    "conv-blocks": any_size,
    "checkpoint": checkpoint,
    "watch": watch,
    "sparse": sparse,
    "promises": promises,
    "scale": scale,
    "infer": inference,
    "pictures": pictures,
    "signal": sigterm,
}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measure and print the tables; return the exit code."""
    return run_command(_benchmark, argv, log_to=sys.stderr)


def _benchmark(argv: Sequence[str]) -> int:
    parser = Parser(prog="tools/benchmark.py", description=__doc__)
    parser.add_argument("what", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--data", default="auto", metavar="PATH", help="as for training [auto]")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="[3]")
    parser.add_argument("--quick", action="store_true", help="a rehearsal, on little data")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--docs", nargs="+", default=(), metavar="FOLDER", help="put the table into the pages there"
    )
    args = parser.parse_args(argv)
    if args.rounds < 1:
        raise ConfigError(f"rounds is {args.rounds}; expected at least 1")
    if args.what == "all":
        return _run_each(argv)
    # What libraries print, those in C++ too, is no part of a table.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with out, tempfile.TemporaryDirectory() as folder:
        if args.quick:
            args.rounds, args.data = 1, data.digits_as_json(Path(folder))
        elif Path(args.data).exists():
            args.data = Path(args.data).absolute()  # for commands that run elsewhere
        _measure(args.what, args, out)
    return 0


def _run_each(argv: Sequence[str]) -> int:
    """Run each benchmark in a process of its own, which no other has left anything in.

    Returns the exit code of the first that fails.
    """
    for name in BENCHMARKS:
        words = [name if word == "all" else word for word in argv]
        code = subprocess.run([sys.executable, __file__, *words]).returncode
        if code:
            return code
    return 0


def _measure(name: str, args, out) -> None:
    benchmark = BENCHMARKS[name]
    report = benchmark.measure(str(args.data), args.rounds)
    tables = {name: benchmark.table(report)}
    if name == "scale":
        tables["foretold"] = scale.extrapolation_table(report["foretold"])
    report["machine"] = machine()
    values = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    tables = {mark: f"{text}\n\nMeasured on: {values}." for mark, text in tables.items()}
    print(json.dumps(report) if args.json else "\n\n".join(tables.values()), file=out, flush=True)
    marked = {**tables, **headlines(name, tables[name])}
    for folder in args.docs:
        for path in sorted(Path(folder).glob("*.md")):
            for mark, text in marked.items():
                write_table(path, f"benchmark {mark}", text)


if __name__ == "__main__":
    run_script(main)

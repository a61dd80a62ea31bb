#!/usr/bin/env python
"""Measure this package. Everything is measured side by side in one run; quote the ratios.

data        time until the images of an AI Studio JSON file are there, and peak memory: the standard
            library's json.load, this package without its cache, and with it
checkpoint  the share of a training's time that goes into saving, after each epoch and every 50
            steps: the time inside the saves of a real training, over its whole time
watch       what looking into the net costs a training, its writers included: off, every 100 steps
            (the default), every step; the same training takes turns, a step at a time
scale       images a second of the whole machine with 1, 2 and 4 processes, with and without
            --grad_shards; all kinds take turns in each round, each in processes of its own
infer       latency of one image and images a second in batches of 256, with one thread: the net in
            Python, Paddle Inference, and, where they are installed, ONNX Runtime and PyTorch with
            the same net and weights; all take turns
signal      seconds from SIGTERM, sent at random moments of a training and its evaluations, to the
            committed checkpoint; in each round 100 of them
"""

import json
import sys
from pathlib import Path

from measure import checkpoint, data, inferring, scale, stopping, watching

from paddle_mnist.cli import Parser, run_command, write_table

MEASURES = {
    "data": data,
    "checkpoint": checkpoint,
    "watch": watching,
    "scale": scale,
    "infer": inferring,
    "signal": stopping,
}


def main(argv) -> None:
    parser = Parser(prog="tools/benchmark.py", description=__doc__)
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("--data", default="auto", metavar="PATH", help="as for training [auto]")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="[3]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--docs", metavar="FOLDER", help="put the table into the pages there")
    args = parser.parse_args(argv)
    measure = MEASURES[args.what]
    report = measure.measured(args.data, max(1, args.rounds))
    tables = {args.what: measure.table(report)}
    if args.what == "scale":
        report["foretold"] = scale.foretold(report)
        tables["foretold"] = scale.foretold_table(report["foretold"])
    print(json.dumps(report) if args.json else "\n\n".join(tables.values()))
    if args.docs:
        for path in sorted(Path(args.docs).glob("*.md")):
            for name, text in tables.items():
                write_table(path, f"benchmark {name}", text)


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)

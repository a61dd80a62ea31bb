#!/usr/bin/env python
"""Draw the figures of runs again, and several runs over one another."""

import sys
from pathlib import Path

from paddle_mnist.commands.cli import Parser, run_command
from paddle_mnist.system.devices import require_paddle
from paddle_mnist.training.run_directory import COMPARED_FILES, FIGURES, default_run


def main(argv) -> None:
    rows = [f"  {name}.png, {name}.svg" for name in FIGURES]
    rows += [f"  {', '.join(COMPARED_FILES)}  several runs, one over another"]
    parser = Parser(
        prog="tools/plot.py",
        description=__doc__,
        epilog="\n".join(["files that --only may name:", *rows]),
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="run directories [newest in work/output]",
    )
    parser.add_argument(
        "--output", metavar="FOLDER", help="where they go [RUN/figures; the first's for several]"
    )
    parser.add_argument(
        "--only", default="", metavar="FILES", help="as curves.png,kernels.svg, see below [all]"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, gpu:0 or xpu:0 [auto]")
    args = parser.parse_args(argv)
    require_paddle()
    from paddle_mnist.mnist.report import draw_runs

    runs = [Path(run) for run in args.runs] or [default_run().path]
    only = [name.strip() for name in args.only.split(",") if name.strip()]
    for path in draw_runs(runs, args.output, args.device, only):
        print(path)


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)

#!/usr/bin/env python
"""Draw the figures of runs again, and several runs over one another."""

from pathlib import Path

from paddle_mnist.cli import Parser, run_command
from paddle_mnist.device import require_paddle


def main(argv) -> None:
    parser = Parser(prog="tools/plot.py", description=__doc__)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directories")
    parser.add_argument(
        "--output", metavar="FOLDER", help="where they go [RUN/figures; the first's for several]"
    )
    parser.add_argument("--only", default="", metavar="FILES", help="curves.png,kernels.svg")
    parser.add_argument("--device", default="auto", help="auto, cpu, gpu:0 or xpu:0 [auto]")
    args = parser.parse_args(argv)
    require_paddle()
    from paddle_mnist.report import draw_runs

    only = [name.strip() for name in args.only.split(",") if name.strip()]
    for path in draw_runs([Path(run) for run in args.runs], args.output, args.device, only):
        print(path)


if __name__ == "__main__":
    run_command(main)

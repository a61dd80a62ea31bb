"""Run a script that calls `fit`, and restart it when it dies or hangs."""

import argparse
import os
import sys
from collections.abc import Sequence

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.commands import Parser, command
from paddle_mnist.errors import ConfigError
from paddle_mnist.system.children import supervise
from paddle_mnist.system.signals import parse_names


@command()
def main(argv: Sequence[str]) -> int:
    """Supervise a script; return its last exit code."""
    parser = Parser("paddle-mnist supervise", __doc__, "work/output/mine my_training.py")
    parser.usage = "%(prog)s [options] RUN SCRIPT [ARGUMENTS]"
    parser.add_argument("run", metavar="RUN", help="the run directory: `output` of the call of fit")
    parser.add_argument(
        "--max_restarts", type=int, default=3, metavar="N", help="maximum number of restarts [3]"
    )
    parser.add_argument(
        "--hang_timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="seconds without a step after which the script is restarted [600]",
    )
    parser.add_argument(
        "--stop_signals",
        default="",
        metavar="NAMES",
        help="more signals to forward, after which the script is not restarted: USR2,SIGPWR",
    )
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="Python script, and its arguments; put options of this command before RUN",
    )
    args = parser.parse_args(argv)
    script = argv[len(argv) - len(args.script) :]  # as it was spelled
    if args.max_restarts < 0 or args.hang_timeout <= 0:
        raise ConfigError("max_restarts must be at least 0, and hang_timeout more than 0 seconds")
    if not script or not os.path.isfile(script[0]):
        name = script[0] if script else f"after {args.run}"
        raise ConfigError(f"{name}: no such script; expected the path of a Python program")
    try:
        stop_signals = parse_names(args.stop_signals)
    except ValueError as error:
        raise ConfigError(f"stop_signals is {args.stop_signals!r}; {error}") from error
    return supervise(
        lambda _: [sys.executable, *script],
        RunDirectory(args.run).checkpoints.newest_step,
        args.max_restarts,
        args.hang_timeout,
        stop_signals,
    )

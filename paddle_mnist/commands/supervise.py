"""Run a script that calls `fit`, and restart it when it dies or hangs."""

import argparse
import os
import sys
from collections.abc import Sequence

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._train_options import add_option
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.config import FLAT_OPTIONS
from paddle_mnist.system.children import supervise

DEFAULTS = {"max_restarts": 3, "hang_timeout": 600.0, "stop_signals": ""}


@command()
def main(argv: Sequence[str]) -> int:
    """Supervise a script; return its last exit code."""
    parser = Parser("paddle-mnist supervise", __doc__, "work/output/mine my_training.py")
    parser.usage = "%(prog)s [options] RUN SCRIPT [ARGUMENTS]"
    parser.add_argument("run", metavar="RUN", help="the run directory: `output` of the call of fit")
    for name, default in DEFAULTS.items():
        add_option(parser, name, FLAT_OPTIONS[name], default)
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="Python script, and its arguments; put options of this command before RUN",
    )
    args = parser.parse_args(argv)
    script = argv[len(argv) - len(args.script) :]  # as it was spelled
    max_restarts, hang_timeout, stop_signals = (
        FLAT_OPTIONS[name].read(name, getattr(args, name, default))
        for name, default in DEFAULTS.items()
    )
    if not script or not os.path.isfile(script[0]):
        name = script[0] if script else f"after {args.run}"
        raise ConfigError(f"{name}: no such script; expected the path of a Python program")
    return supervise(
        lambda _: [sys.executable, *script],
        RunDirectory(args.run).checkpoints.newest_step,
        max_restarts,
        hang_timeout,
        stop_signals,
    )

"""One program for all commands: its first argument names the command."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError, unknown_name

COMMANDS = (
    "train",
    "eval",
    "export_model",
    "infer",
    "plot",
    "checkpoints",
    "dashboard",
    "demo",
    "train_ps",
)


def main() -> NoReturn:
    """Run the command that the process was started for, and exit with its code."""
    name = sys.argv[1].replace("-", "_") if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        command = import_module(f"paddle_mnist.commands.{name}")
        run_script(
            lambda _: command.main(sys.argv[2:]),
            abandon_threads=name == "dashboard",
        )
    run_script(lambda _: run_command(_list_commands, log_to=sys.stderr))


def _list_commands(argv: Sequence[str]) -> None:
    lines = [f"  {name:14}{_summary(name)}" for name in COMMANDS]
    parser = Parser(
        prog="python -m paddle_mnist",
        description="\n".join(["Train, evaluate and deploy handwritten-digit nets.", "", *lines]),
    )
    parser.usage = "%(prog)s COMMAND [options]"
    if argv and not argv[0].startswith("-"):
        raise ConfigError(unknown_name("command", argv[0], COMMANDS))
    parser.parse_args(argv)
    raise ConfigError("no command is given; --help lists them")


def _summary(name: str) -> str:
    """Return the first sentence of a command's description."""
    description = import_module(f"paddle_mnist.commands.{name}").__doc__
    return description.splitlines()[0].partition(". ")[0].rstrip(".")

"""One program for all commands: its first argument names the command."""

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.system.program import COMMANDS, command_name, module_name


def main() -> NoReturn:
    """Run the command that the process was started for, and exit with its code."""
    name = command_name(sys.argv[1]) if len(sys.argv) > 1 else None
    if name:
        command = _module(name)
        run_script(
            lambda _: command.main(sys.argv[2:]),
            abandon_threads=name == "dashboard",
        )
    run_script(lambda _: run_command(_list_commands, prints_data=True))


def _module(name: str) -> ModuleType:
    return import_module(f"paddle_mnist.commands.{module_name(name)}")


def _list_commands(argv: Sequence[str]) -> None:
    lines = [f"  {name:14}{_summary(name)}" for name in COMMANDS]
    parser = Parser(
        prog="paddle-mnist COMMAND",
        description="\n".join(["Train, evaluate and deploy handwritten-digit nets.", "", *lines]),
    )
    if argv and not argv[0].startswith("-"):
        raise ConfigError(unknown_name("command", argv[0], COMMANDS))
    parser.parse_args(argv)
    raise ConfigError("no command is given; --help lists them")


def _summary(name: str) -> str:
    """Return the first sentence of a command's description."""
    description = _module(name).__doc__ or ""  # -OO drops it
    return description.partition("\n")[0].partition(". ")[0].rstrip(".")

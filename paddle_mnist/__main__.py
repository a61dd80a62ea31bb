"""Run the command that the first argument names: `python -m paddle_mnist train --epochs 3`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError, unknown_name

NAMES = "train check eval infer export demo dashboard plot checkpoints supervise prove".split()
# The module of each command, in `paddle_mnist.commands`.
COMMANDS = {**dict(zip(NAMES, NAMES)), "export": "export_model"}


def main() -> NoReturn:
    """Run the command, also as the installed program `paddle-mnist`, and exit with its code."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        run_script(COMMANDS[name], sys.argv[2:], abandon_threads=name == "dashboard")
    run_script(lambda _: run_command(_list_commands, prints_data=True))


def _module(command: str) -> ModuleType:
    return import_module(f"paddle_mnist.commands.{COMMANDS[command]}")


def _list_commands(argv: Sequence[str]) -> None:
    lines = [f"  {name:14}{_summary(name)}" for name in COMMANDS]
    parser = Parser(
        "paddle-mnist COMMAND",
        "example: paddle-mnist train --epochs 3\n\n"
        "Train, evaluate and deploy handwritten-digit nets.\n\n" + "\n".join(lines),
    )
    if argv and not argv[0].startswith("-"):
        raise ConfigError(unknown_name("command", argv[0], COMMANDS))
    parser.parse_args(argv)
    raise ConfigError("no command is given; --help lists them")


def _summary(name: str) -> str:
    """Return the first sentence of a command's description."""
    description = _module(name).__doc__ or ""  # -OO drops it
    return description.partition("\n")[0].partition(". ")[0].rstrip(".")


if __name__ == "__main__":
    main()

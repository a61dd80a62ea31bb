"""The program that runs the commands: `paddle-mnist`, `python -m paddle_mnist`, or a script."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Optional

from paddle_mnist.system.surroundings import environment

PROGRAM = "paddle-mnist"
PACKAGE = __name__.partition(".")[0]
COMMANDS = (
    "train",
    "eval",
    "infer",
    "export",
    "demo",
    "dashboard",
    "plot",
    "checkpoints",
    "supervise",
)
# The modules in `commands/` and the scripts in `tools/` whose names differ from their commands'.
MODULES = {"export": "export_model"}
# Set in the environment of a command, and so of the processes that it starts.
IN_COMMAND = "PADDLE_MNIST_COMMAND"


def running_command() -> contextlib.AbstractContextManager[None]:
    """Return a context in which errors name the options of a command, not arguments in code."""
    return environment(**{IN_COMMAND: "1"})


def in_command() -> bool:
    """Return whether this process runs a command, or was started by one."""
    return IN_COMMAND in os.environ


def as_option(name: str, value: object = None, code: Optional[str] = None) -> str:
    """Return an option as the user writes it: `--fresh`, or in code `fresh=True`.

    code: what stands for it in code, where that is no argument of the same name.
    """
    if in_command():
        return f"--{name}" if value is None else f"--{name} {value}"
    return code or (f"{name}=True" if value is None else f"{name}={value!r}")


def option_name(name: str, code: str) -> str:
    """Return the name by which the user knows an option: in a command its flat name.

    code: its name in code, such as "Processes: number".
    """
    return name if in_command() else code


def weights_alone(path: str = "PATH") -> str:
    """Return how the user starts a new run from the weights of another."""
    return as_option("init_from", path, f"start=StartFrom({path!r}, weights_only=True)")


def another_output(is_mirrored: bool = False) -> str:
    """Return what the user chooses to train elsewhere; a run with a mirror would go on with it."""
    output = "another --output" if in_command() else "another output"
    return f"{output} and {another_mirror()}" if is_mirrored else output


def another_mirror() -> str:
    """Return what the user chooses to keep the copy elsewhere."""
    return "another --mirror" if in_command() else "another mirror"


def module_name(command: str) -> str:
    """Return the name of a command's module, which is also that of its script in `tools/`."""
    return MODULES.get(command, command)


def command_name(name: str) -> Optional[str]:
    """Return the command that a user means by a name, or None if there is no such command.

    Underscores are as good as dashes, and the name of the module (`export_model`) as the command's.
    """
    name = name.replace("_", "-")
    names = {module_name(command).replace("_", "-"): command for command in COMMANDS}
    return name if name in COMMANDS else names.get(name)


def start_arguments(command: str) -> list[str]:
    """Return the arguments of Python that start this process's command again, without options."""
    script = Path(sys.argv[0])
    if script.stem == PROGRAM:
        return [sys.argv[0], command]
    is_module = script.name == "__main__.py" and script.parent.name == PACKAGE
    return ["-m", PACKAGE, command] if is_module else [sys.argv[0]]

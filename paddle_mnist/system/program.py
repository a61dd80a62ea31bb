"""The program that runs the commands: `paddle-mnist`, `python -m paddle_mnist`, or a script."""

import contextlib
import os
import shlex
import shutil
import sys
import sysconfig
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
    "train-ps",
)
# The modules in `commands/` and the scripts in `tools/` whose names differ from their commands'.
MODULES = {"export": "export_model", "train-ps": "train_ps"}
# Set in the environment of a command, and so of the processes that it starts.
IN_COMMAND = "PADDLE_MNIST_COMMAND"
TOOLS = Path(__file__).parents[2] / "tools"  # only in the repository


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


def program_name(command: str) -> str:
    """Return what the user types to run a command.

    It is the program that this process was started as, such as `paddle-mnist train`, with the name
    by which its command was called; in a process that a script in `tools/` started, that command's
    script; in any other, `paddle-mnist`.
    """
    prefix = _started_program()
    if prefix and len(sys.argv) > 1 and command_name(sys.argv[1]) == command:
        command = sys.argv[1]
    if prefix is None and Path(sys.argv[0]).absolute().parent == TOOLS:
        return f"tools/{module_name(command)}.py"
    return " ".join([*(prefix or [PROGRAM]), command])


def start_arguments(command: str) -> list[str]:
    """Return the arguments of Python that start this process's command again, without options."""
    program = _started_program()
    if program is None:
        return [sys.argv[0]]
    return [sys.argv[0], command] if program == [PROGRAM] else [*program[1:], command]


def shell_command(command: str, *args: str) -> Optional[str]:
    """Return a line that runs a command when it is pasted into a shell in this folder.

    Returns None if the package is neither installed nor used from its repository, for example from
    a folder that a notebook has added to `sys.path`.
    """
    script, tool = _installed_script(), TOOLS / f"{module_name(command)}.py"
    if script:
        words = [_program_as_typed(script), command]
    elif tool.exists():
        words = [_program_as_typed(sys.executable), _from_here(tool)]
    elif program := _started_program():
        words = [_program_as_typed(sys.executable), *program[1:], command]
    else:
        return None
    return shlex.join([*words, *args])


def _started_program() -> Optional[list[str]]:
    """Return the words that start this process's program, or None if it is none of ours."""
    script = Path(sys.argv[0])
    if script.stem == PROGRAM:
        return [PROGRAM]
    if script.name == "__main__.py" and script.parent.name == PACKAGE:
        return ["python", "-m", PACKAGE]
    return None


def _installed_script() -> Optional[str]:
    """Return the path of the installed program: the running one, or this Python's."""
    if _started_program() == [PROGRAM]:
        return os.path.abspath(sys.argv[0])
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", f"{os.name}_user"),  # of `pip install --user`
    ]
    return shutil.which(PROGRAM, path=os.pathsep.join(folders))


def _program_as_typed(path: str) -> str:
    """Return a program's name if the shell finds this very program by it, else its path."""
    name = os.path.basename(path)
    on_path = shutil.which(name)
    return name if on_path and os.path.abspath(on_path) == path else _from_here(Path(path))


def _from_here(path: Path) -> str:
    """Return a path as one types it in this folder: relative if it is inside."""
    folder = Path.cwd()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)

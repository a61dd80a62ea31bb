"""The scratch folder to which a program diverts its runs when `paddle-mnist prove` starts it."""

import os
import platform
from pathlib import Path
from typing import Optional, Union

import msgspec

from paddle_mnist.errors import ConfigError
from paddle_mnist.system.files import warn_once
from paddle_mnist.system.regular_files import MAX_JSON, parse_json, read_bytes

VARIABLE = "PADDLE_MNIST_PROVE"  # names the scratch folder
PLAN = "plan.json"  # in it, as long as `prove` runs


class StartPlan(msgspec.Struct):
    """What a program is to do in one of its starts.

    pid: the process of `prove`. attempt: the folder of this start and of those that it continues.
    steps, epochs: after how many each run ends. save_every: at most so many steps between saves.
    stop: where to wait for a signal: [kind, run, step, part], see `training.proving`.
    objects: after which steps to describe all objects: [run, step, epoch].
    """

    pid: int
    attempt: str
    steps: Optional[int] = None
    epochs: Optional[int] = None
    save_every: Optional[int] = None
    stop: Optional[tuple[str, str, int, Union[int, str]]] = None
    objects: list[tuple[str, int, int]] = []

    @property
    def runs(self) -> Path:
        """The folder of the runs, each under its absolute path."""
        return Path(self.attempt, "runs")

    @property
    def events(self) -> Path:
        """The file of the recorded events."""
        return Path(self.attempt, "events.jsonl")

    def diverted(self, path: Union[str, Path]) -> Path:
        """Return where a run is written instead of at a path."""
        path = Path(os.path.abspath(os.path.expanduser(path)))
        return path if path.is_relative_to(self.runs) else self.runs / path.relative_to(path.anchor)

    def is_alive(self) -> bool:
        """Return whether `prove` still waits for this program."""
        try:
            os.kill(self.pid, 0)
        except OSError as error:
            return isinstance(error, PermissionError)  # another user's
        return True


def prefix() -> str:
    """Return the prefix of scratch folders whose plans name processes of this machine."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino  # of a container, or of all processes
    except OSError:  # not Linux
        namespace = 0
    return f"paddle_mnist_prove_{platform.node()}_{namespace}_"


def read_plan(folder: Path) -> StartPlan:
    """Return the plan in a scratch folder. Raises OSError, ValueError."""
    return parse_json(read_bytes(folder / PLAN, MAX_JSON), StartPlan)


def find_plan() -> Optional[StartPlan]:
    """Return the plan for this program; None unless a `prove` has started it.

    Raises ConfigError if that `prove` has ended, since training would then change the user's runs.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    try:
        plan = read_plan(Path(name))
    except (OSError, ValueError) as error:
        problem = f"in which {PLAN} cannot be read ({type(error).__name__})"
        warn_once(name, "%s is %s, %s: ignored; unset it", VARIABLE, name, problem)
        return None
    if not plan.is_alive():
        raise ConfigError(
            f"{VARIABLE} is {name}, whose prove was killed; unset it to train without prove"
        )
    return plan


def diverted_to_read(name: str) -> str:
    """Return where a run, one of its files, or a folder of runs is read.

    Under `prove`, runs that the program itself has trained are in the scratch folder.
    """
    if plan := find_plan():
        path = plan.diverted(name)
        if path.exists() or any((folder / "config.yaml").exists() for folder in path.parents[:2]):
            return str(path)
    return name

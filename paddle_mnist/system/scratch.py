"""The scratch folder to which a program that `paddle-mnist prove` has started diverts its runs.

`VARIABLE` names it. It holds `PLAN`, which names a living process: a variable that was left
exported diverts nothing.
"""

import os
from pathlib import Path
from typing import Optional, TypedDict, Union

from paddle_mnist.system.files import warn_once
from paddle_mnist.system.regular_files import MOST_JSON, parse_json, read_bytes

VARIABLE = "PADDLE_MNIST_PROVE"
PLAN, RUNS, EVENTS = "plan.json", "runs", "events.jsonl"


class Plan(TypedDict, total=False):
    """What a program is to do, in one start.

    pid: the process of `prove`. attempt: the folder for this start and those that it continues.
    steps, epochs: after how many each run ends. save_every: the most steps between checkpoints.
    stop: where to wait for a signal: [kind, run, step, part], see `training.proving`.
    objects: after which steps to describe all objects: [run, step, epoch].
    """

    pid: int
    attempt: str
    steps: Optional[int]
    epochs: Optional[int]
    save_every: Optional[int]
    stop: Optional[tuple[str, str, int, Union[int, str]]]
    objects: list[tuple[str, int, int]]


class Scratch:
    """The folder of this start of a program. folder: that of `prove`."""

    def __init__(self, folder: Path, plan: Plan):
        self.plan = plan
        self.runs = folder / plan["attempt"] / RUNS
        self.events = folder / plan["attempt"] / EVENTS

    def diverted(self, path: Union[str, Path]) -> Path:
        """Return where a run is written instead of at a path."""
        path = Path(os.path.abspath(os.path.expanduser(path)))
        return path if path.is_relative_to(self.runs) else self.runs / path.relative_to(path.anchor)

    def is_alive(self) -> bool:
        """Return whether `prove` still waits for this program."""
        try:
            os.kill(self.plan["pid"], 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it runs as another user
            return True
        return True


def scratch() -> Optional[Scratch]:
    """Return the scratch folder of this program; None unless a living `prove` has started it."""
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    try:
        found = Scratch(Path(name), parse_json(read_bytes(Path(name, PLAN), MOST_JSON), Plan))
        if found.is_alive():
            return found
        problem = "whose process has ended"
    except (OSError, ValueError, KeyError) as error:
        problem = f"where {PLAN} cannot be read ({type(error).__name__})"
    warn_once(name, "%s is %s, %s, so it is ignored; unset it", VARIABLE, name, problem)
    return None


def diverted_to_read(name: str) -> str:
    """Return where a run, a checkpoint or a folder of runs is read.

    Under `prove`, what the program itself has trained is in the scratch folder; all else stays.
    """
    if folder := scratch():
        path = folder.diverted(name)
        if path.exists() or any((one / "config.yaml").exists() for one in path.parents[:2]):
            return str(path)
    return name

"""The exceptions of this package, each with the exit code of a command that it ends.

    PaddleMnistError            1
    ├── ConfigError             2   a bad argument, option or configuration
    ├── DataError               3   a missing or faulty source of images
    │   └── PictureError        3   a picture that cannot be read as a digit
    ├── CheckpointError         4   no usable checkpoint, or one that is refused
    │   └── RepeatedStepError   4   a resumed run computes other values than the interrupted one
    ├── DeviceError             5   Paddle or the device is not available
    ├── DivergedError           6   the loss is no longer a finite number
    ├── OutputError             7   something cannot be written
    ├── PicturesError           8   some of the pictures could not be read
    ├── RunLockedError         75   another process holds the run directory, or its mirror
    ├── NoProgressError        93   no progress after repeated restarts
    ├── PeerError               1   another process of the training has ended
    ├── ProcessError  its own code   a process of the training died
    └── StoppedError        128 + n   stopped by signal n, such as SIGTERM: 143

A message names the value, what was expected and the remedy. `commands.cli` turns an error into
the exit code of the process; docs/en/stability.md lists all codes.
"""

import difflib
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Optional, Union


class PaddleMnistError(Exception):
    exit_code = 1


class ConfigError(PaddleMnistError, ValueError):
    exit_code = 2


class DataError(PaddleMnistError):
    exit_code = 3


class PictureError(DataError):
    """A picture cannot be read as a digit. kind: the reason in a word, for translations."""

    def __init__(self, message: str, kind: str = ""):
        super().__init__(message)
        self.kind = kind


class CheckpointError(PaddleMnistError):
    exit_code = 4


class RepeatedStepError(CheckpointError):
    pass


class DeviceError(PaddleMnistError):
    exit_code = 5


class DivergedError(PaddleMnistError, ArithmeticError):
    exit_code = 6


class OutputError(PaddleMnistError):
    exit_code = 7


class PicturesError(PaddleMnistError):
    exit_code = 8


class RunLockedError(PaddleMnistError):
    exit_code = 75


class NoProgressError(PaddleMnistError):
    exit_code = 93


class PeerError(PaddleMnistError):
    pass


class ProcessError(PaddleMnistError):
    """A process died without an error of this package. exit_code: as a shell reports it."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


class StoppedError(PaddleMnistError, SystemExit):
    """A signal stopped the training, after it had saved.

    signum: its number. is_finished: whether it came after the last step.
    The exit code is 128 + signum. As a `SystemExit` it ends a program that does not catch it with
    that code and without a traceback.
    """

    def __init__(self, signum: int, is_finished: bool = False):
        name = signal.Signals(signum).name
        super().__init__(
            f"stopped by {name} after the training had finished"
            if is_finished
            else f"stopped by {name}; run again to resume"
        )
        self.signum, self.is_finished = signum, is_finished
        self.exit_code = self.code = 128 + signum

    def __reduce__(self) -> tuple[type, tuple[int, bool]]:
        return type(self), (self.signum, self.is_finished)


MAX_CHARACTERS = 300  # of an error in a summary


def summary(error: Exception, mask: Callable[[str], str] = str) -> str:
    """Return an error in one line, its class and message; Paddle's errors have many lines.

    mask: hides secrets, before a long line is cut.
    """
    text = re.sub(r":\s*\n\s*", ": ", str(error))  # a line that only introduces the next one
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = next((line for line in lines if "Error:" in line), lines[0] if lines else "")
    text = mask(chosen.rstrip("."))
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]} ..."
    return f"{type(error).__name__}: {text}".removesuffix(": ")


# The remedy where weights alone are refused as a checkpoint.
WEIGHTS_ALONE = "init_from (in code StartFrom with weights_only) takes the weights alone"

spelling = ContextVar("spelling", default="{}={!r}")  # of options; a command sets its own

SHORT_NAMES = {"lr": "learning_rate", "bs": "batch_size", "wd": "weight_decay"}


def spelled(name: str, value: Union[str, bool] = True) -> str:
    """Return an option as the caller writes it: in Python, or on a command line."""
    return spelling.get().format(name, value).removesuffix(" True")


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names in one line: at most `most` of them, then the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def nearest_name(name: str, known: Iterable[str], similarity: float = 0.6) -> Optional[str]:
    """Return the known name that an unknown one probably means; None if none is similar.

    similarity: from 0 to 1, the least at which a name counts as similar.
    """
    known = list(known)
    long_name = SHORT_NAMES.get(name)
    if long_name in known:
        return long_name
    return next(iter(difflib.get_close_matches(name, known, 1, similarity)), None)


def unknown_name(origin: str, name: str, known: Iterable[str]) -> str:
    """Return an error message for an unknown name, with the nearest known one, or all of them."""
    known = [*map(str, known)]
    nearest = nearest_name(str(name), known)
    hint = f"did you mean {nearest!r}?" if nearest else f"expected {listed(known)}"
    return f"{origin}: unknown name {name!r}; {hint}"

"""The exceptions of this package, each with the exit code a command ends with.

    PaddleMnistError            1
    ├── ConfigError             2   a bad argument, option or configuration
    ├── DataError               3   a missing or faulty source of images
    ├── CheckpointError         4   no usable checkpoint, or one that is refused
    ├── DeviceError             5   Paddle or the device is not available
    ├── DivergedError           6   the loss is no longer a finite number
    ├── OutputError             7   something cannot be written
    ├── PicturesError           8   some of the pictures could not be read
    ├── RunLockedError         75   another process holds the run directory
    ├── NoProgressError        93   restarted again and again without getting further
    ├── PeerError               1   another process of the training is gone
    ├── ProcessError  its own code   a process of the training died
    └── StoppedError    130 / 143   SIGINT or SIGTERM asked for the end

A message says what was found, what was expected and what to do about it.
"""

import difflib
import signal
from collections.abc import Iterable
from typing import Optional


class PaddleMnistError(Exception):
    exit_code = 1


class ConfigError(PaddleMnistError, ValueError):
    exit_code = 2


class DataError(PaddleMnistError):
    exit_code = 3


class CheckpointError(PaddleMnistError):
    exit_code = 4


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
    """A process died, without an error of this package. exit_code: as a shell would have it."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self):
        return type(self), (str(self), self.exit_code)


class StoppedError(PaddleMnistError):
    """A signal asked for the end. signum: its number; the exit code is 128 more, as shells do."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}; run the same command to go on")
        self.signum = signum
        self.exit_code = 128 + signum

    def __reduce__(self):
        return type(self), (self.signum,)


SHORT_NAMES = {"lr": "learning_rate", "bs": "batch_size", "wd": "weight_decay"}


def nearest_name(name: str, known: Iterable[str]) -> Optional[str]:
    """The known name that is probably meant by an unknown one; None if none is close."""
    known = list(known)
    meant = SHORT_NAMES.get(name)
    if meant in known:
        return meant
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def unknown_name(origin: str, name: str, known: Iterable[str]) -> str:
    """One line for a name nobody knows, with the nearest one that is known."""
    near = nearest_name(str(name), known)
    hint = f"did you mean {near!r}?" if near else "--help lists them"
    return f"{origin}: unknown name {name!r}; {hint}"

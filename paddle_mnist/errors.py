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

import signal


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

"""Commands called in this process, as if each were a process of its own.

Starting a process and importing Paddle takes longer than most of what is tested. A command called
here finds a folder, an environment, arguments, streams and global state of its own, and leaves
nothing of them behind.
"""

import contextlib
import logging
import os
import random
import runpy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from paddle_mnist.system.signals import stop_signals


def call(argv: Sequence[str], cwd: Path, environment: Mapping[str, str], out: Path, err: Path):
    """Run the script `argv[0]`, its output written to two files; return its exit code."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_redirected(1, "stdout", out))
        stack.enter_context(_redirected(2, "stderr", err))
        for preserved in _GLOBAL_STATE:
            stack.enter_context(preserved())
        os.chdir(cwd)
        os.environ.update(environment)
        time.tzset()
        sys.argv = list(argv)
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as stop:
            if stop.code is None or isinstance(stop.code, int):
                return stop.code or 0
            print(stop.code, file=sys.stderr)
            return 1
        except Exception:
            traceback.print_exc()
            return 1
        return 0


@contextlib.contextmanager
def _redirected(descriptor: int, name: str, path: Path) -> Iterator[None]:
    """Send the stream and its descriptor, which Paddle's C++ and child processes use, to a file."""
    stream, saved = getattr(sys, name), os.dup(descriptor)
    stream.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, descriptor)
    os.close(file)
    own = open(descriptor, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    setattr(sys, name, own)
    try:
        yield
    finally:
        setattr(sys, name, stream)
        own.flush()
        os.dup2(saved, descriptor)
        os.close(saved)


@contextlib.contextmanager
def _interpreter() -> Iterator[None]:
    """The folder, the environment, the arguments and the import path."""
    folder, environment = os.getcwd(), dict(os.environ)
    argv, path = sys.argv, list(sys.path)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        sys.argv, sys.path[:] = argv, path


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """A command leaves those that end it ignored, for its process is about to end."""
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """The loggers as a new process finds them."""
    loggers = [logging.getLogger(), logging.getLogger("paddle_mnist")]
    before = [(log.handlers[:], log.level, log.propagate, log.disabled) for log in loggers]
    for log in loggers:
        log.handlers[:] = []
    loggers[1].setLevel(logging.NOTSET)
    loggers[1].propagate = True
    try:
        yield
    finally:
        for log, (handlers, level, propagate, disabled) in zip(loggers, before):
            for handler in log.handlers:
                if handler not in handlers:
                    handler.close()
            log.handlers[:], log.propagate, log.disabled = handlers, propagate, disabled
            log.setLevel(level)


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    """Warnings are printed, as Python does without options, and not collected by pytest."""

    def show(message, category, filename, lineno, file=None, line=None):
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(text, end="", file=file or sys.stderr)

    with warnings.catch_warnings():
        warnings.resetwarnings()
        for category in (
            ResourceWarning,
            ImportWarning,
            PendingDeprecationWarning,
            DeprecationWarning,
        ):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        warnings.filterwarnings("ignore", message="No ccache found")  # as importing the package
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _generators() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextlib.contextmanager
def _paddle() -> Iterator[None]:
    """Paddle's generators, its device, and the numbers in the names it generates."""
    if "paddle" not in sys.modules:  # nothing to preserve
        yield
        return
    import paddle

    states, device = paddle.get_rng_state(), paddle.device.get_device()
    with paddle.utils.unique_name.guard():
        try:
            yield
        finally:
            paddle.device.set_device(device)
            paddle.set_rng_state(states)


_GLOBAL_STATE = (_interpreter, _signals, _logging, _warnings, _generators, _paddle)

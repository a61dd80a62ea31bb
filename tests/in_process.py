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
        stack.enter_context(_interpreter_restored())
        stack.enter_context(_loggers_restored())
        stack.enter_context(_warnings_printed())
        stack.enter_context(_paddle_restored())
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
def _interpreter_restored() -> Iterator[None]:
    """The folder, the environment, the arguments, the import path, handlers, generators.

    A command leaves signals that end it ignored, for its process is about to end.
    """
    folder, environment = os.getcwd(), dict(os.environ)
    argv, path = sys.argv, list(sys.path)
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        sys.argv, sys.path[:] = argv, path
        for number, handler in handlers.items():
            signal.signal(number, handler)
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextlib.contextmanager
def _loggers_restored() -> Iterator[None]:
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
            for handler in {*log.handlers} - {*handlers}:
                handler.close()
            log.handlers[:], log.propagate, log.disabled = handlers, propagate, disabled
            log.setLevel(level)


@contextlib.contextmanager
def _warnings_printed() -> Iterator[None]:
    """Warnings are printed, as Python does without options, and not collected by pytest."""

    def show(message, category, filename, lineno, file=None, line=None):
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(text, end="", file=file or sys.stderr)

    ignored = (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for category in ignored:
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        warnings.filterwarnings("ignore", message="No ccache found")  # as importing the package
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _paddle_restored() -> Iterator[None]:
    """Paddle's generators, its device, and the numbers in the names it generates."""
    import paddle  # not before conftest has imported numba

    states, device = paddle.get_rng_state(), paddle.device.get_device()
    with paddle.utils.unique_name.guard():
        try:
            yield
        finally:
            paddle.device.set_device(device)
            paddle.set_rng_state(states)

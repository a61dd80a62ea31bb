"""Running a command: errors as one line, exit codes, and how a process with a command ends."""

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, Optional

from paddle_mnist.errors import DataError, OutputError, PaddleMnistError, StoppedError
from paddle_mnist.metrics.console import console_logs
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.machine import lacks_memory, memory_limit
from paddle_mnist.system.surroundings import prepared, usable_home

Main = Callable[[Optional[Sequence[str]]], int]
Command = Callable[[Sequence[str]], Optional[int]]
QUESTIONS = {"-h", "--help", "--version"}  # they need no home


def command(prints_data: bool = False) -> Callable[[Command], Main]:
    """Make a function of the arguments a command, which `run_command` runs; see there."""

    def made(function: Command) -> Main:
        @functools.wraps(function)
        def main(argv: Optional[Sequence[str]] = None) -> int:
            return run_command(function, argv, prints_data)

        return main

    return made


def run_command(
    command: Command, argv: Optional[Sequence[str]] = None, prints_data: bool = False
) -> int:
    """Run a command and return its exit code; errors of this package are printed in one line.

    command: takes the arguments and returns an exit code, None for 0.
    argv: the arguments, `sys.argv[1:]` by default.
    prints_data: whether stdout is for what the command prints, so that log lines go to stderr.
    """
    heartbeat.start()
    argv = sys.argv[1:] if argv is None else argv
    is_question = bool(QUESTIONS.intersection(argv))
    home = contextlib.nullcontext() if is_question else usable_home()
    with prepared():
        try:
            if not is_question:
                _require_working_folder()
            stream = sys.stderr if prints_data else sys.stdout
            with console_logs(stream), home:
                code = _exit_code(command, argv)
            sys.stdout.flush()  # here, where what cannot be written is an error
            return code
        except PaddleMnistError as error:
            if not isinstance(error, StoppedError):  # `fit` has logged it
                _report(str(error))
            return error.exit_code
        except Exception as error:  # Paddle has errors of its own for a lack of memory
            if isinstance(error, OSError) and error.filename is None:  # of a stream
                _report(f"cannot write ({error.strerror or error}); run the same command again")
                return OutputError.exit_code
            if not memory_limit() or not lacks_memory(error):
                raise
            _report(f"out of memory; {memory_limit()}")
            return PaddleMnistError.exit_code
        except KeyboardInterrupt:
            return 128 + signal.SIGINT


def _report(message: str) -> None:
    with contextlib.suppress(OSError):  # stderr may be full or closed, too
        print(f"error: {message}", file=sys.stderr)


def _require_working_folder() -> None:
    """Raise DataError where the working folder is gone, with which imports fail in other words."""
    try:
        os.getcwd()
    except OSError as error:
        raise DataError(
            f"the working folder: {error.strerror}; it was deleted, it seems; cd to another one, "
            "and run the same command again"
        ) from error


def _exit_code(command: Command, argv: Sequence[str]) -> int:
    try:
        return command(argv) or 0
    except PaddleMnistError:  # StoppedError, too, is a SystemExit
        raise
    except SystemExit as end:  # the parser has printed the help or the version; or SIGTERM came
        if isinstance(end.code, str):
            raise
        return end.code or 0


def run_script(main: Main, abandon_threads: bool = False) -> NoReturn:
    """Run a command as all that this process does, and exit with its code.

    SIGTERM ends it with 143 wherever `fit` does not handle it. Signals that come while the process
    ends change nothing.

    abandon_threads: do not wait for threads that the command has left behind.
    """
    before = threading.enumerate()
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    code = main(None)
    signals.ignore()
    logging.shutdown()
    _flush_streams()
    if abandon_threads and any(
        not thread.daemon and thread not in before for thread in threading.enumerate()
    ):
        os._exit(code)
    sys.exit(code)


def _flush_streams() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # Python would flush again, complain and exit with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

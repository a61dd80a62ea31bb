"""Running a command: errors as one line, exit codes, and how a process with a command ends."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, Optional, TextIO

from paddle_mnist.errors import OutputError, PaddleMnistError
from paddle_mnist.metrics.console import console_logs
from paddle_mnist.system import heartbeat, signals

Main = Callable[[Optional[Sequence[str]]], int]


def run_command(
    command: Callable[[Sequence[str]], Optional[int]],
    argv: Optional[Sequence[str]] = None,
    log_to: Optional[TextIO] = None,
) -> int:
    """Run a command and return its exit code; errors of this package are printed in one line.

    command: takes the arguments and returns an exit code, None for 0.
    argv: the arguments, `sys.argv[1:]` by default.
    log_to: where log lines go, stdout by default; stderr for commands that print data.
    """
    heartbeat.start()
    stream = log_to or sys.stdout
    try:
        with console_logs(stream), signals.handlers_installed(), signals.interruptible():
            return command(sys.argv[1:] if argv is None else argv) or 0
    except PaddleMnistError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as end:  # the parser has printed the help or the version
        if end.code:
            raise
        return 0
    except BrokenPipeError:
        print("error: the console: cannot write (Broken pipe)", file=sys.stderr)
        return OutputError.exit_code


def run_script(main: Main, abandon_threads: bool = False) -> NoReturn:
    """Run a command as all that this process does, and exit with its code.

    Signals that come while the process ends change nothing.

    abandon_threads: do not wait for threads that the command has left behind.
    """
    before = threading.enumerate()
    with signals.handlers_installed(ignore_afterwards=True):
        code = main(None)
    logging.shutdown()
    try:
        sys.stdout.flush()
    except OSError:  # Python would flush again, complain and exit with 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if abandon_threads and any(
        not thread.daemon and thread not in before for thread in threading.enumerate()
    ):
        os._exit(code)
    sys.exit(code)

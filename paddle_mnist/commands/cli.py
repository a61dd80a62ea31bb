"""The frame of every command: parser, errors in one line, exit codes, the end of the process."""

import argparse
import atexit
import contextlib
import functools
import logging
import os
import platform
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from importlib import import_module
from typing import Any, NoReturn, Optional, Union

import paddle_mnist
from paddle_mnist.errors import (
    ConfigError,
    DataError,
    OutputError,
    PaddleMnistError,
    StoppedError,
    nearest_name,
    spelling,
)
from paddle_mnist.metrics.console import console_logs
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.devices import installed_builds
from paddle_mnist.system.environment import prepared, printable, refuse_second_import, usable_home

Main = Callable[[Optional[Sequence[str]]], int]
Command = Callable[[Sequence[str]], Optional[int]]
log = logging.getLogger("paddle_mnist")
QUESTIONS = {"-h", "--help", "--version"}  # work without a home directory


def command(prints_data: bool = False) -> Callable[[Command], Main]:
    """Turn a function of the arguments into a command; see `run_command`."""

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
            refuse_second_import()
            if not is_question:
                _require_working_folder()
            stream = sys.stderr if prints_data else sys.stdout
            with console_logs(stream), home:
                code = copy_context().run(_exit_code, command, argv)
            sys.stdout.flush()  # here, where a failed write is reported
            return code
        except PaddleMnistError as error:
            if not isinstance(error, StoppedError):  # `fit` has logged it
                _report(str(error))
            return error.exit_code
        except OSError as error:
            if error.filename is not None:
                raise
            _report(f"cannot write ({error.strerror or error}); run the same command again")
            return OutputError.exit_code
        except KeyboardInterrupt:
            return 128 + signal.SIGINT


def _report(message: str) -> None:
    with contextlib.suppress(OSError):  # stderr, too, may be full or closed
        print(f"error: {printable(message)}", file=sys.stderr)


def _require_working_folder() -> None:
    """Raise DataError if the working folder is gone, without which imports fail obscurely."""
    try:
        os.getcwd()
    except OSError as error:
        raise DataError(
            f"the working folder: {error.strerror}; it was probably deleted; cd to another one, "
            "and run the same command again"
        ) from error


def _exit_code(command: Command, argv: Sequence[str]) -> int:
    spelling.set("--{} {}")
    try:
        return command(argv) or 0
    except PaddleMnistError:  # StoppedError, too, is a SystemExit
        raise
    except SystemExit as end:  # the parser has printed the help or the version; or SIGTERM came
        if isinstance(end.code, str):
            raise
        return end.code or 0


def run_script(
    main: Union[str, Main], argv: Optional[Sequence[str]] = None, abandon_threads: bool = False
) -> NoReturn:
    """Run a command as the only job of this process, and exit with its code.

    SIGTERM ends it with 143 wherever `fit` does not handle it. Signals that arrive while the
    process exits are ignored.

    main: the command, or the name of its module in `paddle_mnist.commands`. Give the name of a
        module that is not imported yet: signals wait until it is. Python drops what a handler
        raises in a callback of importlib, and up to 3.11 raises a RuntimeError instead where a
        dataclass is defined.
    argv: the arguments, `sys.argv[1:]` by default.
    abandon_threads: do not wait for threads that the command has left behind.
    """
    before = threading.enumerate()
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:  # inherited
        signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    try:
        with signals.deferred():
            call: Main = (
                import_module(f"{__package__}.{main}").main if isinstance(main, str) else main
            )
        code = call(argv)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    signals.ignore()
    logging.shutdown()
    _flush_streams()
    if abandon_threads and any(
        not thread.daemon and thread not in before for thread in threading.enumerate()
    ):
        os._exit(code)
    atexit.register(_leave, code)
    sys.exit(code)


def _leave(code: int) -> None:
    """Call the other exit functions, and exit without freeing memory.

    To free the modules of Paddle, Numba and Matplotlib takes Python a third of a second.
    """
    atexit.unregister(_leave)
    atexit._run_exitfuncs()
    _flush_streams()
    os._exit(code)


def _flush_streams() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # Python would flush again, complain and exit with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError, with the nearest known name for an unknown one.

    Every option may also be written with dashes, `--learning-rate` for `--learning_rate`.

    example: arguments for the example at the beginning of the help.
    """

    def __init__(
        self,
        prog: Optional[str] = None,
        description: Optional[str] = "",
        example: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            prog=prog,
            usage="%(prog)s [options]",
            description=f"example: {prog} {example}\n\n{description}" if example else description,
            allow_abbrev=False,
            formatter_class=lambda prog: _HelpFormatter(prog, max_help_position=32),
            **kwargs,
        )
        builds = [f"{name} {version}" for name, version in installed_builds().items()]
        versions = [*(builds or ["no PaddlePaddle"]), f"Python {platform.python_version()}"]
        self.add_argument(
            "--version",
            action="version",
            version=f"paddle_mnist {paddle_mnist.__version__} ({', '.join(versions)})",
            help="print the versions of the package, PaddlePaddle and Python, and exit",
        )

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file)  # argparse would hide a failed write

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the options")

    def parse_known_args(self, args: Optional[Iterable[str]] = None, namespace: Any = None) -> Any:
        for name, action in [*self._option_string_actions.items()]:
            self._option_string_actions.setdefault(name.replace("_", "-"), action)
        parsed, unknown = super().parse_known_args(args, namespace)
        # Arguments that a platform appends are ignored, unless they resemble an option.
        ignores = "ignore_unknown" in parsed and (
            parsed.ignore_unknown
            or any(word.startswith(("--train_url", "--train-url")) for word in args or ())
        )
        names = [
            word.partition("=")[0]
            for word in unknown
            if not ignores or (word[:1] == "-" and not word[1:2].isdigit())
        ]
        for word in names or unknown[:1]:
            name = word.lstrip("-").replace("-", "_")
            options = [option for action in self._actions for option in action.option_strings]
            known = [option[2:] for option in options if option.startswith("--")]
            near = nearest_name(name, known, similarity=0.8 if ignores else 0.6)
            if near or not (ignores and names):
                hint = f"did you mean --{near}?" if near else "--help lists the options"
                raise ConfigError(f"unknown argument {word}; {hint}")
        if names:
            log.warning("unknown arguments are ignored: %s", ", ".join(names))
        return parsed, []


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Breaks lines between words only: not inside a list of values, nor at a hyphen."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        takes = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {takes}"  # as from Python 3.13 on

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap paragraphs; lists, and commands to be copied, stay as they are."""
        return "\n\n".join(
            paragraph
            if "  " in paragraph or paragraph.startswith(("example: ", "python "))
            else "\n".join(self._split_lines(paragraph, width))
            for paragraph in text.split("\n\n")
        )

"""The command-line parser: errors in one line, options spelled with underscores or dashes."""

import argparse
import platform
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn, Optional

import paddle_mnist
from paddle_mnist.errors import ConfigError, nearest_name
from paddle_mnist.system.devices import installed_builds


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError, with the nearest known name for an unknown one.

    Every option may also be written with dashes, `--learning-rate` for `--learning_rate`.

    example: a command line, with which the help begins.
    """

    def __init__(self, example: str = "", description: Optional[str] = "", **kwargs: Any) -> None:
        super().__init__(
            usage="%(prog)s [options]",
            description=f"example: {example}\n\n{description}" if example else description,
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
        print(message, end="", file=file)  # argparse would hide that it cannot be written

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the options")

    def parse_known_args(self, args: Optional[Iterable[str]] = None, namespace: Any = None) -> Any:
        for name, action in [*self._option_string_actions.items()]:
            self._option_string_actions.setdefault(name.replace("_", "-"), action)
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0].lstrip("-").replace("-", "_")
            near = nearest_name(name, [option[2:] for option in self._long_options()])
            hint = f"did you mean --{near}?" if near else "--help lists the options"
            raise ConfigError(f"unknown argument {unknown[0]}; {hint}")
        return parsed, unknown

    def _long_options(self) -> list[str]:
        names = [name for action in self._actions for name in action.option_strings]
        return [name for name in names if name.startswith("--")]


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Breaks lines between words only: not inside a list of values, nor at a hyphen."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        takes = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {takes}"  # as from Python 3.13 on

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap paragraphs, and each line of a list; commands to be copied stay."""
        filled = []
        for paragraph in text.split("\n\n"):
            lines = paragraph.splitlines() if "  " in paragraph else [paragraph]
            if not paragraph.startswith(("example: ", "python ")):
                lines = [part for line in lines for part in _wrapped(line, width)]
            filled.append("\n".join(lines))
        return "\n\n".join(filled)


def _wrapped(text: str, width: int) -> list[str]:
    beside = " " * 16 if text.startswith("  ") else ""  # the name in a list
    return textwrap.wrap(
        text, width, subsequent_indent=beside, break_long_words=False, break_on_hyphens=False
    )

"""The directive `{command-help} NAME`: a command's help, its options as a list of definitions."""

import argparse
import contextlib
import re
from collections.abc import Iterator
from importlib import import_module
from unittest.mock import patch

from docutils import nodes
from docutils.parsers.rst import Directive

from paddle_mnist.__main__ import COMMANDS
from paddle_mnist.commands import Parser


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser that answers `paddle-mnist COMMAND --help`."""
    module = import_module(f"paddle_mnist.commands.{COMMANDS[command]}")
    asked = []
    heard = patch.object(Parser, "print_help", lambda parser: asked.append(parser))
    with heard, contextlib.suppress(SystemExit):
        module.main(["--help"])
    (parser,) = asked
    return parser


class CommandHelp(Directive):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (command,) = self.arguments
        return _shown(parser_of(command), command)


def _shown(parser: argparse.ArgumentParser, command: str) -> list[nodes.Node]:
    """Return the help of a command and, below it, that of its subcommands."""
    usage = parser.format_usage().removeprefix("usage: ").strip()
    usage = usage.replace(parser.prog, f"paddle-mnist {command}", 1)
    shown = [
        nodes.literal_block(usage, usage, language="text"),
        *map(_paragraph, (parser.description or "").strip().split("\n\n")),
    ]
    for group in parser._action_groups:
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, subparser in action.choices.items():
                    shown += [nodes.rubric("", name), *_shown(subparser, f"{command} {name}")]
        if items := list(_items(parser, group._group_actions, command)):
            shown += [nodes.rubric("", _title(group)), nodes.definition_list("", *items)]
    if parser.epilog:
        shown.append(nodes.literal_block(parser.epilog, parser.epilog, language="text"))
    return shown


def _paragraph(text: str) -> nodes.Node:
    """Return a part of a description; what is indented, or begins as a command, is code."""
    if text.startswith((" ", "example: ", "python ")):
        return nodes.literal_block(text, text, language="text")
    return nodes.paragraph("", " ".join(text.split()))


def _title(group: argparse._ArgumentGroup) -> str:
    title = group.title or ""
    return title[:1].upper() + title[1:]


def _items(
    parser: argparse.ArgumentParser, actions: list[argparse.Action], command: str
) -> Iterator[nodes.definition_list_item]:
    """Yield what each argument is."""
    formatter = parser._get_formatter()
    for action in actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        names = formatter._format_action_invocation(action)
        text = formatter._expand_help(action) if action.help else ""
        term = nodes.term("", "", nodes.literal("", names))
        prefix = command.replace(" ", "-")
        term["ids"] = [f"{prefix}-{re.sub(r'^-+', '', name)}" for name in action.option_strings]
        yield nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", text)))


def setup(app) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}

"""The directive `{command-help} NAME`: the help of a command, as its parser prints it."""

import os
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

ROOT = Path(__file__).parents[2]


def help_text(command: str) -> str:
    """Return what `paddle-mnist COMMAND --help` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "paddle_mnist", command, "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "78"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.replace("python -m paddle_mnist", "paddle-mnist")


class CommandHelp(Directive):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = help_text(self.arguments[0])
        return [nodes.literal_block(text, text, language="text")]


def setup(app) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}

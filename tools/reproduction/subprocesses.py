"""The tools, run as commands in processes of their own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from paddle_mnist.errors import PaddleMnistError

TOOLS = Path(__file__).parents[1]


class Finished(NamedTuple):
    """What a command printed, and the seconds of CPU that it took."""

    printed: str
    cpu_seconds: float


def command(tool: str, options: Mapping[str, Any]) -> list[str]:
    """Return the command line of one of the tools."""
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return [sys.executable, str(TOOLS / tool), *words]


def run_tool(tool: str, options: Mapping[str, Any], name: str) -> Finished:
    """Run one of the tools. name: of what it does. Raises PaddleMnistError if it fails."""
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command(tool, options), stdout=printed, stderr=errors)
        try:
            # Not process.wait(), which does not tell what this one process has used.
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (printed, errors):
            file.seek(0)
        if process.returncode:
            message = errors.read().decode(errors="replace")
            raise PaddleMnistError(f"{name}: exit code {process.returncode}:\n{message}")
        return Finished(printed.read().decode(), usage.ru_utime + usage.ru_stime)

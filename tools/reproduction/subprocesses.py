"""The tools, run as commands in processes of their own."""

from collections.abc import Mapping
from typing import Any

from measuring.children import Finished, command, run_from_small_process

from paddle_mnist.errors import PaddleMnistError


def run_tool(tool: str, options: Mapping[str, Any], name: str) -> Finished:
    """Run one of the tools. name: of what it does. Raises PaddleMnistError if it fails."""
    done = run_from_small_process(command(tool, options))
    if done.code:
        raise PaddleMnistError(f"{name}: exit code {done.code}:\n{done.errors}")
    return done

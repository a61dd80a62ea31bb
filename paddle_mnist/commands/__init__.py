"""The commands, one module each, with a function `main(argv)` that returns the exit code."""

from paddle_mnist.commands._parser import Parser
from paddle_mnist.commands._run import command, run_command, run_script
from paddle_mnist.system.program import program_name

__all__ = ["Parser", "command", "program_name", "run_command", "run_script"]

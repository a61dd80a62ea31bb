"""The commands, one module each, with a function `main(argv)` that returns the exit code."""

from paddle_mnist.system.signals import deferred

with deferred():  # NumPy's import changes or drops what a signal raises
    from paddle_mnist.commands.cli import Parser, command, run_command, run_script

__all__ = ["Parser", "command", "run_command", "run_script"]

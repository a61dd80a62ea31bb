"""What a first training prints, where there is no MNIST: the excerpt that the pages show."""

import os
import sys
import tempfile
from pathlib import Path

from measuring.children import command, run

SHOWN = 3, 4  # lines at the beginning, and at the end


def measure(source: str, rounds: int) -> dict:
    """The lines of the last of `rounds` trainings, and of one before, which may compile."""
    scripts = str(Path(sys.executable).parent)  # where `paddle-mnist` is, in an activated one
    environment = {**os.environ, "PATH": os.pathsep.join([scripts, os.environ["PATH"]])}
    words = command("train.py", {"recipe": "digits"})
    for _ in range(rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            done = run(words, cwd=folder, env=environment)
    if done.code:
        raise RuntimeError(f"{words} ended with {done.code}: {done.errors}")
    return {"lines": done.printed.splitlines()}


def table(report: dict) -> str:
    first, last = SHOWN
    lines = [*report["lines"][:first], "...", *report["lines"][-last:]]
    return "\n".join(["```text", *lines, "```"])

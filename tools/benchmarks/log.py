"""What a first training prints, where there is no MNIST: the excerpt that the pages show."""

import os
import sys
from typing import Any

from measuring.children import command, run_from_small_process

from benchmarks.turns import Benchmark, Report, Session

SHOWN = 3, 4  # lines at the beginning, and at the end


def _lines(session: Session) -> dict[str, Any]:
    """The lines of a training, after one that may compile."""
    scripts = os.path.dirname(sys.executable)  # where `paddle-mnist` is, in an activated one
    environment = {**os.environ, "PATH": os.pathsep.join([scripts, os.environ["PATH"]])}
    words = command("train.py", {"recipe": "digits"})
    for number in (2,) if session.is_quick else (1, 2):
        session.number = number
        done = run_from_small_process(words, cwd=session.folder, env=environment)
    if done.code:
        raise RuntimeError(f"{words} ended with {done.code}: {done.errors}")
    return {"lines": done.printed.splitlines()}


def _excerpt(report: Report) -> str:
    lines, (first, last) = report.facts["lines"], SHOWN
    return "\n".join(["```text", *lines[:first], "...", *lines[-last:], "```"])


BENCHMARK = Benchmark(
    __doc__,
    facts=_lines,
    text=_excerpt,
)

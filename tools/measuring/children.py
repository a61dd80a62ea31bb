"""Commands in processes of their own: what they print, and what they take."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TOOLS = Path(__file__).parents[1]


class Finished(NamedTuple):
    """A command that has ended. seconds: from its start. peak_mib: the most memory it had."""

    code: int
    printed: str
    errors: str
    seconds: float
    cpu_seconds: float
    peak_mib: float


def command(tool: str, options: Mapping[str, Any]) -> list[str]:
    """Return the command line of one of the tools."""
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return [sys.executable, str(TOOLS / tool), *words]


def run(command: Sequence[Any], **options: Any) -> Finished:
    """Run a command. options: of `subprocess.Popen`.

    Its peak memory is at least that of this process, with which Linux has it begin.
    """
    words = list(map(str, command))
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(words, stdout=printed, stderr=errors, **options)
        try:
            # Not process.wait(), which does not tell what this one process has used.
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (printed, errors):
            file.seek(0)
        return Finished(
            process.returncode,
            printed.read().decode(errors="replace"),
            errors.read().decode(errors="replace"),
            seconds,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss / 1024,
        )


def run_from_small_process(command: Sequence[Any], **options: Any) -> Finished:
    """Run a command from a process of about 12 MiB, so that its peak memory is its own."""
    launcher = run([sys.executable, "-S", __file__, *command], **options)
    return Finished(*json.loads(launcher.printed))


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1:])))

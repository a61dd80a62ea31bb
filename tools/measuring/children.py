"""Commands in processes of their own: what they print, and what they take."""

import json
import resource
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


def run_from_small_process(command: Sequence[Any], **options: Any) -> Finished:
    """Run a command from a process of about 12 MiB. options: of `subprocess.run`.

    On Linux, the peak memory of a process is at least that of the one that started it.
    """
    launcher = [sys.executable, "-S", __file__, *map(str, command)]
    done = subprocess.run(launcher, check=True, stdout=subprocess.PIPE, **options)
    return Finished(*json.loads(done.stdout))


def _launch(words: Sequence[str]) -> Finished:
    # Files, because a process that outlives the command may keep its pipes open.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        code = subprocess.run(words, stdout=printed, stderr=errors).returncode
        seconds = time.perf_counter() - began
        texts = []
        for file in (printed, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Finished(code, *texts, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


if __name__ == "__main__":
    print(json.dumps(_launch(sys.argv[1:])))

"""Jobs of several processes, each of which is found again by a variable that all inherit."""

import os
import signal
import subprocess
import uuid
from pathlib import Path

import forked

VARIABLE = "JOB_OF_THE_TEST"


def start_job(command, folder, stderr, env=(), popen=subprocess.Popen):
    """Start a job by its first process. popen: `forked.Popen`, or a real one."""
    job = uuid.uuid4().hex
    options = {} if popen is forked.Popen else {"text": True, "preexec_fn": _with_keyboard}
    process = popen(
        [*map(str, command)],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1", VARIABLE: job, **dict(env)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        **options,
    )
    process.job = job
    return process


def _with_keyboard():
    """A shell's background job, as these tests may be, hands on that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def living(process):
    """All that lives of a job: for each process its number, environment and command line."""
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            entries = (path / "environ").read_bytes().decode().split("\0")
            line = (path / "cmdline").read_bytes()
        except OSError:
            continue
        environment = dict(entry.partition("=")[::2] for entry in entries)
        if environment.get(VARIABLE) == process.job and state not in "ZX":
            yield int(path.name), environment, line

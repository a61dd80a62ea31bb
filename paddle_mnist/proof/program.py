"""Start a program in the scratch folder of `prove`, follow what it records, and end all of it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import msgspec

from paddle_mnist.errors import ConfigError
from paddle_mnist.system.regular_files import open_to_read, read_bytes
from paddle_mnist.system.scratch import PLAN, VARIABLE, StartPlan

POLL_SECONDS = 0.01  # between two looks at the program
END_SECONDS = 10.0  # for killed processes to be gone
OUTPUT = "output.txt"  # in the scratch folder: the end of what the newest start printed
MOST_OUTPUT, PIECE = 2**18, 2**16  # bytes of it, and of one read

Event = Mapping[str, Any]  # a line of `StartPlan.events`


class Start(NamedTuple):
    """How a start ended. code: None if it was killed here."""

    code: Optional[int]
    events: list[Event]


class Program:
    """A program that calls `fit`. folder: the scratch folder. on_step: called after each step."""

    def __init__(
        self, command: Sequence[str], folder: Path, signum: int, on_step: Callable[[], Any]
    ):
        self.command, self.folder, self.signum, self.on_step = command, folder, signum, on_step
        # With the Python of this process, and the commands beside it.
        path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {**os.environ, "PATH": path, VARIABLE: str(folder)}
        self.output = b""  # the end of what the newest start has printed

    def start(self, plan: StartPlan, is_late: Callable[[float, Sequence[Event]], bool]) -> Start:
        """Run the program until it ends, is where the plan stops it, or is late.

        is_late: called with the seconds since the start, and the events.
        """
        os.makedirs(plan.attempt, exist_ok=True)
        (self.folder / PLAN).write_bytes(msgspec.json.encode(plan))
        plan.events.touch()
        events, rest, code, began = list[Event](), b"", None, time.monotonic()
        with open_to_read(plan.events) as file, self._running() as process:
            file.seek(0, os.SEEK_END)  # after the events of earlier starts
            while code is None and not is_late(time.monotonic() - began, events):
                time.sleep(POLL_SECONDS)
                self._read_output(process)
                code = process.poll()  # then, after its end, no event is missing below
                *lines, rest = (rest + file.read()).split(b"\n")
                events += (new := [json.loads(line) for line in lines])
                kinds = [event["event"] for event in new]
                for _ in range(kinds.count("step")):
                    self.on_step()
                if "stop" in kinds:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, self.signum)
                    if self.signum == signal.SIGKILL:
                        break
        return Start(code, events)

    def last_line(self) -> str:
        """Return the newest start's error, or else the last line that it printed."""
        lines = self.output.decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it printed nothing"])[-1][:300]

    @contextlib.contextmanager
    def _running(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Start the program, yield it, and kill what is left of it.

        It prints to a pipe: a file could fill the disk, and opening /dev/stderr would truncate it.
        """
        self.output = b""
        try:
            process = subprocess.Popen(
                self.command,
                bufsize=0,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"{self.command[0]}: {error.strerror}; expected a program that calls fit, such as "
                "`python my.py`"
            ) from error
        with process:
            try:
                yield process
            finally:
                self._kill(process)
                self._read_output(process)
                (self.folder / OUTPUT).write_bytes(self.output)

    def _read_output(self, process: "subprocess.Popen[bytes]") -> None:
        """Read what the program has printed by now, or a part if that is much."""
        assert process.stdout
        os.set_blocking(process.stdout.fileno(), False)
        for _ in range(MOST_OUTPUT // PIECE):
            self.output = (self.output + (process.stdout.read(PIECE) or b""))[-MOST_OUTPUT:]

    def _kill(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the program's group, and all others that know its folder.

        Those that Paddle's launch starts have groups of their own; only Linux shows whose they are.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        entry, deadline = f"{VARIABLE}={self.folder}".encode(), time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            others = list[int]()
            for path in Path("/proc").glob("[0-9]*/environ"):
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    if entry in read_bytes(path).split(b"\0"):
                        others.append(int(path.parent.name))
                        os.kill(others[-1], signal.SIGKILL)
            if not others:
                break
            time.sleep(POLL_SECONDS)

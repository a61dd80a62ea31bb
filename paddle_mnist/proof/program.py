"""Start a program in the scratch folder of `prove`, follow what it records, and end all of it."""

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import msgspec

from paddle_mnist.errors import ConfigError
from paddle_mnist.system.regular_files import open_to_read, read_bytes
from paddle_mnist.system.scratch import PLAN, VARIABLE, Plan

TURN_SECONDS = 0.01
END_SECONDS = 10.0  # for killed processes to be gone
PIECES, PIECE = 16, 2**14  # of the program's output, whose last bytes are kept

Event = Mapping[str, Any]  # a line of `Plan.events`


class Start(NamedTuple):
    """How a start ended. code: None if it was killed here. last_line: that it printed."""

    code: Optional[int]
    events: list[Event]
    last_line: str = ""


class Program:
    """A program that calls `fit`. folder: the scratch folder. on_step: called after each step."""

    def __init__(
        self, command: Sequence[str], folder: Path, signum: int, on_step: Callable[[], Any]
    ):
        self.command, self.folder, self.signum, self.on_step = command, folder, signum, on_step
        # With the Python of this process, and the commands beside it.
        path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {**os.environ, "PATH": path, VARIABLE: str(folder)}

    def start(self, plan: Plan, is_late: Callable[[float, Sequence[Event]], bool]) -> Start:
        """Run the program until it ends, is where the plan stops it, or is late.

        is_late: called with the seconds since the start, and the events.
        """
        os.makedirs(plan.attempt, exist_ok=True)
        (self.folder / PLAN).write_bytes(msgspec.json.encode(plan))
        events, code, began = list[Event](), None, time.monotonic()
        with self._running() as (process, output), _appended(plan.events) as read:
            while code is None and not is_late(time.monotonic() - began, events):
                time.sleep(TURN_SECONDS)
                code, new = process.poll(), read()
                events += new
                kinds = [event["event"] for event in new]
                for _ in range(kinds.count("step")):
                    self.on_step()
                if "stop" in kinds:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, self.signum)
                    if self.signum == signal.SIGKILL:
                        return Start(None, events)
            events += read()
        text = b"".join(output).decode(errors="replace").strip().splitlines()
        errors = [line for line in text if line.startswith("error: ")]
        return Start(code, events, (errors or text or ["it printed nothing"])[-1][:300])

    @contextlib.contextmanager
    def _running(self) -> Iterator[tuple["subprocess.Popen[bytes]", Sequence[bytes]]]:
        """Start the program, yield it and the end of its output, and kill what is left of it."""
        pipe, output = subprocess.PIPE, collections.deque[bytes](maxlen=PIECES)
        try:
            process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"{self.command[0]}: {error.strerror}; expected a program that calls fit, such as "
                "`python my.py`"
            ) from error
        assert process.stdout
        pieces = iter(lambda: os.read(process.stdout.fileno(), PIECE), b"")  # type: ignore[union-attr]
        reader = threading.Thread(target=output.extend, args=(pieces,), daemon=True)
        reader.start()
        try:
            yield process, output
        finally:
            self._kill(process)
            reader.join(END_SECONDS)

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
            time.sleep(TURN_SECONDS)


@contextlib.contextmanager
def _appended(path: Path) -> Iterator[Callable[[], list[Event]]]:
    """Yield a function that returns the lines of JSON that were appended since its last call."""
    path.touch()
    with open_to_read(path) as file:
        file.seek(0, os.SEEK_END)
        rest = b""

        def read() -> list[Event]:
            nonlocal rest
            *lines, rest = (rest + file.read()).split(b"\n")
            return [json.loads(line) for line in lines]

        yield read

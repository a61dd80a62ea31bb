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
from paddle_mnist.system.scratch import EVENTS, PLAN, VARIABLE, Plan

TURN_SECONDS = 0.01
PIECES, PIECE = 16, 2**14  # of the program's output, whose last bytes are kept
END_SECONDS = 10.0  # for killed processes to be gone

Event = Mapping[str, Any]


class Start(NamedTuple):
    """How one start ended. code: its exit code; None if it was ended here."""

    code: Optional[int]
    events: list[Event]
    last_line: str


class Program:
    """A program that calls `fit`. folder: the scratch folder."""

    def __init__(self, command: Sequence[str], folder: Path, signum: int):
        self.command, self.folder, self.signum = command, folder, signum
        # The Python of this process, and the commands beside it.
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        self.environment = {**os.environ, "PATH": path, VARIABLE: str(folder)}
        self.on_step: Callable[[], Any] = lambda: None

    def start(self, plan: Plan, is_late: Callable[[float, Sequence[Event]], bool]) -> Start:
        """Run the program until it ends, reaches the moment to stop at, or is late.

        is_late: called with the seconds since the start, and the events.
        """
        attempt = self.folder / plan["attempt"]
        attempt.mkdir(exist_ok=True)
        plan = {"pid": os.getpid(), **plan}
        (self.folder / PLAN).write_bytes(msgspec.json.encode(plan))
        events: list[Event] = []
        with self._running() as (process, output), _lines(attempt / EVENTS) as read:
            began, code = time.monotonic(), None
            while code is None and not is_late(time.monotonic() - began, events):
                time.sleep(TURN_SECONDS)
                code, new = process.poll(), read()
                events += new
                for event in new:
                    if event["event"] == "step":
                        self.on_step()
                    if event["event"] == "moment":
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(process.pid, self.signum)
                        if self.signum == signal.SIGKILL:
                            return Start(None, events, "")
            events += read()
        text = b"".join(output).decode(errors="replace").strip().splitlines()
        errors = [line for line in text if line.startswith("error: ")]
        return Start(code, events, (errors or text or ["it printed nothing"])[-1][:300])

    @contextlib.contextmanager
    def _running(self) -> Iterator[tuple["subprocess.Popen[bytes]", Sequence[bytes]]]:
        """Start the program; at the end kill what is left of it. Yields the end of its output."""
        try:
            process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"{self.command[0]}: {error.strerror}; expected a program that calls fit, such as "
                "`prove -- python my.py`"
            ) from error
        output = collections.deque[bytes](maxlen=PIECES)
        assert process.stdout
        pieces = iter(lambda: os.read(process.stdout.fileno(), PIECE), b"")  # type: ignore[union-attr]
        reader = threading.Thread(target=output.extend, args=(pieces,), daemon=True)
        reader.start()
        try:
            yield process, output
        finally:
            self._end(process)
            reader.join(END_SECONDS)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the program's group, and all other processes that have inherited its folder.

        The workers of Paddle's launch have groups of their own; only Linux shows whose they are.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + END_SECONDS
        while (left := self._processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(TURN_SECONDS)

    def _processes(self) -> list[int]:
        entry, found = f"{VARIABLE}={self.folder}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if entry in read_bytes(path).split(b"\0"):
                    found.append(int(path.parent.name))
        return found


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[Callable[[], list[Event]]]:
    """Yield a function that returns what was appended to a file of JSON lines since its last call.

    Earlier lines are left out.
    """
    path.touch()
    with open_to_read(path) as file:
        file.seek(0, os.SEEK_END)
        rest = b""

        def read() -> list[Event]:
            nonlocal rest
            *lines, rest = (rest + file.read()).split(b"\n")
            return [json.loads(line) for line in lines]

        yield read

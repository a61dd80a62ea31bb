"""Watch processes that this one has started: their heartbeats, their signals and their ends.

`watch` serves both the processes of one run (`paddle_mnist.parallel.spawn`) and `supervise`,
which restarts a run that dies or hangs, within a budget of restarts. In the child
`paddle_mnist.system.heartbeat` is the other end of the pipe.
"""

import contextlib
import logging
import math
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Optional

from paddle_mnist.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DivergedError,
    NoProgressError,
    OutputError,
    RunLockedError,
    StoppedError,
)
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.environment import require_posix_processes

log = logging.getLogger("paddle_mnist")

POLL_SECONDS = 0.05  # between two looks at the children
SAVE_SECONDS = 10.0  # for the others to save and exit by themselves once one has failed
MAX_STUCK_RESTARTS = 3  # in a row, without progress: then `supervise` gives up
# Exit codes after which a restart would change nothing. A stop signal ends the restarts, too.
_FINAL = (ConfigError, DataError, CheckpointError, DeviceError, DivergedError, RunLockedError)
FINAL_EXIT_CODES = {0, *(error.exit_code for error in _FINAL)}


class Child:
    """A process that this one has started, and the pipe from which its heartbeats are read.

    poll: returns its exit code as `subprocess` has it, or None while it runs. exchanges: the number
    of exchanges with other processes that it has started. rests: whether it sends no heartbeats
    for now. report: what it has sent about its end.
    """

    def __init__(self, pid: int, poll: Callable[[], Optional[int]], pipe: Connection):
        self.pid = pid
        self.poll = poll
        self.pipe = pipe
        self.exchanges = 0
        self.rests = False
        self.report = b""
        os.set_blocking(pipe.fileno(), False)

    @property
    def exit_code(self) -> int:
        """Its exit code as a shell has it, once it has ended."""
        code = self.poll()
        assert code is not None
        return code if code >= 0 else 128 - code

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error: neither with 0 nor stopped by a signal."""
        return self.poll() not in (None, 0) and not signals.stopped_by(self.exit_code)

    def receive(self) -> bool:
        """Read all that it has sent; return whether there was anything."""
        data = b""
        # blocking: there is no more; end of file: it has closed the pipe
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.pipe.fileno(), 1 << 16):
                data += part
        beats, begin, rest = (b"", b"", data) if self.report else data.partition(b"{")
        self.exchanges += beats.count(heartbeat.EXCHANGE)
        self.rests = beats.endswith(heartbeat.REST) if beats else self.rests
        self.report += begin + rest
        return bool(data)


def heartbeat_pipe() -> tuple[Connection, Connection]:
    """Return the ends of a pipe for heartbeats: for the parent, and for the child."""
    reading, writing = multiprocessing.Pipe(duplex=False)
    os.set_blocking(writing.fileno(), False)
    return reading, writing


def watch(children: Sequence[Child], hang_timeout: float) -> tuple[list[Child], float]:
    """Wait until all children have ended; return them in the order in which they did.

    The list lacks children that hang: none sent a heartbeat for `hang_timeout` seconds, or for
    `START_SECONDS` more before the first one, or another one failed and these did not end in the
    time to save. Also returns which of the two limits applied last. All children get the signals
    that this process receives, and a signal that has stopped only some of them, for which the
    others would wait. Their heartbeats are passed on as this process's own.
    """
    ended: list[Child] = []
    forwarded = 0  # how many signals
    limit = hang_timeout + heartbeat.START_SECONDS
    deadline = time.monotonic() + limit
    while len(ended) < len(children) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        running = [child for child in children if child not in ended]
        received = [child.receive() for child in running]
        ended += [child for child in running if child.poll() is not None]
        for signum in (signals.all_received() or _stopped_by(ended))[forwarded:]:
            forwarded += 1
            received.append(True)
            for child in children:
                if child.poll() is None:
                    os.kill(child.pid, signum)
        if any(child.failed for child in ended):
            deadline = min(deadline, time.monotonic() + SAVE_SECONDS)
        elif all(child.rests for child in running):
            heartbeat.pause()
            deadline = math.inf
        elif any(received):
            heartbeat.beat()
            limit = hang_timeout
            deadline = time.monotonic() + limit
    for child in ended:  # it may have sent more between the last look and its end
        child.receive()
    return ended, limit


def _stopped_by(ended: Sequence[Child]) -> list[int]:
    """Return the signal that stopped one of the processes that have ended, in a list; else []."""
    stopped_by = [signals.stopped_by(child.exit_code) for child in ended]
    return [signum for signum in stopped_by if signum][:1]


def supervise(
    command: Callable[[bool], Sequence[str]],
    progress: Callable[[], int],
    max_restarts: int,
    hang_timeout: float,
    stop_signals: Sequence[str] = (),
) -> int:
    """Run a command, restart it when it dies or hangs, and return its last exit code.

    command: returns the arguments of a start; called with whether it is a restart.
    progress: returns a number that grows with the training, such as the newest checkpoint's step.
    max_restarts: in all.
    hang_timeout: seconds without a heartbeat after which the command is killed.
    stop_signals: see `Saving`. They and those that always stop training are forwarded, and the
        command is not restarted after them.
    Raises NoProgressError after three restarts in a row without progress, and ConfigError on a
    system without POSIX process groups and signals.
    """
    require_posix_processes(f"max_restarts is {max_restarts}", "max_restarts 0")
    # After a signal the command's own exit code counts.
    with contextlib.suppress(StoppedError), signals.handlers_installed(stop_signals):
        reached, stuck = progress(), 0
        for restarts in range(max_restarts + 1):
            code = _run(command(restarts > 0), hang_timeout)
            if code in FINAL_EXIT_CODES or signals.stopped_by(code) or signals.received():
                return code
            before, reached = reached, progress()
            stuck = 0 if reached > before else stuck + (restarts > 0)
            # A full disk or a mirror may recover: only `max_restarts` limits how often to try.
            if stuck >= MAX_STUCK_RESTARTS and code != OutputError.exit_code:
                raise NoProgressError(
                    f"restarted {stuck} times without getting beyond step {reached}; the last "
                    f"ended with {signals.describe_exit(code)}; giving up; see the errors "
                    "above"
                )
            next_restart = f"restart {restarts + 1} of {max_restarts}"
            log.warning(
                "the training ended with %s at step %d; %s",
                signals.describe_exit(code),
                reached,
                next_restart if restarts < max_restarts else "no restart is left",
            )
    return code


def _run(command: Sequence[str], hang_timeout: float) -> int:
    """Run a command to its end, or kill it when it hangs; return its exit code."""
    reading, writing = heartbeat_pipe()
    with reading, writing:  # open for the children of a wrapper, too
        process = subprocess.Popen(
            command,
            env={**os.environ, heartbeat.VARIABLE: f"{os.getpid()} {writing.fileno()}"},
            pass_fds=[writing.fileno()],
            start_new_session=True,  # the keyboard's SIGINT comes once, from here
        )
        child = Child(process.pid, process.poll, reading)
        try:
            ended, limit = watch([child], hang_timeout)
            if not ended:
                log.warning("no heartbeat for %g s; killing it", limit)
        finally:
            _end_group(process)
    return child.exit_code


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and stop the rest of its group: give it time to save, then kill it.

    SIGKILL reaches a stopped process, too.
    """
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    signum = int(signal.SIGTERM)
    with contextlib.suppress(ProcessLookupError):  # the group is empty
        for _ in range(100 * heartbeat.GRACE_SECONDS):
            os.killpg(process.pid, signum)
            signum = 0  # from now on only ask whether there is a process
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)

"""The supervisor: restarts a training that dies or hangs, within a budget of restarts."""

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from paddle_mnist.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DivergedError,
    NoProgressError,
    OutputError,
    RunLockedError,
)
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.machine import require_posix_processes

log = logging.getLogger("paddle_mnist")

MAX_STUCK_RESTARTS = 3  # in a row, without progress: then the supervisor gives up
# Exit codes after which a restart would change nothing; nor is one wanted after a signal.
FINAL = {
    0,
    ConfigError.exit_code,
    DataError.exit_code,
    CheckpointError.exit_code,
    DeviceError.exit_code,
    DivergedError.exit_code,
    RunLockedError.exit_code,
}


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
    stop_signals: see `Saving`. They and those that always stop a training are forwarded, and the
        command is not restarted after them.
    Raises NoProgressError after three restarts in a row without progress, and ConfigError on a
    system without POSIX process groups and signals.
    """
    require_posix_processes(f"max_restarts is {max_restarts}", "max_restarts 0")
    with signals.handlers_installed(stop_signals), signals.deferred():
        reached, stuck = progress(), 0
        for restarts in range(max_restarts + 1):
            code = _run(command(restarts > 0), hang_timeout)
            if code in FINAL or signals.stopped_by(code):
                signals.clear()  # the training has reported what ended it
                return code
            if signals.pending():
                return code
            before, reached = reached, progress()
            stuck = 0 if reached > before else stuck + (restarts > 0)
            # A disk or a mirror may take something later: then no restart is left, at the most.
            if stuck >= MAX_STUCK_RESTARTS and code != OutputError.exit_code:
                raise NoProgressError(
                    f"restarted {stuck} times without getting beyond step {reached}; the last "
                    f"ended with {signals.describe_exit(code)}; expected progress; look "
                    "for the reason above"
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
    """Run a command to its end, or kill it when it hangs; return its exit code as a shell does."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        child = subprocess.Popen(
            command,
            env={**os.environ, heartbeat.VARIABLE: str(writing)},
            pass_fds=[writing],
            start_new_session=True,  # the keyboard's SIGINT comes once, from here
        )
    finally:
        os.close(writing)
    try:
        code = _watch(child, reading, hang_timeout)
    finally:
        os.close(reading)
        _kill(child)
        _end_process_group(child.pid)
    return code if code >= 0 else 128 - code


def _watch(child: subprocess.Popen[bytes], reading: int, hang_timeout: float) -> int:
    """Wait for the child to end. reading: the end of the pipe from which heartbeats are read."""
    forwarded = 0  # how many signals
    deadline = time.monotonic() + hang_timeout + heartbeat.START_SECONDS
    while child.poll() is None:
        for signum in signals.all_received()[forwarded:]:
            child.send_signal(signum)
            forwarded += 1
            deadline = time.monotonic() + hang_timeout
        ready, _, _ = select.select([reading], [], [], 0.1)
        if ready and os.read(reading, 1 << 16):
            deadline = time.monotonic() + hang_timeout
        elif ready:  # end of file: the child has closed the pipe, and is about to exit
            time.sleep(0.01)
        if time.monotonic() > deadline:
            log.warning("no heartbeat for %g s; killing it", hang_timeout)
            _kill(child)
    return child.returncode


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL, which reaches a stopped process too, to the child and what it has started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _end_process_group(group: int) -> None:
    """Stop the processes that a killed child has left: give them time to save, then kill them."""
    signum = int(signal.SIGTERM)
    with contextlib.suppress(ProcessLookupError):  # the group is empty
        for _ in range(100 * heartbeat.GRACE_SECONDS):
            os.killpg(group, signum)
            signum = 0  # from now on only ask whether there is a process
            time.sleep(0.01)
        os.killpg(group, signal.SIGKILL)

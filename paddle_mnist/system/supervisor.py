"""Restart a training that died or hangs, within a budget."""

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
    RunLockedError,
)
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.machine import require_posix_processes

log = logging.getLogger("paddle_mnist")

WITHOUT_PROGRESS = 3  # restarts in a row that got no further: then it is given up
# Exit codes after which a restart would change nothing, or was not wanted.
FINAL = {
    0,
    ConfigError.exit_code,
    DataError.exit_code,
    CheckpointError.exit_code,
    DeviceError.exit_code,
    DivergedError.exit_code,
    RunLockedError.exit_code,
    *signals.STOP_EXIT_CODES,
}


def supervise(
    command: Callable[[bool], Sequence[str]],
    progress: Callable[[], int],
    max_restarts: int,
    hang_timeout: float,
) -> int:
    """Run a command, again when it died or hangs; gives the exit code to end with.

    command: the arguments of a start; told whether it is a restart.
    progress: a number that grows as the training gets on, such as the newest checkpoint's step.
    hang_timeout: seconds without a sign of life after which it is killed.
    SIGTERM and SIGINT are handed on, and what the command makes of them is final.
    Raises NoProgressError after three restarts in a row that got no further, and ConfigError on a
    system without POSIX process groups and signals.
    """
    require_posix_processes(f"max_restarts is {max_restarts}", "--max_restarts 0")
    with signals.handlers_installed(), signals.deferred():
        reached, restart, stuck = progress(), 0, 0
        while True:
            code = _run(command(restart > 0), hang_timeout)
            if code in FINAL or signals.pending():
                return code
            before, reached = reached, progress()
            stuck = 0 if reached > before else stuck + (restart > 0)
            if stuck == WITHOUT_PROGRESS:
                raise NoProgressError(
                    f"restarted {stuck} times without getting beyond step {reached}; the last "
                    f"ended with {signals.describe_exit(code)}; expected progress; look "
                    "for the reason above"
                )
            log.warning(
                "the training ended with %s at step %d; %s",
                *(signals.describe_exit(code), reached),
                f"restart {restart + 1} of {max_restarts}"
                if restart < max_restarts
                else "no restart is left",
            )
            if restart == max_restarts:
                return code
            restart += 1


def _run(command: Sequence[str], hang_timeout: float) -> int:
    """Run a command to its end, or until it hangs; gives its exit code as a shell does."""
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
        _end_what_it_started(child.pid)
    return code if code >= 0 else 128 - code


def _watch(child: subprocess.Popen, reading: int, hang_timeout: float) -> int:
    handed_on = False
    limit = time.monotonic() + hang_timeout + heartbeat.START_SECONDS
    while child.poll() is None:
        if signals.pending() and not handed_on:
            child.send_signal(signals.pending())
            handed_on = True
            limit = time.monotonic() + hang_timeout
        ready, _, _ = select.select([reading], [], [], 0.1)
        if ready and os.read(reading, 1 << 16):
            limit = time.monotonic() + hang_timeout
        elif ready:  # nobody holds the other end any more: it ends
            time.sleep(0.01)
        if time.monotonic() > limit:
            log.warning("no sign of life for %g s; killing it", hang_timeout)
            _kill(child)
    return child.returncode


def _kill(child: subprocess.Popen) -> None:
    """SIGKILL, which a stopped process gets too, for the child and what it has started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _end_what_it_started(group: int) -> None:
    """A child that was killed may leave processes that stop, and save, when they notice."""
    number = signal.SIGTERM
    with contextlib.suppress(ProcessLookupError):  # they are gone, or there were none
        for _ in range(100 * heartbeat.GRACE_SECONDS):
            os.killpg(group, number)
            number = 0  # only asks whether there is one
            time.sleep(0.01)
        os.killpg(group, signal.SIGKILL)

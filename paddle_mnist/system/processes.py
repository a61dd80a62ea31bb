"""Identities of processes, which tell whether one that was noted down still runs."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

DEAD = "ZX"  # states of Linux: a process that has ended, and one whose parent has not asked yet


@dataclass(frozen=True)
class ProcessId:
    """A process, told from all others, also those of other machines and of other times.

    boot: of the machine since it was started. namespace: of process ids, which each container has.
    started: when the process was. All of these are "" where the system does not tell.
    """

    pid: int
    host: str
    boot: str
    namespace: str
    started: str

    def is_seen_from_here(self) -> bool:
        """Return whether this process would see that one, so that not seeing it proves its end."""
        here = this_process()
        places = [(one.host, one.boot, one.namespace) for one in (self, here)]
        return places[0] == places[1]

    def has_ended(self) -> bool:
        """Return whether it is sure that the process has ended."""
        if os.name != "posix" or not self.is_seen_from_here():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # it is another user's
            pass
        state, started = _state_and_start(self.pid)
        return bool(state) and (state in DEAD or started != self.started)


def this_process() -> ProcessId:
    """Return the process that calls."""
    return ProcessId(
        os.getpid(),
        platform.node(),
        _read("/proc/sys/kernel/random/boot_id"),
        _link("/proc/self/ns/pid"),
        _state_and_start(os.getpid())[1],
    )


def _state_and_start(pid: int) -> tuple[str, str]:
    """Return the state of a process and the tick at which it started; empty if not told."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()  # the name may hold anything
    return (fields[0], fields[19]) if fields else ("", "")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""

"""What the operating system offers this process: CPUs, memory, POSIX process groups and signals."""

import contextlib
import importlib
import os
import sys

from paddle_mnist.errors import ConfigError


def usable_cpus() -> int:
    """Count the CPUs that this process may use; at least 1.

    The least of the machine's logical CPUs, the process's affinity, the CPU quota of its container
    (cgroup v1 or v2; a fraction counts as a whole CPU, so that none of the quota is idle), and
    the environment variable LOKY_MAX_CPU_COUNT.
    """
    from joblib import cpu_count  # here, because `--help` needs none of what this imports

    return cpu_count()


def memory_limit() -> str:
    """Return in a sentence how much memory this process may use; "" if it has no limit."""
    with contextlib.suppress(ImportError):  # on Windows
        resource = importlib.import_module("resource")
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return (
                f"this process may use at most {limit >> 20:,} MiB of memory (RLIMIT_AS); raise "
                "the limit with ulimit -v"
            )
    return ""


def has_posix_processes() -> bool:
    """Return whether this system has POSIX process groups and signals."""
    return hasattr(os, "killpg")


def require_posix_processes(option: str, remedy: str) -> None:
    """Raise ConfigError unless this system has POSIX process groups and signals.

    option: what needs them, with its value. remedy: what to do on other systems.
    """
    if not has_posix_processes():
        raise ConfigError(
            f"{option}, which needs POSIX process groups and signals; this system "
            f"({sys.platform}) has none; expected Linux, or {remedy}"
        )

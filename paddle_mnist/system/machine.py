"""Find out what the operating system offers: CPUs, memory, POSIX process groups and signals."""

import contextlib
import importlib
import os
import re
import socket
import sys
from typing import Optional

from paddle_mnist.errors import ConfigError, DeviceError

LOOPBACK = "127.0.0.1"
# What Paddle, NumPy and the dynamic linker say where memory cannot be had.
NO_MEMORY = re.compile(
    "failed to map segment|annot allocate memory|bad_alloc|ResourceExhausted|Out of memory"
)


def usable_cpus() -> int:
    """Count the CPUs that this process may use; at least 1.

    The least of the machine's logical CPUs, the process's affinity, the CPU quota of its container
    (cgroup v1 or v2; a fraction counts as a whole CPU, so that none of the quota is idle), and
    the environment variable LOKY_MAX_CPU_COUNT.
    """
    from joblib import cpu_count  # here, because `--help` needs none of what this imports

    return int(cpu_count())


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


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, says that memory could not be had."""
    cause: Optional[BaseException] = error
    while cause is not None:
        if isinstance(cause, MemoryError) or NO_MEMORY.search(str(cause)):
            return True
        cause = cause.__cause__
    return False


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


def require_loopback() -> None:
    """Raise DeviceError unless processes on this machine can connect with one another."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=10).close()
    except OSError as error:
        raise DeviceError(
            f"{LOOPBACK}: cannot connect ({error.strerror or error}), so processes on this machine "
            "cannot connect with one another; bring the loopback interface up (ip link set lo up), "
            "or train in one process"
        ) from error


def require_host_name() -> None:
    """Raise DeviceError unless this machine's name resolves to an address."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None, socket.AF_INET)
    except OSError as error:
        raise DeviceError(
            f"{name}, the name of this machine, does not resolve ({error.strerror or error}); "
            "gloo takes this machine's address from it; add the name to /etc/hosts, or name the "
            "network interface: export GLOO_SOCKET_IFNAME=eth0"
        ) from error

"""The process's environment: streams, home and proxies; CPUs and memory; versions.

A container has no home, a job's stdout is a full disk, a notebook hands its backend on to the
commands that it starts. Each command runs inside `prepared` and `usable_home`. A library may do
less: `fit` calls `open_standard_descriptors`, runs inside `usable_home`, and leaves the streams of
its caller alone.
"""

import atexit
import contextlib
import functools
import io
import logging
import multiprocessing
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import paddle_mnist
from paddle_mnist.errors import ConfigError, DeviceError

log = logging.getLogger("paddle_mnist")

HELPER = "PADDLE_MNIST_HELPER"  # set for a process that never trains
LOOPBACK = "127.0.0.1"
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
HOME = "USERPROFILE" if os.name == "nt" else "HOME"
WRITTEN_FOLDERS = (".cache/paddle", ".visualdl")  # in the home, as soon as libraries are imported
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
NOT_LINKED_FOLDERS = (".cache", ".config", ".visualdl")  # of a home, in the one that replaces it


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Prepare the streams and the environment of a process that runs a command.

    Opens closed standard streams, and makes them escape characters that they cannot encode. Inside
    the context, and in processes that it starts, Matplotlib draws only into files.
    """
    open_standard_descriptors()
    _escape_streams()
    with environment(MPLBACKEND="Agg"):
        yield


@contextlib.contextmanager
def environment(**values: Optional[str]) -> Iterator[None]:
    """Set variables of the environment inside the context; None removes one."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        for name in (name for name, value in values.items() if value is None):
            os.environ.pop(name, None)
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def another_python(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a program of this package, to be used with `for_another_python`.

    Python would put the current folder first, where other modules of the same names may be.
    """
    without_folder = "import sys; sys.path = [path for path in sys.path if path]"
    return [sys.executable, "-c", f"{without_folder}; {program}", *arguments]


def for_another_python() -> dict[str, str]:
    """Return an environment in which another Python imports the same modules from the same paths.

    A program may have added to its `sys.path`, as a notebook does with a folder of packages. The
    other Python cannot train (`refuse_second_import`).
    """
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**os.environ, "PYTHONPATH": paths, HELPER: "1"}


def refuse_second_import() -> None:
    """Raise ConfigError in a process of a training that has imported the script of the training.

    It would start such processes again and again.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False) or HELPER in os.environ:
        raise ConfigError(
            "a new process of this training imports the script, which trains again; expected the "
            'call under `if __name__ == "__main__":`, in a script without the name of a module'
        )


def open_standard_descriptors() -> None:
    """Open the descriptors of closed standard streams on the null device.

    Otherwise the next file gets such a descriptor, and with it the output of Paddle's C++ code,
    which knows the streams by their numbers.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        os.set_inheritable(number, True)
    os.close(number)


def encodable(text: str, encoding: Optional[str] = "utf-8") -> str:
    """Escape characters that cannot be encoded, such as "\\u65b0", or "\\udce4" in a path.

    encoding: None, which some streams have, for UTF-8.
    """
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def printable(text: str) -> str:
    """Escape control characters, with which text from a file could control a terminal."""
    return text.translate(CONTROLS)


def _escape_streams() -> None:
    """Replace closed streams, and let stdout escape what it cannot encode, as stderr always does.

    The null device stays open, because libraries flush the streams when Python ends.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # not in a notebook
        sys.stdout.reconfigure(errors="backslashreplace")


def without_proxies() -> contextlib.AbstractContextManager[None]:
    """Return a context without proxies, for connections to this machine.

    An exemption is not enough: httpx refuses a SOCKS proxy that it lacks the package for even if
    it never uses it.
    """
    return environment(**{name: None for name in os.environ if name.lower() in PROXIES})


@contextlib.contextmanager
def usable_home() -> Iterator[None]:
    """Provide, inside the context, a home in which libraries can keep their caches.

    Paddle and VisualDL fail if they cannot write in the home. If need be, a temporary folder
    replaces it, with links to its contents, such as packages and credentials, and one line is
    logged. Raises OSError if there is no temporary folder either.
    """
    home = os.path.expanduser("~")
    if home != "~" and all(_can_write(os.path.join(home, name)) for name in WRITTEN_FOLDERS):
        yield
        return
    with environment(**{HOME: _temporary_home(home)}):
        yield


def _can_write(folder: str) -> bool:
    """Return whether files can be written in a folder, which need not exist yet."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder) or "."
    try:  # `os.access` returns True on a full disk, and for root in /proc
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"-")
    except OSError:
        return False
    return True


@functools.cache
def _temporary_home(home: str) -> str:
    """Make a home that lasts as long as the process, since libraries remember where theirs is."""
    own = tempfile.mkdtemp(prefix="paddle_mnist-home-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    with contextlib.suppress(OSError):  # there may be no home, or no right to list it or to link
        for name in os.listdir(home):
            if name not in NOT_LINKED_FOLDERS:
                os.symlink(os.path.join(home, name), os.path.join(own, name))
    log.warning(
        "the home folder %s cannot be written, so caches are temporary; set %s to another folder",
        home,
        HOME,
    )
    return own


def usable_cpus() -> int:
    """Count the CPUs that this process may use; at least 1.

    This is the least of the machine's logical CPUs, the process's affinity, the environment
    variable LOKY_MAX_CPU_COUNT, and the CPU quota of the container (cgroup v1 or v2), in which a
    fraction counts as a whole CPU, so that none of the quota is idle.
    """
    from joblib import cpu_count  # here, because `--help` needs none of what this imports

    return int(cpu_count())


def has_posix_processes() -> bool:
    """Return whether this system has POSIX process groups and signals."""
    return hasattr(os, "killpg")


def require_posix_processes(option: str, remedy: str) -> None:
    """Raise ConfigError unless this system has POSIX process groups and signals.

    option: the option that needs them, and its value. remedy: the choice on other systems.
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


def describe_environment(device: str) -> str:
    """Describe the environment that a result may depend on, one line for each part.

    It names only one environment variable, since the others may hold secrets.
    """
    described = {
        "python": platform.python_version(),
        **versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }
    return "\n".join(f"{name}: {value}" for name, value in described.items())


def processor_name() -> str:
    """Return the processor's name, or at least its architecture."""
    with contextlib.suppress(OSError):
        if name := re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()):
            return name[1]
    return platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of paddle, numpy and this package, by name."""
    import numpy  # here, because `--help` needs neither
    import paddle

    return {
        "paddle": paddle.__version__,
        "numpy": numpy.__version__,
        "package": paddle_mnist.__version__,
    }

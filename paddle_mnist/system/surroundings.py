"""Make a process independent of its streams, its home, proxies, and Matplotlib's backend.

A container has no home, a job's stdout is a full disk, a notebook hands its backend on to the
commands that it starts. Each command runs inside `prepared` and `usable_home`. A library may do
less: `fit` runs inside `usable_home` and `descriptors_open`, and leaves the streams of its caller
alone.
"""

import atexit
import contextlib
import functools
import io
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Optional

log = logging.getLogger("paddle_mnist")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
HOME = "USERPROFILE" if os.name == "nt" else "HOME"
WRITTEN = (".cache/paddle", ".visualdl")  # in the home, as soon as libraries are imported
NOT_LINKED = (".cache", ".config", ".visualdl")  # of a home, in the one that replaces it


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Prepare the streams and the environment of a process that runs a command.

    Inside, standard streams are open, and what they cannot encode is escaped. Matplotlib draws into
    files, and the loopback address needs no proxy. Processes that are started inside inherit that.
    """
    descriptors_open()
    with _escaping_streams(), environment(MPLBACKEND="Agg", **_no_proxy_for_loopback()):
        yield


@contextlib.contextmanager
def environment(**values: Optional[str]) -> Iterator[None]:
    """Set variables of the environment inside the context; None removes one."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, Optional[str]]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def for_another_python(**values: str) -> dict[str, str]:
    """Return an environment in which another Python imports what this one does, from where it does.

    A program may have added to its `sys.path`, as a notebook does with a folder of packages.
    """
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**os.environ, "PYTHONPATH": paths, **values}


def descriptors_open() -> None:
    """Open the descriptors of closed standard streams on the null device.

    Otherwise the next file gets such a descriptor, and with it what Paddle's C++ code, which knows
    the streams by their numbers, writes to them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        os.set_inheritable(number, True)
    os.close(number)


def encodable(text: str, encoding: Optional[str] = "utf-8") -> str:
    """Escape what cannot be encoded, such as "\\u65b0", or "\\udce4" in the path of a file.

    encoding: None, which some streams have, for UTF-8.
    """
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


@contextlib.contextmanager
def _escaping_streams() -> Iterator[None]:
    """Replace closed streams, and have stdout escape what it cannot encode, as stderr always does.

    The null device stays: libraries flush the streams when Python ends.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):  # in a notebook
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it flushes
            stream.reconfigure(errors=before)


def _no_proxy_for_loopback() -> dict[str, str]:
    """Return the variables that exempt the loopback address from proxies."""
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if exempt != "*":
        exempt = ",".join(filter(None, [exempt, *LOOPBACK]))
    return {"no_proxy": exempt, "NO_PROXY": exempt}


def without_proxies() -> contextlib.AbstractContextManager[None]:
    """Return a context in which no proxy is set, for what talks to this machine only.

    An exemption is not enough: httpx refuses a SOCKS proxy that it lacks the package for even if
    it never uses it.
    """
    return environment(**{name: None for name in os.environ if name.lower() in PROXIES})


@contextlib.contextmanager
def usable_home() -> Iterator[None]:
    """Have a home inside in which libraries can keep their caches.

    Paddle and VisualDL fail where they cannot write in the home. It is replaced, if need be, by a
    temporary folder with links to what is in it, such as packages and credentials; one line says
    so. Raises OSError where there is no temporary folder either.
    """
    home = os.path.expanduser("~")
    if home != "~" and all(_can_write(os.path.join(home, name)) for name in WRITTEN):
        yield
        return
    with environment(**{HOME: _temporary_home(home)}):
        yield


def _can_write(folder: str) -> bool:
    """Return whether files can be written in a folder, which need not exist yet."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder) or "."
    try:
        tempfile.TemporaryFile(dir=folder).close()
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
            if name not in NOT_LINKED:
                os.symlink(os.path.join(home, name), os.path.join(own, name))
    log.warning(
        "the home folder %s cannot be written, so caches are temporary; %s names another home",
        home,
        HOME,
    )
    return own

"""Put right what surrounds a process: its streams, home, proxies, and Matplotlib's backend.

None of them is to be relied on: a container has no home, a job's stdout is a full disk, a notebook
hands its backend on to the commands that it starts. Each command runs inside `prepared` and
`usable_home`, which put them right and restore them when it ends. A library may do less: `fit` runs
inside `usable_home` and `descriptors_open`, and leaves the streams of its caller alone.
"""

import atexit
import contextlib
import functools
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.errors import OutputError

log = logging.getLogger("paddle_mnist")

STREAMS = ("stdin", "stdout", "stderr")  # by descriptor
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HOME = "USERPROFILE" if os.name == "nt" else "HOME"
# Of a home: what Paddle and VisualDL write as soon as they are imported.
WRITTEN = (".cache/paddle", ".visualdl")
# Of a home that takes the place of one: folders of its own, and what it does not take over.
OWN = {".cache", ".cache/paddle", ".config"}
LEFT_OUT = {
    ".visualdl",
    ".cache/paddle/to_static_tmp",
    ".cache/paddle_mnist",
    ".cache/matplotlib",
    ".config/matplotlib",
}

_temporary_homes: dict[str, int] = {}  # the process that made each


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Put right the streams and the environment of a process that runs a command.

    Inside, standard streams are open; what they cannot encode is escaped; and what stdout cannot
    write is an OutputError. Matplotlib draws into files, and the loopback address needs no proxy.
    Processes that are started inside inherit that.
    """
    descriptors_open()
    with _streams(), _waiting(), environment(MPLBACKEND="Agg", **_no_proxy_for_loopback()):
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


def for_another_python(**values: str) -> dict[str, str]:
    """Return an environment in which another Python imports what this one does, from where it does.

    A program may have added to its `sys.path`, as a notebook does with a folder of packages.
    """
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**os.environ, "PYTHONPATH": paths, **values}


def _set(values: dict[str, Optional[str]]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# -------------------------------------------------------------- streams


def descriptors_open() -> None:
    """Open the descriptors of closed standard streams on the null device.

    Otherwise the next file gets such a descriptor, and with it what Paddle's C++ code, which knows
    the streams by their numbers, writes to them.
    """
    for number, name in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDONLY if name == "stdin" else os.O_WRONLY)
            if null != number:  # the lowest that is free, in general
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)


def encodable(text: str, encoding: Optional[str] = "utf-8") -> str:
    """Escape what cannot be encoded, such as "\\u65b0", or "\\udce4" in the path of a file.

    encoding: None, which some streams have, for UTF-8.
    """
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


class _Console:
    """A standard stream that escapes what it cannot encode, and whose failures end a command.

    Those of stderr are ignored: nobody could be told. Everything else is that of the stream.
    """

    def __init__(self, stream: Any, name: str):
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        self._try(
            lambda: self._stream.write(encodable(text, getattr(self._stream, "encoding", None)))
        )
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except OSError as error:
            if self._name == "stdout":
                raise OutputError(
                    f"the console: cannot write ({error.strerror}); redirect the output elsewhere, "
                    "and run the same command again"
                ) from error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # before a copy has its stream, this would ask itself for ever
            raise AttributeError(name)
        return getattr(self._stream, name)


@contextlib.contextmanager
def _streams() -> Iterator[None]:
    """Replace closed standard streams by the null device, and make a `_Console` of the others.

    The null device stays: libraries flush the streams when Python ends.
    """
    for name in STREAMS:
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Console(sys.stdout, "stdout"), _Console(sys.stderr, "stderr")
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    """Have writes wait until a pipe has room, even if the caller has made it non-blocking.

    Python may drop what such a pipe does not take at once. Terminals are left as they are, because
    those who read from them share the setting.
    """
    is_known = hasattr(os, "get_blocking")  # not on Windows before Python 3.12
    changed = [n for n in (1, 2) if is_known and not os.get_blocking(n) and not os.isatty(n)]
    for number in changed:
        os.set_blocking(number, True)
    try:
        yield
    finally:
        for number in changed:
            os.set_blocking(number, False)


# -------------------------------------------------------------- proxies


def _no_proxy_for_loopback() -> dict[str, str]:
    """Return the variables that exempt the loopback address, where a proxy is set."""
    if not _proxies():
        return {}
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name.strip() for name in exempt.split(",") if name.strip()]
    names += [] if "*" in names else [name for name in LOOPBACK if name not in names]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(names))


def without_proxies() -> contextlib.AbstractContextManager[None]:
    """Return a context in which no proxy is set, for what talks to this machine only.

    An exemption is not enough: httpx refuses a SOCKS proxy that it lacks the package for even if
    it never uses it.
    """
    return environment(**dict.fromkeys(_proxies()))


def _proxies() -> list[str]:
    names = [name for name, value in os.environ.items() if value]
    return [name for name in names if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]


# -------------------------------------------------------------- home


@contextlib.contextmanager
def usable_home() -> Iterator[None]:
    """Have a home inside in which libraries can keep their caches.

    Paddle and VisualDL fail where they cannot write in the home. It is replaced, if need be, by a
    temporary folder, which links to what is in it, such as packages and credentials; one line
    says so. Raises OutputError where there is no temporary folder either.
    """
    home = os.path.expanduser("~")
    unusable = _why_unusable(home)
    if not unusable:
        yield
        return
    with environment(**{HOME: _temporary_home(home, unusable)}):
        yield


@functools.cache
def _temporary_home(home: str, unusable: str) -> str:
    """Make a home that lasts as long as the process, since libraries remember where theirs is."""
    try:
        own = tempfile.mkdtemp(prefix="paddle_mnist-home-")
    except OSError as error:
        raise OutputError(
            f"{unusable}, and there is no folder for temporary files either ({error}); set {HOME} "
            "or TMPDIR to a folder that can be written"
        ) from error
    _temporary_homes[own] = os.getpid()
    _link_contents(Path(home), Path(own))
    log.warning("%s, so caches are temporary; %s names another home", unusable, HOME)
    return own


@atexit.register
def remove_temporary_homes() -> None:
    """Delete the homes that this process has made; for one that ends by `os._exit`."""
    for own, owner in _temporary_homes.items():
        if owner == os.getpid():  # not in a process that it has forked
            shutil.rmtree(own, ignore_errors=True)


def _why_unusable(home: str) -> Optional[str]:
    """Return in words that libraries cannot keep their caches in a home; None if they can."""
    if home == "~":
        return "this user has no home folder"
    for name in WRITTEN:
        folder = os.path.join(home, name)
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder) or "."
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            return f"the home folder {home} cannot be written ({error.strerror})"
    return None


def _link_contents(home: Path, own: Path, below: str = "") -> None:
    """Link to the contents of a home from another one, but to none of the caches."""
    with contextlib.suppress(OSError):  # there may be no home, or no right to list it or to link
        for entry in sorted(os.listdir(home / below)):
            name = os.path.join(below, entry)
            if name in OWN and (home / name).is_dir():
                (own / name).mkdir()
                _link_contents(home, own, name)
            elif name not in LEFT_OUT:
                (own / name).symlink_to(home / name)

"""Serve VisualDL's dashboard of some runs, with workarounds for faults of version 2.5.3."""

import contextlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Union

from paddle_mnist.apps.loopback import PUBLIC, LoopbackWSGI, is_loopback, listen
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.system import signals

log = logging.getLogger("paddle_mnist")


def serve(
    runs: Sequence[Union[str, Path]], host: str, port: int, language: str, public_path: str
) -> None:
    """Serve until SIGTERM or SIGINT comes.

    runs: run directories, folders of them, or folders of VisualDL's files; every run of
    `work/output` by default. port: 0 for any that is free. public_path: that of all pages, `/app`.
    Raises DataError when there is nothing to show, ConfigError when it cannot listen there.
    """
    if not re.fullmatch(r"(/[\w.~@-]+)+", public_path):
        raise ConfigError(f"public_path is {public_path!r}; expected a path, such as /app")
    common, names = log_folders(runs)
    with listen(host, port) as listening, _working_folder(common):
        server = _make_server(names, host, language, listening, public_path)
        for name in names:
            log.info("showing %s", name)
        address = f"[{host}]" if ":" in host else host
        root = f"http://{address}:{listening.getsockname()[1]}{public_path}"
        if any(path for name in names for path in Path(name).rglob("vdlgraph*")):
            # "Graphs" opens an empty page, of graphs that are uploaded
            log.info("the net's graph: %s/graph/dynamic_graph", root)
        log.info("dashboard: %s/scalar (Ctrl-C stops it)", root)
        if not is_loopback(host):
            log.warning(PUBLIC, host)
        # In a thread of its own: raised in a request, a signal's error would be swallowed.
        with signals.handlers_installed():
            threading.Thread(target=server.serve_forever, daemon=True).start()
            signals.wait()  # pages may import Paddle


def _make_server(
    names: Sequence[str], host: str, language: str, listening: socket.socket, public_path: str
) -> Any:
    """Return a WSGI server of VisualDL's application. names: of folders in the current one."""
    from visualdl.server.app import create_app  # here, for it is slow to import
    from visualdl.server.args import ParseArgs
    from werkzeug.serving import make_server

    port = listening.getsockname()[1]
    before = signal.getsignal(signal.SIGINT)
    app = create_app(
        ParseArgs(
            logdir=names,
            host=host,
            port=port,
            public_path=public_path,
            # Pages fail for browsers that ask for neither English nor Chinese.
            language=language,
            telemetry=False,  # on by default
        )
    )
    # It makes Ctrl-C end the process at once.
    signal.signal(signal.SIGINT, before)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    app = LoopbackWSGI(app) if is_loopback(host) else app
    # A thread for each connection, for browsers open some before they have anything to ask, and
    # one thread would wait for that: the page stands still for as long.
    return make_server(host, port, _OneAtATime(app), threaded=True, fd=listening.fileno())


class _OneAtATime:
    """A WSGI application that answers one request after the other.

    VisualDL's readers of logs are not made for several threads.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]):
        self._app, self._lock = app, threading.Lock()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        with self._lock:
            return self._app(environ, start_response)


@contextlib.contextmanager
def _working_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def log_folders(runs: Sequence[Union[str, Path]]) -> tuple[Path, list[str]]:
    """Return a folder, and the paths below it of the folders that VisualDL reads.

    VisualDL labels a run with the path it is given; from the nearest common folder that is short.

    runs: as `serve` takes them. Raises DataError when there is nothing to show.
    """
    folders = [_log_folder(Path(run)).resolve() for run in runs or _all_runs()]
    common = Path(os.path.commonpath([_parent_of_run(folder) for folder in folders]))
    return common, [str(folder.relative_to(common)) for folder in folders]


def _log_folder(path: Path) -> Path:
    """Return the folder with VisualDL's logs: `vdl/` of a run, otherwise `path`."""
    folder = RunDirectory(path).visualdl
    folder = folder if folder.is_dir() else path
    if not any(folder.rglob("vdlrecords*")):
        raise DataError(
            f"{path}: nothing of VisualDL there; expected a run that was trained with --visualdl "
            "on, its default, a checkpoint or file of one, a folder of such runs, or a folder of "
            "VisualDL's logs"
        )
    return folder


def _parent_of_run(folder: Path) -> Path:
    is_run = folder == RunDirectory(folder.parent).visualdl
    return folder.parent.parent if is_run else folder.parent


def _all_runs() -> list[Path]:
    """Return every run of `work/output`. Raises DataError when there is none to show."""
    runs = sorted({path.parents[2] for path in Path("work/output").glob("*/vdl/*/*/vdlrecords*")})
    if not runs:
        raise DataError(
            "work/output: no run with VisualDL's files there; train first, or name a run directory"
        )
    return runs

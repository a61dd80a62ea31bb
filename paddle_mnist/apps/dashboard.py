"""Serve VisualDL's dashboard of some runs, with workarounds for faults of version 2.5.3."""

import contextlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Union

from paddle_mnist.apps.server import HEADERS, PUBLIC, is_loopback, listen, refusal
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import ConfigError, DataError

log = logging.getLogger("paddle_mnist")

WSGI = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def serve(
    runs: Sequence[Union[str, Path]], host: str, port: int, language: str, public_path: str
) -> None:
    """Serve until SIGTERM or SIGINT comes.

    runs: run directories, folders of them, or folders of VisualDL's files; every run of
    `work/output` by default. port: 0 chooses a free one. public_path: of all pages, such as `/app`.
    Raises DataError when there is nothing to show, ConfigError when it cannot listen there.
    """
    if not re.fullmatch(r"(/[\w.~@-]+)+", public_path):
        raise ConfigError(f"public_path is {public_path!r}; expected a path, such as /app")
    common, names = log_folders(runs)
    with listen(host, port) as listening:
        os.chdir(common)  # VisualDL labels a run with the path that it is given
        server = _make_server(names, host, language, listening, public_path)
        for name in names:
            log.info("showing %s", name)
        address = f"[{host}]" if ":" in host else host
        root = f"http://{address}:{listening.getsockname()[1]}{public_path}"
        if any(path for name in names for path in Path(name).rglob("vdlgraph*")):
            # The menu "Graphs" opens an empty page, for uploaded graphs.
            log.info("the net's graph: %s/graph/dynamic_graph", root)
        log.info("dashboard: %s/scalar (Ctrl-C stops it)", root)
        if not is_loopback(host):
            log.warning(PUBLIC, host)
        # In another thread: raised in a request, KeyboardInterrupt would be swallowed.
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _make_server(
    names: Sequence[str], host: str, language: str, listening: socket.socket, public_path: str
) -> Any:
    """Return a WSGI server of VisualDL's application. names: folders in the working folder."""
    import visualdl.server.api  # here: it is slow to import
    from visualdl.server.app import create_app
    from visualdl.server.args import ParseArgs
    from werkzeug.serving import make_server

    before = signal.getsignal(signal.SIGINT)  # VisualDL makes it end the process at once
    port = listening.getsockname()[1]
    # Without a language, pages fail in browsers that accept neither English nor Chinese.
    visualdl.server.api.LogReader = _log_reader()
    options = {"host": host, "port": port, "public_path": public_path, "language": language}
    app = create_app(ParseArgs(logdir=names, telemetry=False, **options))
    signal.signal(signal.SIGINT, before)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    # A thread for each connection, since browsers open connections before they use them.
    guarded = _guarded(app, is_public=not is_loopback(host))
    return make_server(host, port, guarded, threaded=True, fd=listening.fileno())


def _log_reader() -> type:
    """Return a class that reads records and forgets those of deleted files.

    A resumed run replaces its files; VisualDL would show the records of both.
    """
    from visualdl import LogReader
    from visualdl.server.data_manager import DataManager

    class Reader(LogReader):  # type: ignore[misc]  # has no types
        def register_readers(self, update: bool = False) -> None:
            super().register_readers(update)
            if not all(map(os.path.exists, self.readers)):
                self.data_manager = DataManager()
                for cache in (self.readers, self._tags, self._log_datas):
                    cache.clear()
                super().register_readers(update)

    return Reader


def _guarded(app: WSGI, is_public: bool) -> WSGI:
    """Return a WSGI application that refuses requests from other web sites unless it is public.

    It answers one request at a time: VisualDL's log readers are not thread-safe.
    """
    lock = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        reason = refusal(environ.get("HTTP_HOST"), environ.get("HTTP_ORIGIN"))
        if reason and not is_public:
            start_response("403 Forbidden", [*HEADERS.items()])
            return [reason.encode()]
        with lock:
            return app(environ, start_response)

    return answer


def log_folders(runs: Sequence[Union[str, Path]]) -> tuple[Path, list[str]]:
    """Return the nearest common folder, and the paths of VisualDL's folders relative to it.

    runs: see `serve`. Raises DataError when there is nothing to show.
    """
    usual = {path.parents[2] for path in Path("work/output").glob("*/vdl/*/*/vdlrecords*")}
    if not runs and not usual:
        raise DataError(
            "work/output: no run with VisualDL's files there; train first, or name a run directory"
        )
    folders = [_log_folder(Path(run)).resolve() for run in runs or sorted(usual)]
    parents = [
        # The name of a run, not only `vdl`, is part of its label.
        folder.parents[1] if folder == RunDirectory(folder.parent).visualdl else folder.parent
        for folder in folders
    ]
    common = Path(os.path.commonpath(parents))
    return common, [str(folder.relative_to(common)) for folder in folders]


def _log_folder(path: Path) -> Path:
    """Return the folder with VisualDL's logs: `vdl/` of a run, otherwise `path`."""
    folder = RunDirectory(path).visualdl
    folder = folder if folder.is_dir() else path
    logs = [path for path in folder.rglob("vdl*.log") if not path.is_dir()]
    if strange := [path for path in logs if not path.is_file()]:  # VisualDL would wait for a pipe
        raise DataError(f"{strange[0]}: not a regular file; move it away")
    if not any(folder.rglob("vdlrecords*")):
        raise DataError(
            f"{path}: no VisualDL files there; expected a run that was trained with --visualdl on, "
            "its default, a checkpoint or file of one, a folder of such runs, or a folder of "
            "VisualDL's logs"
        )
    return folder

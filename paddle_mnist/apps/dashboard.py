"""Serve VisualDL's dashboard of some runs, with the ways round its server's faults.

They are those of version 2.5.3; what retires each stands beside it.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from paddle_mnist.apps.loopback import PUBLIC, LoopbackWSGI, is_loopback
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.system import signals
from paddle_mnist.training.run_directory import RunDirectory

log = logging.getLogger("paddle_mnist")


def serve(runs: Sequence[str], host: str, port: int, language: str) -> None:
    """Serve until SIGTERM or SIGINT comes.

    runs: run directories, folders of them, or folders of VisualDL's files; every run of
    `work/output` by default. port: 0 for any that is free.
    Raises DataError when there is nothing to show, ConfigError when it cannot listen there.
    """
    from visualdl.server.app import create_app  # here, for it is slow to import
    from visualdl.server.args import ParseArgs
    from werkzeug.serving import make_server

    common, names = log_folders(runs)
    # The language is given because the pages fail for browsers that ask for neither English nor
    # Chinese (retired by pages that fall back to one); telemetry is off, for it is nobody's
    # business (by one that is off unasked).
    options = {"host": host, "port": port, "language": language, "telemetry": False}
    before, here = signal.getsignal(signal.SIGINT), Path.cwd()
    with _listening(host, port) as listening:
        try:
            os.chdir(common)
            app = create_app(ParseArgs(logdir=names, **options))
            # It makes Ctrl-C end the process there and then; an app that leaves it alone retires
            # this.
            signal.signal(signal.SIGINT, before)
            logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
            port = listening.getsockname()[1]
            is_public = not is_loopback(host)
            server = make_server(
                host, port, app if is_public else LoopbackWSGI(app), fd=listening.fileno()
            )
            for name in names:
                log.info("showing %s", name)
            shown = f"[{host}]" if ":" in host else host
            log.info("dashboard: http://%s:%d/app/scalar (Ctrl-C stops it)", shown, port)
            if is_public:
                log.warning(PUBLIC, host)
            # In a thread of its own: raised in a request, a signal's error would be swallowed.
            with signals.handlers_installed(), signals.deferred():
                threading.Thread(target=server.serve_forever, daemon=True).start()
                while signals.pending() is None:
                    time.sleep(0.1)
                    signals.reinstall_handlers()  # pages may import Paddle
                signals.clear()
        finally:
            os.chdir(here)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({reason}); choose another --port or --host"
        ) from error


def log_folders(runs: Sequence[str]) -> tuple[Path, list[str]]:
    """A folder, and the paths below it of the folders that VisualDL reads.

    VisualDL calls a run by its path as it was given; from the nearest common folder it is short.

    runs: as `serve` takes them. Raises DataError when there is nothing to show.
    """
    folders = [_log_folder(Path(run)).resolve() for run in runs or _all_runs()]
    common = Path(os.path.commonpath([_parent_of_run(folder) for folder in folders]))
    return common, [str(folder.relative_to(common)) for folder in folders]


def _log_folder(path: Path) -> Path:
    """The folder with VisualDL's logs: in a run directory a part of it, otherwise `path` itself."""
    folder = RunDirectory(path).visualdl
    folder = folder if folder.is_dir() else path
    if not any(folder.rglob("vdlrecords*")):
        raise DataError(
            f"{path}: nothing of VisualDL there; expected a run directory that was trained with "
            "--visualdl on, its default, a folder of such runs, or a folder of VisualDL's logs"
        )
    return folder


def _parent_of_run(folder: Path) -> Path:
    is_run = folder == RunDirectory(folder.parent).visualdl
    return folder.parent.parent if is_run else folder.parent


def _all_runs() -> Iterator[Path]:
    """Every run of `work/output`. Raises DataError when there is none to show."""
    found = sorted({path.parents[2] for path in Path("work/output").glob("*/vdl/*/*/vdlrecords*")})
    if not found:
        raise DataError(
            "work/output: no run with VisualDL's files there; train first, or name a run directory"
        )
    yield from found

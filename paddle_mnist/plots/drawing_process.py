"""Draw figures in other processes, which import Matplotlib while this one imports Paddle.

They wait until `save_figures` sends them what to draw, and end with this process, which writes the
files: a process that waits for the disk would not draw.
"""

import contextlib
import gc
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Optional, cast

import numpy as np

from paddle_mnist.plots import figure
from paddle_mnist.plots.figure import AnyFigure, Drawn
from paddle_mnist.system import heartbeat
from paddle_mnist.system.environment import another_python, for_another_python, usable_cpus

log = logging.getLogger("paddle_mnist")

PROGRAM = "from paddle_mnist.plots.drawing_process import main; main()"
PROCESSES = 2  # at most

Task = tuple[str, AnyFigure]  # with the figure's name
Answer = tuple[str, Optional[Drawn]]  # None after an error

_connections: "list[Connection[Task, Answer]]" = []  # one to each process


@contextlib.contextmanager
def drawing_process(is_wanted: bool) -> Iterator[None]:
    """Start processes that draw what `save_figures` saves inside the context, if it is wanted."""
    if not is_wanted or not hasattr(os, "fork"):  # Windows
        yield
        return
    pipes = [multiprocessing.Pipe() for _ in range(min(PROCESSES, usable_cpus()))]
    _connections.extend(ours for ours, _ in pipes)
    descriptors = [theirs.fileno() for _, theirs in pipes]
    process = subprocess.Popen(
        another_python(PROGRAM, str(os.getpid()), *map(str, descriptors)),
        stdin=subprocess.DEVNULL,
        # Before it forks it may have no threads, which NumPy would start.
        env={**for_another_python(), "OPENBLAS_NUM_THREADS": "1"},
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C is for this process, which then ends the others
    )
    for _, theirs in pipes:
        theirs.close()
    try:
        yield
    finally:
        for connection in _connections:
            connection.close()
        _connections.clear()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)  # after an error or a signal they may still draw
        process.wait()


def save_figures(figures: Mapping[str, AnyFigure], folder: Path) -> dict[str, np.ndarray]:
    """Save figures as `plots.figure.save_figures` does, drawn by the other processes if any.

    They draw those that are functions, which can be pickled; this process draws the others, and all
    if one of the other processes has died.
    """
    functions = {name: value for name, value in figures.items() if callable(value)}
    others = {name: value for name, value in figures.items() if name not in functions}
    if not _connections:
        return figure.save_figures(figures, folder)
    connections = [*_connections]
    _connections.clear()  # after an error, an answer may still come, which is not for the next call
    try:
        pixels = figure.write_figures(_drawn_elsewhere(functions, connections), folder)
    except (EOFError, ConnectionError):
        log.warning("a process that draws figures has failed; drawing them in this process")
        return figure.save_figures(figures, folder)
    _connections.extend(connections)
    pixels |= figure.save_figures(others, folder)
    return {name: pixels[name] for name in figures}


def _drawn_elsewhere(
    figures: Mapping[str, AnyFigure], connections: "list[Connection[Task, Answer]]"
) -> Iterator[tuple[str, Drawn]]:
    """Yield the figures that the other processes draw, the last first, each when it is finished.

    This process repeats what failed there: the error is its own, with its own traceback.
    """
    tasks = [*figures.items()]
    busy = connections[: len(tasks)]
    for connection in busy:
        connection.send(tasks.pop())
    while busy:
        connection = cast("Connection[Task, Answer]", multiprocessing.connection.wait(busy)[0])
        name, drawn = connection.recv()
        if tasks:
            connection.send(tasks.pop())
        else:
            busy.remove(connection)
        yield name, drawn or figure.draw(name, figures[name])


def main() -> None:
    """Draw what the other process asks for, until it ends; fork for each further connection.

    The command line has its process id, and the descriptors of the connections to it.
    """
    heartbeat.die_with(int(sys.argv[1]))
    gc.disable()  # collecting garbage would take a twentieth of the time
    figure.import_to_save()
    own, *others = descriptors = [*map(int, sys.argv[2:])]
    parent = os.getpid()
    for descriptor in others:
        if os.fork() == 0:
            heartbeat.die_with(parent)
            own = descriptor
            break
    for descriptor in descriptors:
        if descriptor != own:
            os.close(descriptor)  # so that the other process sees if a process has died
    connection: Connection[Answer, Task] = Connection(own)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            name, value = connection.recv()
            try:
                drawn = figure.draw(name, value)
            except Exception:
                drawn = None  # the other process repeats it
            connection.send((name, drawn))

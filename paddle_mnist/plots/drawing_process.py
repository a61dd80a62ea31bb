"""Draw figures in another process, which imports Matplotlib while this one imports Paddle.

The process waits until `save_figures` sends it what to draw, and ends with this one.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Optional, Union

import numpy as np

from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.plots import figure
from paddle_mnist.plots.figure import AnyFigure
from paddle_mnist.system import heartbeat
from paddle_mnist.system.environment import another_python, for_another_python, usable_cpus

log = logging.getLogger("paddle_mnist")

PROGRAM = "from paddle_mnist.plots.drawing_process import main; main()"

Answer = Union[dict[str, np.ndarray], PaddleMnistError]

_connection: Optional["Connection[object, Answer]"] = None  # to the process


@contextlib.contextmanager
def drawing_process(is_wanted: bool) -> Iterator[None]:
    """Start a process that draws what `save_figures` saves inside the context, if it is wanted."""
    global _connection
    if not is_wanted or not hasattr(os, "fork"):  # Windows
        yield
        return
    connection, theirs = multiprocessing.Pipe()
    _connection = connection
    with theirs:
        process = subprocess.Popen(
            another_python(PROGRAM, str(os.getpid()), str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            # Before it forks it may have no threads, which NumPy would start.
            env={**for_another_python(), "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for this process, which then ends the other
        )
    try:
        yield
    finally:
        connection.close()
        _connection = None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)  # after an error or a signal it may still draw
        process.wait()


def save_figures(figures: Mapping[str, AnyFigure], folder: Path) -> dict[str, np.ndarray]:
    """Save figures as `plots.figure.save_figures` does, in the drawing process if there is one.

    It draws those that are functions, which can be pickled; this process draws the others, and all
    if the drawing process has died.
    """
    if not _connection:
        return figure.save_figures(figures, folder)
    functions = {name: value for name, value in figures.items() if callable(value)}
    others = {name: value for name, value in figures.items() if name not in functions}
    try:
        _connection.send((functions, folder.absolute()))
        answer = _connection.recv()
    except (EOFError, ConnectionError):
        log.warning("the process that draws the figures has died; drawing them in this process")
        return figure.save_figures(figures, folder)
    if isinstance(answer, PaddleMnistError):
        raise answer
    return {**answer, **figure.save_figures(others, folder)}


def main() -> None:
    """Answer requests until the other process ends.

    The command line has its process id, and the descriptor of the connection to it.
    """
    heartbeat.die_with(int(sys.argv[1]))
    connection: Connection[Answer, tuple[Mapping[str, AnyFigure], Path]]
    connection = Connection(int(sys.argv[2]))
    figure.import_to_save()
    save = _save_in_two if usable_cpus() > 1 else _save
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            connection.send(save(*connection.recv()))


def _save_in_two(figures: Mapping[str, AnyFigure], folder: Path) -> Answer:
    """Save figures, half of them in a process of its own; return their pixels, or an error."""
    first, second = (dict([*figures.items()][start::2]) for start in (0, 1))
    ours, theirs = multiprocessing.Pipe(duplex=False)
    parent = os.getpid()

    def save_second() -> None:
        heartbeat.die_with(parent)
        ours.close()  # so that `send` raises if this process dies
        theirs.send(_save(second, folder))

    process = multiprocessing.get_context("fork").Process(target=save_second)
    process.start()
    theirs.close()  # so that `recv` raises if the process dies
    answers = [_save(first, folder), ours.recv()]
    process.join()
    pixels: dict[str, np.ndarray] = {}
    for answer in answers:
        if isinstance(answer, PaddleMnistError):
            return answer
        pixels.update(answer)
    return pixels


def _save(figures: Mapping[str, AnyFigure], folder: Path) -> Answer:
    try:
        return figure.save_figures(figures, folder)
    except PaddleMnistError as error:
        return error

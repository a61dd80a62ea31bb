"""Python processes that start with their imports done: `run` and `Popen`, as of `subprocess`.

A process is forked from one that has imported Paddle and computed nothing: importing it takes
longer than most of what is tested. Apart from that it is a process like any other, to be watched,
signalled and killed. Tests of imports, of the start and of the interpreter's end start a real one.
"""

import functools
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import PIPE, STDOUT, CompletedProcess, TimeoutExpired
from typing import Optional

import numpy as np
import pytest

PRELOADED = "numba pytest hypothesis paddle visualdl sklearn.metrics matplotlib.figure".split()
PRELOADED += ["paddle_mnist.mnist.setup", "conftest", "compiled_ahead"]


@functools.cache
def forks():
    """The start method of `multiprocessing` that forks from the process with the imports done."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:  # it finds nothing by this process's sys.path
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    return context


class Popen:
    """A process that runs `python [-u] -c PROGRAM ...` or `python [-u] SCRIPT ...`; output as text.

    stdout, stderr: PIPE or a descriptor; stderr may be STDOUT. SIGINT is not ignored, even where
    this process is a shell's background job.
    """

    def __init__(
        self,
        command: Sequence[object],
        cwd: Optional[Path] = None,
        env: Optional[Mapping[str, str]] = None,
        stdout: int = PIPE,
        stderr: int = PIPE,
    ):
        self.args = [*map(str, command)]
        assert self.args[0] == sys.executable, "only Python is forked"
        self.stdout, out = _output(stdout)
        self.stderr, err = (None, out) if stderr == STDOUT else _output(stderr)
        environment = dict(os.environ if env is None else env)
        arguments = (self.args[1:], str(cwd or os.getcwd()), environment, (out, err))
        self._process = forks().Process(target=_run, args=arguments)
        self._process.start()
        for end in {out, err}:
            end.close()
        self.pid = self._process.pid

    @property
    def returncode(self) -> Optional[int]:
        return self._process.exitcode

    def poll(self) -> Optional[int]:
        return self._process.exitcode

    def wait(self, timeout: Optional[float] = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired(self.args, timeout)
        return self._process.exitcode

    def communicate(self, timeout: Optional[float] = None) -> tuple[Optional[str], Optional[str]]:
        """Read all output; returns when the process has ended and nobody holds the pipes."""
        end = time.monotonic() + (timeout or 1e6)
        readers = [_Reader(stream) for stream in (self.stdout, self.stderr)]
        for reader in readers:
            reader.join(max(0, end - time.monotonic()))
            if reader.is_alive():
                raise TimeoutExpired(self.args, timeout)
        self.wait(max(0.1, end - time.monotonic()))
        out, err = (reader.text for reader in readers)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(command, timeout=None, **options) -> CompletedProcess:
    process = Popen(command, **options)
    try:
        out, err = process.communicate(timeout)
    except BaseException:  # also the limit of a test
        process.kill()
        raise
    return CompletedProcess(process.args, process.returncode, out, err)


class _Reader(threading.Thread):
    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream, self.text = stream, None
        self.start()

    def run(self) -> None:
        if self.stream:
            with self.stream:
                self.text = self.stream.read()


def _output(wanted: int):
    """The stream to read from, for a PIPE, and the end that the process writes to."""
    if wanted != PIPE:
        return None, Connection(os.dup(wanted))
    reader, writer = forks().Pipe(duplex=False)
    with reader:
        return open(os.dup(reader.fileno()), encoding="utf-8"), writer


def _run(argv, cwd, environment, streams) -> None:
    os.chdir(cwd)
    os.environ.update(environment)  # not cleared: Paddle has set OMP_NUM_THREADS there
    time.tzset()
    np.random.seed()  # Python and Paddle do so themselves
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, stream in enumerate(streams, 1):
        os.dup2(stream.fileno(), descriptor)
    for stream in set(streams):
        stream.close()
    unbuffered = argv[0] == "-u" or "PYTHONUNBUFFERED" in environment
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(line_buffering=unbuffered or sys.stdout.isatty())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_start_method(None, force=True)  # Python's default, not the one used here
    sys.argv = argv[1:] if argv[0] == "-u" else argv
    if sys.argv[0] == "-c":
        program, sys.argv[1:] = sys.argv[1], sys.argv[2:]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(main))
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")

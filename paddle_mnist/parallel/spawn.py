"""Start the processes of a training on this machine, and watch over them to the end."""

import contextlib
import json
import logging
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, sharedctypes
from typing import Any, Optional, Union

import paddle

from paddle_mnist import errors
from paddle_mnist.errors import (
    ConfigError,
    DeviceError,
    PaddleMnistError,
    PeerError,
    ProcessError,
    StoppedError,
)
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.devices import chosen_gpus, gpu_count
from paddle_mnist.system.machine import require_posix_processes, usable_cpus

log = logging.getLogger("paddle_mnist")

LAST_WORDS = 10.0  # seconds for the others to save and end by themselves once one has died
LONGEST = 8000  # characters of a message; a pipe that nobody reads yet takes 64 KiB


def spawn(
    function: Callable,
    args: Sequence[Any] = (),
    nprocs: int = -1,
    gpus: Optional[str] = None,
    hang_timeout: float = 600.0,
    device: str = "auto",
    selected_gpus: Optional[str] = None,
) -> None:
    """Call `function(*args)` in `nprocs` processes that Paddle has introduced to one another.

    It must be importable, and calls `paddle_mnist.parallel.world.join`; what it returns is dropped:
    large results hang Paddle's own spawn.

    nprocs: -1, as in Paddle, for one on each device: each of `gpus`, else each GPU that Paddle
        sees, else each CPU core that this process may use.
    gpus: one for each process, as "4,5". selected_gpus: what Paddle 2.0 called it.
    device: "cpu" for processes that use none of a machine's GPUs.

    Raises DeviceError for GPUs that are not there, ConfigError for numbers that do not agree.
    SIGTERM and SIGINT go to all of them. When one dies, the others are ended too, and its error is
    raised here: one of this package as it is; ProcessError with its traceback, the signal that
    killed it, or the name of the one that gave no sign of life for `hang_timeout` seconds. Raises
    ConfigError on a system without POSIX process groups and signals.
    """
    require_posix_processes(f"nprocs is {nprocs}", "--nprocs 1")
    if gpus and selected_gpus and gpus != selected_gpus:
        raise ConfigError(
            f"gpus is {gpus!r}, but selected_gpus is {selected_gpus!r}; expected one of them"
        )
    if nprocs < 1 and nprocs != -1:
        raise ConfigError(f"nprocs is {nprocs}; expected at least 1, or -1 for all devices")
    chosen = chosen_gpus(gpus or selected_gpus, None if nprocs == -1 else nprocs)
    if nprocs == -1:
        nprocs = len(chosen) or (device != "cpu" and gpu_count()) or usable_cpus()
    spawning = multiprocessing.get_context("spawn")
    pipes = [spawning.Pipe(duplex=False) for _ in range(nprocs)]
    # signs of life, then how many exchanges each has come to
    beats = sharedctypes.RawArray("Q", 2 * nprocs)
    options = {"gpus": ",".join(chosen)} if chosen else {}
    options |= {"backend": "gloo"} if device == "cpu" else {}
    with signals.handlers_installed(), signals.deferred():
        signals.reinstall_handlers()  # importing Paddle, as this module does, takes them away
        try:
            with _quiet():
                context = paddle.distributed.spawn(
                    _run,
                    (function, tuple(args), [writing for _, writing in pipes], beats),
                    nprocs,
                    join=False,
                    **options,
                )
        except (RuntimeError, ValueError) as error:  # GPUs that are not there, or not for us
            raise DeviceError(f"{nprocs} processes cannot be started: {error}") from error
        processes = context.processes
        for _, writing in pipes:
            writing.close()
        try:
            first = _watch(processes, beats, hang_timeout)
        finally:
            for process in processes:
                process.kill()
                process.join()
        words = [_read(reading) for reading, _ in pipes]
        error, signum = _error(processes, words, first), signals.pending()
        if error and signum and not any(isinstance(said, StoppedError) for said in words):
            raise StoppedError(signum)  # it came before they could listen
    if error:
        raise error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Paddle tells of free ports, of CPUs, and in each new process of a compiler it looks for."""
    os.environ.setdefault("GLOG_minloglevel", "1")  # 0 tells of every socket
    before = os.environ.get("PYTHONWARNINGS")
    chatter = logging.getLogger()  # they tell it as the root logger
    level = chatter.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chatter.setLevel(logging.WARNING)
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, "ignore:No ccache found"]))
        try:
            yield
        finally:
            chatter.setLevel(level)
            if before is None:
                del os.environ["PYTHONWARNINGS"]
            else:
                os.environ["PYTHONWARNINGS"] = before


def _run(function: Callable, args: tuple, pipes: Sequence[Any], beats: Any) -> None:
    """In a new process: call the function, and say what became of it."""
    rank = int(os.environ["PADDLE_TRAINER_ID"])

    def beat(exchanging: bool) -> None:
        beats[rank] += 1
        beats[len(pipes) + rank] += exchanging

    heartbeat.add_listener(beat)
    code = 0
    try:
        with signals.handlers_installed(ignore_afterwards=True):
            function(*args)
    except PaddleMnistError as error:
        code = error.exit_code
        values = [error.signum] if isinstance(error, StoppedError) else [str(error)[:LONGEST]]
        values += [code] if isinstance(error, ProcessError) else []
        _say(pipes[rank], type(error).__name__, values)
    except BaseException:  # whatever it was, the process that started this one tells it
        code = 1
        _say(pipes[rank], None, [traceback.format_exc()[-LONGEST:]])
    sys.exit(code)


def _watch(processes: Sequence[Any], beats: Any, hang_timeout: float) -> list[int]:
    """Wait until all have ended, or one has died and the others had time for their last words.

    Gives the ranks in the order in which they ended, those that were killed here left out.
    """
    ended: list[int] = []
    handed_on = False
    seen, limit = sum(beats), time.monotonic() + hang_timeout + heartbeat.START_SECONDS
    while len(ended) < len(processes):
        running = {p.sentinel: rank for rank, p in enumerate(processes) if rank not in ended}
        for sentinel in connection.wait(list(running), timeout=0.2):
            rank = running[sentinel]
            processes[rank].join()
            ended.append(rank)
            if processes[rank].exitcode not in (0, *signals.STOP_EXIT_CODES):
                limit = min(limit, time.monotonic() + LAST_WORDS)
        if signals.pending() and not handed_on:
            handed_on = True
            for process in processes:
                if process.is_alive():
                    os.kill(process.pid, signals.pending())
        if sum(beats) != seen:
            seen = sum(beats)
            heartbeat.beat()
            if all(processes[rank].exitcode in (0, *signals.STOP_EXIT_CODES) for rank in ended):
                limit = time.monotonic() + hang_timeout
        if time.monotonic() > limit:
            if not any(processes[rank].exitcode for rank in ended):
                reached = {rank: beats[len(processes) + rank] for rank in running.values()}
                behind = [str(rank) for rank, n in reached.items() if n == min(reached.values())]
                raise ProcessError(
                    f"rank {', '.join(behind)} gave no sign of life for {hang_timeout:g} s, and "
                    "whoever waits for it waits in vain; all are ended; the same command goes on "
                    "from the newest checkpoint",
                    1,
                )
            break
    return ended


def _say(pipe: Any, error: Optional[str], values: Sequence[Any]) -> None:
    """error: the name of one of this package's, made of `values`; None: they are a traceback."""
    pipe.send_bytes(json.dumps([error, values]).encode())


def _read(pipe: Any) -> Union[PaddleMnistError, str, None]:
    """What a process said at its end: an error, a traceback, or nothing."""
    try:
        if not pipe.poll():
            return None
        error, values = json.loads(pipe.recv_bytes())
    except (EOFError, OSError, ValueError):  # it was killed while it spoke
        return None
    return getattr(errors, error)(*values) if error else values[0]


def _error(
    processes: Sequence[Any], words: Sequence[Any], order: Sequence[int]
) -> Optional[PaddleMnistError]:
    """What went wrong first; None if nothing did."""
    failed = [rank for rank in order if processes[rank].exitcode]
    if not failed:
        return None
    # Who only lost another is not the one that it began with.
    rank = next((rank for rank in failed if not isinstance(words[rank], PeerError)), failed[0])
    said, code = words[rank], processes[rank].exitcode
    if isinstance(said, StoppedError):
        return said
    silent = [str(rank) for rank in range(len(processes)) if rank not in order]
    if isinstance(said, PeerError) and silent:
        return ProcessError(f"rank {', '.join(silent)} did not answer: {said}", 1)
    if isinstance(said, PaddleMnistError):
        error = said
        error.args = (f"rank {rank}: {said}",) if len(processes) > 1 and rank else said.args
        return error
    if said:
        return ProcessError(f"rank {rank} ended with an error of its own:\n{said.rstrip()}", 1)
    code = code if code >= 0 else 128 - code  # as a shell has it
    return ProcessError(
        f"rank {rank} (process {processes[rank].pid}) ended with {signals.describe_exit(code)}; "
        "the same command goes on from the newest checkpoint",
        code,
    )

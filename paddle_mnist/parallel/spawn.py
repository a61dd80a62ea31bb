"""`spawn`: start the processes of a run on this machine, and watch them until they end."""

import contextlib
import inspect
import json
import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn, Optional, Union

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
from paddle_mnist.system.children import Child, heartbeat_pipe, watch
from paddle_mnist.system.devices import chosen_gpus, gpu_count, require_paddle
from paddle_mnist.system.environment import (
    LOOPBACK,
    require_loopback,
    require_posix_processes,
    usable_cpus,
)


def spawn(
    function: Callable[..., object],
    args: Sequence[Any] = (),
    nprocs: int = -1,
    gpus: Optional[str] = None,
    hang_timeout: float = 600.0,
    device: str = "auto",
    selected_gpus: Optional[str] = None,
    **unknown: NoReturn,
) -> Any:
    """Call `function(*args)` in `nprocs` processes that Paddle connects with one another.

    Return what rank 0 returns, if that is plain data; None otherwise.

    function: importable by name; it calls `paddle_mnist.parallel.world.join`.
    nprocs: -1, as in Paddle, for one on each device: each of `gpus`, else each GPU that Paddle
        sees, else each CPU core that this process may use.
    gpus: one for each process, as "4,5". selected_gpus: its name in Paddle 2.0.
    hang_timeout: seconds without a heartbeat of any process after which all are ended.
    device: "cpu" for processes that use none of a machine's GPUs.

    Signals that stop training are forwarded to all processes. When one fails, the others are
    ended too, and its error is raised here: an error of this package as it is, or ProcessError with
    the traceback, the signal that killed it, or the rank that hung.
    Raises DeviceError for GPUs that do not exist and where processes cannot connect, ConfigError
    for numbers that do not agree, and on a system without POSIX process groups and signals; and
    TypeError for an unknown argument, with the name of the nearest one.
    """
    for name in unknown:
        known = list(inspect.signature(spawn).parameters)[:-1]
        raise TypeError(errors.unknown_name("spawn()", name, known))
    require_posix_processes(f"nprocs is {nprocs}", "nprocs 1")
    require_loopback()
    if gpus and selected_gpus and gpus != selected_gpus:
        raise ConfigError(
            f"gpus is {gpus!r}, but selected_gpus is {selected_gpus!r}; expected one of them"
        )
    if nprocs < 1 and nprocs != -1:
        raise ConfigError(f"nprocs is {nprocs}; expected at least 1, or -1 for all devices")
    chosen_devices = chosen_gpus(gpus or selected_gpus, None if nprocs == -1 else nprocs)
    if nprocs == -1:
        nprocs = len(chosen_devices) or (device != "cpu" and gpu_count()) or usable_cpus()
    has_gpus = device != "cpu" and gpu_count() > 0
    gpu_numbers = _gpu_numbers(chosen_devices, nprocs) if has_gpus else []
    processes, ranks = list[Any](), list[Child]()
    with signals.handlers_installed():
        try:
            for variables in _environments(nprocs, gpu_numbers):
                process, child = _start(_Call(function, args), variables)
                processes.append(process)
                ranks.append(child)
            ended, limit = watch(ranks, hang_timeout)
        finally:
            for process in processes:
                process.kill()
                process.join()
        if error := _hang(ranks, ended, limit) or _first_error(ranks, ended):
            raise error
    return _report(ranks[0]).get("returned")


class _Call:
    """A function and its arguments, which a new process unpickles once it has imported Paddle."""

    def __init__(self, function: Callable[..., object], args: Sequence[Any]):
        self.call = function, tuple(args), errors.spelling.get()

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self.call))

    def __setstate__(self, pickled: bytes) -> None:
        self.pickled = pickled

    def run(self) -> object:
        function, args, spelling = ForkingPickler.loads(self.pickled)
        errors.spelling.set(spelling)
        return function(*args)


def _gpu_numbers(chosen: Sequence[str], nprocs: int) -> list[str]:
    """Return the GPU of each process, as Paddle numbers those that CUDA_VISIBLE_DEVICES lists."""
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").replace(" ", "").split(",")
    visible = visible if visible != [""] else list(map(str, range(gpu_count())))
    if len(visible) < nprocs or not set(chosen).issubset(visible):
        raise DeviceError(
            f"{nprocs} processes cannot be started: gpus is {','.join(chosen) or None}; expected "
            f"one for each process, of the GPUs {','.join(visible)}"
        )
    return [str(visible.index(gpu)) for gpu in chosen or visible[:nprocs]]


def _environments(nprocs: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    """Return each process's variables, by which Paddle connects them; through gloo without GPUs."""
    listeners = [socket.create_server((LOOPBACK, 0)) for _ in range(nprocs)]  # on free ports
    endpoints = [f"{LOOPBACK}:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    return [
        {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(nprocs),
            "PADDLE_CURRENT_ENDPOINT": endpoint,
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            **({"FLAGS_selected_gpus": gpus[rank]} if gpus else {"PADDLE_DISTRI_BACKEND": "gloo"}),
        }
        for rank, endpoint in enumerate(endpoints)
    ]


def _start(call: _Call, variables: Mapping[str, str]) -> tuple[Any, Child]:
    """Start a process. variables: of its environment."""
    context = multiprocessing.get_context("spawn")
    reading, writing = heartbeat_pipe()
    process = context.Process(target=_run, args=(call, variables, writing))
    resource_tracker.ensure_running()  # to start it would unblock signals
    with writing, signals.blocked():  # while it imports Paddle
        process.start()
    assert process.pid
    return process, Child(process.pid, lambda: process.exitcode, reading)


def _run(call: _Call, variables: Mapping[str, str], pipe: Connection) -> None:
    """Make the call in a new process, report how it ended, and exit."""
    parent = multiprocessing.parent_process()
    assert parent
    os.environ.update(variables)
    os.environ[heartbeat.VARIABLE] = f"{parent.pid} {pipe.fileno()}"
    heartbeat.start()
    # Else a spawned process spawns too: each worker of a DataLoader would import Paddle again.
    multiprocessing.set_start_method(None, force=True)
    report: dict[str, Any] = {}
    code = 0
    try:
        require_paddle()
        signals.unblock()
        value = call.run()
        if os.environ["PADDLE_TRAINER_ID"] == "0":
            with contextlib.suppress(TypeError, ValueError):  # not plain: `spawn` returns None
                json.dumps(value)
                report["returned"] = value
    except PaddleMnistError as error:
        code = error.exit_code
        values: list[Any] = [error.signum] if isinstance(error, StoppedError) else [str(error)]
        values += [code] if isinstance(error, ProcessError) else []
        # A subclass, such as of a damaged checkpoint, is raised as its base in `errors`.
        kinds = (kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        report["error"] = [next(kinds).__name__, values]
    except BaseException:  # whatever it is, the parent raises it
        code = 1
        report["error"] = traceback.format_exc().rstrip()
    signals.ignore()
    heartbeat.report(json.dumps(report).encode())
    sys.exit(code)


def _report(rank: Child) -> dict[str, Any]:
    """Return what a process has sent about its end; {} if it was killed before."""
    try:
        report: dict[str, Any] = json.loads(rank.report)
    except ValueError:
        return {}
    return report


def _error_of(rank: Child) -> Union[PaddleMnistError, str, None]:
    """Return the error of this package that ended a process, or the traceback of another one."""
    error = _report(rank).get("error")
    return getattr(errors, error[0])(*error[1]) if isinstance(error, list) else error


def _hang(ranks: Sequence[Child], ended: Sequence[Child], limit: float) -> Optional[ProcessError]:
    """Return the error of a run that hangs; None if all processes have ended, or one has failed.

    limit: for how many seconds none of them sent a heartbeat. The error names the processes that
    have started the fewest exchanges: the others wait for them.
    """
    running = [rank for rank in ranks if rank not in ended]
    if not running or any(rank.exit_code for rank in ended):
        return None
    fewest = min(rank.exchanges for rank in running)
    slowest = [str(ranks.index(rank)) for rank in running if rank.exchanges == fewest]
    return ProcessError(
        f"rank {', '.join(slowest)} sent no heartbeat for {limit:g} s while the others "
        "waited for it; all processes were terminated; run again to resume from the newest "
        "checkpoint",
        1,
    )


def _first_error(ranks: Sequence[Child], ended: Sequence[Child]) -> Optional[PaddleMnistError]:
    """Return the error that came first; None if there was none.

    ended: in the order of their ends, without the processes that were killed here.
    """
    unfinished = [rank for rank in ended if rank.exit_code]
    if not unfinished:
        return None
    # One that only lost its connection to another is not the cause.
    causes = (rank for rank in unfinished if not isinstance(_error_of(rank), PeerError))
    first = next(causes, unfinished[0])
    error, number = _error_of(first), ranks.index(first)
    if signum := signals.stopped_by(first.exit_code):
        return StoppedError(signum)
    silent = [str(number) for number, rank in enumerate(ranks) if rank not in ended]
    if isinstance(error, PeerError) and silent:
        return ProcessError(f"rank {', '.join(silent)} did not answer: {error}", 1)
    if isinstance(error, PaddleMnistError):
        error.args = (f"rank {number}: {error}",) if number else error.args
        return error
    if error:
        return ProcessError(f"rank {number} failed with an unhandled exception:\n{error}", 1)
    return ProcessError(
        f"rank {number} (process {first.pid}) ended with {signals.describe_exit(first.exit_code)}; "
        "run again to resume from the newest checkpoint",
        first.exit_code,
    )

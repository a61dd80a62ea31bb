"""`spawn`: start the processes of a training on this machine, and watch them to the end."""

import contextlib
import json
import logging
import multiprocessing.spawn
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, sharedctypes
from typing import Any, NamedTuple, Optional, Union

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
from paddle_mnist.system.devices import chosen_gpus, gpu_count, imported_before_paddle
from paddle_mnist.system.machine import require_loopback, require_posix_processes, usable_cpus
from paddle_mnist.system.surroundings import environment

log = logging.getLogger("paddle_mnist")

SAVE_SECONDS = 10.0  # for the others to save and exit by themselves once one has failed
MAX_MESSAGE = 8000  # characters of a report; a pipe that nobody reads yet takes 64 KiB
MAX_RETURNED = 32_000  # characters of what a process returns


class _Report(NamedTuple):
    """The end of a process: an error of this package, the traceback of another one, or none.

    returned: what it has returned.
    """

    error: Union[PaddleMnistError, str, None] = None
    returned: Any = None


def spawn(
    function: Callable[..., object],
    args: Sequence[Any] = (),
    nprocs: int = -1,
    gpus: Optional[str] = None,
    hang_timeout: float = 600.0,
    device: str = "auto",
    selected_gpus: Optional[str] = None,
) -> Any:
    """Call `function(*args)` in `nprocs` processes that Paddle connects with one another.

    Return what rank 0 returns, if that is plain and small (large results hang Paddle's own spawn);
    None otherwise.

    function: importable by name; it calls `paddle_mnist.parallel.world.join`.
    nprocs: -1, as in Paddle, for one on each device: each of `gpus`, else each GPU that Paddle
        sees, else each CPU core that this process may use.
    gpus: one for each process, as "4,5". selected_gpus: what Paddle 2.0 called it.
    hang_timeout: seconds without a heartbeat of any process after which all are ended.
    device: "cpu" for processes that use none of a machine's GPUs.

    Signals that stop a training are forwarded to all processes. When one fails, the others are
    ended too, and its error is raised here: an error of this package as it is, or ProcessError with
    the traceback, the signal that killed it, or the rank that hung.
    Raises DeviceError for GPUs that do not exist and where processes cannot connect, ConfigError
    for numbers that do not agree, and on a system without POSIX process groups and signals.
    """
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
    with signals.handlers_installed(), signals.deferred():
        signals.reinstall_handlers()  # importing Paddle, as this module does, replaced them
        job = _start(function, args, nprocs, chosen_devices, on_cpu=device == "cpu")
        try:
            ended = _watch(job, hang_timeout)
        finally:
            job.kill()
        reports = [_receive_report(pipe) for pipe in job.pipes]
        error, signum = _first_error(job.processes, reports, ended), signals.pending()
        own = (one.error for one in reports if not isinstance(one.error, PeerError))
        if error and signum and not any(own):
            # It came before the processes had handlers, and ended them as a failure would.
            raise StoppedError(signum)
    if error:
        raise error
    return reports[0].returned


@dataclass(frozen=True)
class _Job:
    """The processes of a training, by rank.

    context: Paddle's; it holds semaphores that processes look for while they start.
    pipes: through which each reports its end. beats: shared counters, first the heartbeats of each
    rank, then how many exchanges each has begun.
    """

    context: Any
    pipes: Sequence[Any]
    beats: Any

    @property
    def processes(self) -> Sequence[Any]:
        processes: Sequence[Any] = self.context.processes
        return processes

    def wait(self, ended: Sequence[int]) -> list[int]:
        """Wait a moment, and return the ranks that have ended beside `ended`."""
        ranks = {p.sentinel: rank for rank, p in enumerate(self.processes) if rank not in ended}
        newly_ended = [ranks[sentinel] for sentinel in connection.wait(list(ranks), timeout=0.2)]
        for rank in newly_ended:
            self.processes[rank].join()
        return newly_ended

    def failed(self, rank: int) -> bool:
        """Return whether a process that has ended was neither done nor stopped by a signal."""
        code = self.processes[rank].exitcode
        return code != 0 and signals.stopped_by(code) is None

    def stopped_by(self, ended: Sequence[int]) -> list[int]:
        """Return a list of the signal that stopped one of the processes that have ended, or []."""
        codes = [self.processes[rank].exitcode for rank in ended]
        return list(filter(None, map(signals.stopped_by, codes)))[:1]

    def send_signal(self, signum: int) -> None:
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signum)

    def slowest(self, ended: Sequence[int]) -> list[int]:
        """Return the running ranks that have begun the fewest exchanges: the others wait there."""
        counts = self.beats[len(self.processes) :]
        exchanges = {rank: n for rank, n in enumerate(counts) if rank not in ended}
        return [rank for rank, n in exchanges.items() if n == min(exchanges.values())]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _start(
    function: Callable[..., object],
    args: Sequence[Any],
    nprocs: int,
    gpus: Sequence[str],
    on_cpu: bool,
) -> _Job:
    """Start the processes. Raises DeviceError where Paddle cannot."""
    multiprocess = multiprocessing.get_context("spawn")
    pipes = [multiprocess.Pipe(duplex=False) for _ in range(nprocs)]
    beats = sharedctypes.RawArray("Q", 2 * nprocs)
    options: dict[str, Any] = {"gpus": ",".join(gpus)} if gpus else {}
    options |= {"backend": "gloo"} if on_cpu else {}
    try:
        with _quiet(), _prelude():
            context = paddle.distributed.spawn(
                _run,
                (function, tuple(args), [writing for _, writing in pipes], beats),
                nprocs,
                join=False,
                **options,
            )
    except (RuntimeError, ValueError) as error:  # GPUs that do not exist, or are not ours
        raise DeviceError(f"{nprocs} processes cannot be started: {error}") from error
    for _, writing in pipes:
        writing.close()
    return _Job(context, [reading for reading, _ in pipes], beats)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Paddle on free ports, on CPUs, and in each new process on a missing ccache."""
    os.environ.setdefault("GLOG_minloglevel", "1")  # 0 logs every socket
    ignored = filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:No ccache found"])
    root = logging.getLogger()  # which Paddle logs to
    level = root.level
    with warnings.catch_warnings(), environment(PYTHONWARNINGS=",".join(ignored)):
        warnings.simplefilter("ignore")
        root.setLevel(logging.WARNING)
        try:
            yield
        finally:
            root.setLevel(level)


# Until its handlers are installed, Ctrl-C ends a new process without a traceback.
QUIET_SIGINT = (
    "import signal; signal.getsignal(signal.SIGINT) is signal.default_int_handler "
    "and signal.signal(signal.SIGINT, signal.SIG_DFL)"
)


@contextlib.contextmanager
def _prelude() -> Iterator[None]:
    """Have new processes begin with code of this package's.

    Otherwise they import Paddle before it, to unpickle what they run. What this process imported
    before Paddle, they do too, from where it did.
    """
    statements = [QUIET_SIGINT]
    if names := imported_before_paddle():
        statements += [f"import sys; sys.path[:] = {sys.path!r}", f"import {', '.join(names)}"]
    before = multiprocessing.spawn.get_command_line

    def get_command_line(**options: Any) -> list[str]:
        command = before(**options)
        program = command.index("-c") + 1
        command[program] = "; ".join([*statements, command[program]])
        return command

    multiprocessing.spawn.get_command_line = get_command_line
    try:
        yield
    finally:
        multiprocessing.spawn.get_command_line = before


def _run(
    function: Callable[..., object], args: tuple[Any, ...], pipes: Sequence[Any], beats: Any
) -> None:
    """Call the function in a new process, report how it ended, and exit."""
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    # Else a spawned process spawns too: each worker of a DataLoader would import Paddle anew.
    multiprocessing.set_start_method(None, force=True)

    def count(exchanging: bool) -> None:
        beats[rank] += 1
        beats[len(pipes) + rank] += exchanging

    heartbeat.add_listener(count)
    code = 0
    try:
        with signals.handlers_installed(ignore_afterwards=True):
            value = function(*args)
        if rank == 0 and _can_be_sent(value):
            _send_report(pipes[rank], returned=value)
    except PaddleMnistError as error:
        code = error.exit_code
        values: list[Any] = [str(error)[:MAX_MESSAGE]]
        values = [error.signum] if isinstance(error, StoppedError) else values
        values += [code] if isinstance(error, ProcessError) else []
        _send_report(pipes[rank], [type(error).__name__, values])
    except BaseException:  # whatever it is, the parent raises it
        code = 1
        _send_report(pipes[rank], traceback.format_exc()[-MAX_MESSAGE:])
    sys.exit(code)


def _watch(job: _Job, hang_timeout: float) -> list[int]:
    """Wait until all processes have ended, or one has failed and the others had time to save.

    Returns the ranks in the order in which they ended; those still running are left out.
    Raises ProcessError when they hang.
    """
    ended: list[int] = []
    forwarded = 0  # how many signals
    # Of the next heartbeat; once a process has failed, of the others' time to save.
    beats, deadline = sum(job.beats), time.monotonic() + hang_timeout + heartbeat.START_SECONDS
    while len(ended) < len(job.processes):
        for rank in job.wait(ended):
            ended.append(rank)
            if job.failed(rank):
                deadline = min(deadline, time.monotonic() + SAVE_SECONDS)
        # A rank that a signal stopped before it had connected leaves others that wait for it.
        for signum in (signals.all_received() or job.stopped_by(ended))[forwarded:]:
            forwarded += 1
            job.send_signal(signum)
        if sum(job.beats) != beats:
            beats = sum(job.beats)
            heartbeat.beat()
            if not any(map(job.failed, ended)):
                deadline = time.monotonic() + hang_timeout
        if time.monotonic() > deadline:
            if any(job.processes[rank].exitcode for rank in ended):  # failed or stopped: no hang
                break
            slowest = ", ".join(map(str, job.slowest(ended)))
            raise ProcessError(
                f"rank {slowest} sent no heartbeat for {hang_timeout:g} s, so the others wait in "
                "vain; all processes were terminated; run again to resume from the newest "
                "checkpoint",
                1,
            )
    return ended


def _can_be_sent(value: Any) -> bool:
    """Return whether a value is plain, and small enough for a pipe that nobody reads yet."""
    try:
        return value is not None and len(json.dumps(value)) <= MAX_RETURNED
    except (TypeError, ValueError):
        return False


def _send_report(pipe: Any, error: Any = None, returned: Any = None) -> None:
    """error: a traceback; or the class of an error of this package, and its arguments."""
    pipe.send_bytes(json.dumps([error, returned]).encode())


def _receive_report(pipe: Any) -> _Report:
    try:
        if not pipe.poll():
            return _Report()
        error, returned = json.loads(pipe.recv_bytes())
    except (EOFError, OSError, ValueError):  # it was killed while it wrote
        return _Report()
    if isinstance(error, list):
        error = getattr(errors, error[0])(*error[1])
    return _Report(error, returned)


def _first_error(
    processes: Sequence[Any], reports: Sequence[_Report], ended: Sequence[int]
) -> Optional[PaddleMnistError]:
    """Return the error that came first; None if there was none.

    ended: ranks in the order in which they ended; those that were killed here are left out.
    """
    unfinished = [rank for rank in ended if processes[rank].exitcode]
    if not unfinished:
        return None
    # One that only lost its connection to another is not the cause, nor one that had no handlers
    # yet for a signal sent to all.
    causes = (
        rank
        for rank in unfinished
        if not isinstance(reports[rank].error, PeerError)
        and -processes[rank].exitcode not in signals.all_received()
    )
    rank = next(causes, unfinished[0])
    error, code = reports[rank].error, processes[rank].exitcode
    if isinstance(error, StoppedError):
        return error
    silent = [str(rank) for rank in range(len(processes)) if rank not in ended]
    if isinstance(error, PeerError) and silent:
        return ProcessError(f"rank {', '.join(silent)} did not answer: {error}", 1)
    if isinstance(error, PaddleMnistError):
        error.args = (f"rank {rank}: {error}",) if len(processes) > 1 and rank else error.args
        return error
    if error:
        return ProcessError(f"rank {rank} failed with an unhandled exception:\n{error.rstrip()}", 1)
    code = code if code >= 0 else 128 - code  # as a shell has it
    return ProcessError(
        f"rank {rank} (process {processes[rank].pid}) ended with {signals.describe_exit(code)}; "
        "run again to resume from the newest checkpoint",
        code,
    )

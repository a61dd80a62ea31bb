"""The processes that train one net together, and how they communicate.

They are started by `paddle.distributed.launch`, or by `spawn`; each calls `join`. The communication
is Paddle's own, gloo on CPUs and NCCL on GPUs. In a single process every collective call is the
identity.

Each process computes the gradients of its part of a batch. `all_gather` and `tree_sum` add them up
in an order that does not depend on the number of processes (`paddle_mnist.parallel.gradients`), so
all processes make the same step. Only the main process, rank 0, reads checkpoints and writes files.
"""

import contextlib
import functools
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional, TypeVar

import paddle
from paddle import distributed

from paddle_mnist.errors import DataError, PaddleMnistError, PeerError
from paddle_mnist.parallel.gloo import Exchanges, connecting, exchanges
from paddle_mnist.parallel.processes import started_by_launcher
from paddle_mnist.parallel.spawn import spawn
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.devices import device_counts
from paddle_mnist.system.environment import require_posix_processes
from paddle_mnist.system.files import warn_once

__all__ = ["SINGLE_PROCESS", "World", "current_world", "join", "spawn", "tree_sum"]

log = logging.getLogger("paddle_mnist")

PARENT_FIRST_SECONDS = 60  # for `spawn` to end all processes of a run that hangs, with an error

T = TypeVar("T")


class World:
    """The processes of a run; this class stands for a single process.

    rank: this process's number, 0 for the main process. size: number of processes.
    """

    rank = 0
    size = 1

    @property
    def is_main_process(self) -> bool:
        """Return whether this process is the one that writes files and logs."""
        return self.rank == 0

    def all_gather(self, tensor: paddle.Tensor) -> list[paddle.Tensor]:
        """Return every process's tensor, all of one shape, in the order of ranks."""
        return [tensor]

    def all_reduce(self, tensor: paddle.Tensor) -> paddle.Tensor:
        """Return the sum over the processes; the order of the additions is not fixed."""
        return tensor

    def all_gather_objects(self, value: T) -> list[T]:
        """Return every process's value, in the order of ranks; agree on the signals received."""
        return [value]

    def run_on_main(self, action: Callable[[], T], has_time_limit: bool = False) -> T:
        """Run `action` on rank 0 only, and return its result, or raise its error, on all.

        has_time_limit: whether `action` limits its own time, perhaps to more than `hang_timeout`.
        """
        return action()

    def broadcast(self, tensors: Iterable[paddle.Tensor]) -> None:
        """Copy rank 0's values to every process, in place."""

    def require_same(self, value: Any, what: str) -> None:
        """Raise DataError unless every process has the same value. what: its name, in plural."""


class DistributedWorld(World):
    """Several processes. Each must call the same methods in the same order.

    Every method waits for the others as long as they work, and raises PeerError where one is gone.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    @functools.cached_property
    def _exchanges(self) -> Exchanges:
        return exchanges()

    def all_gather(self, tensor: paddle.Tensor) -> list[paddle.Tensor]:
        with _communication():
            return self._exchanges.exchange("all_gather", tensor)

    def all_reduce(self, tensor: paddle.Tensor) -> paddle.Tensor:
        with _communication():
            return self._exchanges.exchange("all_reduce", tensor)[0]

    def all_gather_objects(self, value: T) -> list[T]:
        gathered: list[tuple[T, Optional[int]]] = []
        with _communication(), self._exchanges.all_present():
            distributed.all_gather_object(gathered, (value, signals.received()))
        signals.agree_on(signum for _, signum in gathered)
        return [value for value, _ in gathered]

    def run_on_main(self, action: Callable[[], T], has_time_limit: bool = False) -> T:
        result_and_error: list[Any] = [None, None]
        if self.is_main_process:
            try:
                result_and_error = [action(), None]
            except PaddleMnistError as raised:
                result_and_error = [None, raised]
        with _communication():
            if has_time_limit and not self.is_main_process:
                heartbeat.pause()  # rank 0 limits its own time
            with self._exchanges.all_present():
                distributed.broadcast_object_list(result_and_error, src=0)
        result: T
        result, error = result_and_error
        if error:
            raise error
        return result

    def broadcast(self, tensors: Iterable[paddle.Tensor]) -> None:
        with _communication(), self._exchanges.all_present():
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def require_same(self, value: Any, what: str) -> None:
        values = self.all_gather_objects(value)
        different = [str(rank) for rank, other in enumerate(values) if other != values[0]]
        if different:
            raise DataError(
                f"{what} of rank {', '.join(different)} differ from those of rank 0; expected the "
                "same everywhere; give every machine the same files"
            )


SINGLE_PROCESS = World()


def current_world() -> World:
    """Return the processes connected by `init_parallel_env`; `SINGLE_PROCESS` without it."""
    if not distributed.is_initialized() or distributed.get_world_size() < 2:
        return SINGLE_PROCESS
    return DistributedWorld(distributed.get_rank(), distributed.get_world_size())


@contextlib.contextmanager
def _communication() -> Iterator[None]:
    """Turn an error of Paddle's communication into a PeerError."""
    heartbeat.beat(exchanging=True)
    try:
        yield
    except (RuntimeError, SystemError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PeerError(
            f"another process of this run is gone or was out of step ({reason}); its own "
            "message says why; run again to resume from the newest checkpoint"
        ) from error


def join(hang_timeout: float = 600, device: str = "auto") -> World:
    """Connect with the processes that were started together with this one, if there are any.

    From now on, a signal inside `fit` stops all of them at the same step. They also stop when the
    process that started them is gone, and exit after `hang_timeout` seconds without a heartbeat.
    device: "cpu" for processes that use none of a machine's GPUs.
    """
    if started_by_launcher():
        heartbeat.guard()
    if os.environ.get("PADDLE_TRAINER_ID") == "0" and "PADDLE_LOG_DIR" in os.environ:
        warn_once(
            "PADDLE_LOG_DIR",
            "launch writes all environment variables, including passwords, to files in %s: share "
            "only workerlog.*",
            os.environ["PADDLE_LOG_DIR"],
        )
    size = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    if size < 2:
        return SINGLE_PROCESS
    require_posix_processes(f"Paddle's launch started {size} processes", "plain python")
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    if rank:
        log.setLevel(logging.WARNING)
        for handler in log.handlers:
            handler.setFormatter(logging.Formatter(f"rank {rank}: %(message)s"))
    heartbeat.guard(hang_timeout + PARENT_FIRST_SECONDS)
    _init_parallel_env(not device_counts().get(device.partition(":")[0].replace("auto", "gpu")))
    exchanges()  # from here on the others can wait for this process
    signals.require_agreement()
    return DistributedWorld(rank, size)


@functools.cache
def _init_parallel_env(on_cpu: bool) -> None:
    """Have Paddle connect this process with the others, once."""
    through_gloo = connecting() if on_cpu else contextlib.nullcontext()
    quiet = contextlib.redirect_stderr(io.StringIO())  # Paddle lists its flags
    with through_gloo, quiet, _communication(), signals.ending_at_once():
        distributed.init_parallel_env()


def tree_sum(parts: Sequence[paddle.Tensor]) -> paddle.Tensor:
    """Return the sum of several tensors, always added in the same order: pairwise, as a tree.

    Floating-point sums depend on their order. In this order each process can first sum its own
    block of parts: with 8 parts on 1, 2, 4 or 8 processes the additions are the same.
    """
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return tree_sum(parts[:half]) + tree_sum(parts[half:])

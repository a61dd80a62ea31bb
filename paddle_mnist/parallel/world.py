"""Several processes that train one net together; on one process all of this is the identity.

The processes are started by `paddle.distributed.launch`, or by `spawn` here; the exchange between
them is Paddle's own: gloo on CPUs, NCCL on GPUs.
"""

import contextlib
import functools
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, TypeVar

import paddle
from paddle import distributed

from paddle_mnist.errors import DataError, PaddleMnistError, PeerError
from paddle_mnist.parallel.spawn import spawn
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.machine import require_posix_processes

__all__ = [
    "ALONE",
    "World",
    "current_world",
    "join",
    "spawn",
    "started_by_launcher",
    "tree_sum",
]

log = logging.getLogger("paddle_mnist")

T = TypeVar("T")
LEAST_URGENT = 19  # of a thread's niceness


class World:
    """The processes of a training: this one alone.

    rank: this process's number, 0 for the one that writes files. size: how many there are.
    """

    rank = 0
    size = 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def all_gather(self, tensor: paddle.Tensor) -> list[paddle.Tensor]:
        """Every process's tensor, all of one shape, in the order of ranks."""
        return [tensor]

    def all_reduce(self, tensor: paddle.Tensor) -> paddle.Tensor:
        """The sum over the processes, in no order that is promised."""
        return tensor

    def all_gather_objects(self, value: T) -> list[T]:
        """Every process's value, in the order of ranks. Agrees on signals that came."""
        return [value]

    def run_on_main(self, action: Callable[[], T]) -> T:
        """What rank 0 makes of `action`, which only it does; its error is raised everywhere."""
        return action()

    def broadcast(self, tensors: Iterable[paddle.Tensor]) -> None:
        """Give every process rank 0's values, in place."""

    def require_same(self, value: Any, what: str) -> None:
        """Raises DataError unless every process has the same value."""


class Processes(World):
    """Several processes. Every one must call the same methods in the same order.

    Raises PeerError where another is gone.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    def all_gather(self, tensor: paddle.Tensor) -> list[paddle.Tensor]:
        found: list[paddle.Tensor] = []
        with _exchange():
            distributed.all_gather(found, tensor)
        return found

    def all_reduce(self, tensor: paddle.Tensor) -> paddle.Tensor:
        with _exchange():
            distributed.all_reduce(tensor)
        return tensor

    def all_gather_objects(self, value: T) -> list[T]:
        found: list[tuple[T, Optional[int]]] = []
        with _exchange():
            distributed.all_gather_object(found, (value, signals.received()))
        signals.agree_on(signum for _, signum in found)
        return [value for value, _ in found]

    def run_on_main(self, action: Callable[[], T]) -> T:
        outcome = [None, None]
        if self.is_main_process:
            try:
                outcome = [action(), None]
            except PaddleMnistError as error:
                outcome = [None, error]
        with _exchange():
            distributed.broadcast_object_list(outcome, src=0)
        value, error = outcome
        if error:
            raise error
        return value

    def broadcast(self, tensors: Iterable[paddle.Tensor]) -> None:
        with _exchange():
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def require_same(self, value: Any, what: str) -> None:
        values = self.all_gather_objects(value)
        others = [str(rank) for rank, theirs in enumerate(values) if theirs != values[0]]
        if others:
            raise DataError(
                f"{what} of rank {', '.join(others)} differ from those of rank 0; expected the "
                "same everywhere; give every machine the same files"
            )


ALONE = World()


def current_world() -> World:
    """The processes among which `init_parallel_env` was called; alone, where it was not."""
    if not distributed.is_initialized() or distributed.get_world_size() < 2:
        return ALONE
    return Processes(distributed.get_rank(), distributed.get_world_size())


@contextlib.contextmanager
def _exchange() -> Iterator[None]:
    heartbeat.beat(exchanging=True)  # one that waits here has come further than who does not
    try:
        yield
    except (RuntimeError, SystemError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PeerError(
            f"another process of this training is gone or was out of step ({reason}); its own "
            "message says why; the same command goes on from the newest checkpoint"
        ) from error


def started_by_launcher() -> bool:
    """Whether this process is one that Paddle's launch or spawn started."""
    return "PADDLE_TRAINER_ID" in os.environ


def join(hang_timeout: float = 600, device: str = "auto") -> World:
    """The processes that this one was started with; alone, where there are no others.

    From here on a signal stops all of them, at the same step. When what started them is gone, they
    stop too, and when nothing moves for `hang_timeout` seconds, they end. device: "cpu" leaves GPUs
    alone.
    """
    if started_by_launcher():
        heartbeat.exit_with_parent()
    if os.environ.get("PADDLE_TRAINER_ID") == "0" and "PADDLE_LOG_DIR" in os.environ:
        log.warning(
            "launch writes the whole environment, passwords in it too, into %s: hand on none of "
            "its files but workerlog.*",
            os.environ["PADDLE_LOG_DIR"],
        )
    size = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    if size < 2:
        return ALONE
    require_posix_processes(f"Paddle's launch started {size} processes", "plain python")
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    if rank:
        log.setLevel(logging.WARNING)
        for handler in log.handlers:
            handler.setFormatter(logging.Formatter(f"rank {rank}: %(message)s"))
    heartbeat.start_watchdog(hang_timeout + heartbeat.START_SECONDS)
    _meet(device == "cpu")
    signals.require_agreement()
    return Processes(rank, size)


@functools.cache  # processes meet once
def _meet(on_cpu: bool) -> None:
    if on_cpu or not (paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count()):
        # On a machine without GPUs Paddle believes this variable, and looks for NCCL.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
    before = _threads()
    with _exchange(), contextlib.redirect_stderr(io.StringIO()):  # it lists its own flags
        distributed.init_parallel_env()
    # gloo's thread asks for news without a pause while the one that computes holds its lock, and
    # would take the core from it for milliseconds: an exchange of 81 KB then lasts 4 ms, not 1.
    for thread in _threads() - before:
        os.setpriority(os.PRIO_PROCESS, thread, LEAST_URGENT)


def _threads() -> set[int]:
    """The threads of this process, which Linux lets have each its own priority."""
    tasks = Path("/proc/self/task")
    return {int(task.name) for task in tasks.iterdir()} if tasks.exists() else set()


def tree_sum(parts: Sequence[Any]) -> Any:
    """The sum of several tensors, always added in the same order: halves of halves.

    Floating-point sums depend on their order. In this one, what a block of parts comes to can be
    summed where the block is: with 8 parts on 1, 2, 4 or 8 processes the additions are the same.
    """
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return tree_sum(parts[:half]) + tree_sum(parts[half:])

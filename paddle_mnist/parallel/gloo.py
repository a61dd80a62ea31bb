"""Exchange tensors through gloo, by which Paddle connects processes on CPUs.

gloo waits at most 30 s in an exchange, and no setting changes that. While a process does something
long (it saves, evaluates, reads data, or runs a callback), a thread therefore stands in for it. All
processes number their exchanges alike, and agree on them by keys of Paddle's TCP store:

    rank 0 waits in exchange 7                 rank 1 is saving
    after CALL_SECONDS it sets form/7
        and adds 1 to waiting/7           ->   its thread sees waiting/7, adds 1 to absent/7,
    it gets NaN; absent/7 is not 0        <-       and sends NaN, in the form that form/7 describes
    it repeats the exchange as number 8 ...    until rank 1 takes part itself

NaN survives a sum, and is seen without the store, which then decides: the training's own values may
be NaN, too. So a normal step never asks the store, which a thread of rank 0 serves. When a process
is gone, the others still notice it at once.
"""

import atexit
import contextlib
import functools
import json
import math
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import paddle
from paddle import distributed
from paddle.base import core

from paddle_mnist.system.environment import LOOPBACK, require_host_name, require_loopback

INTERFACE = "GLOO_SOCKET_IFNAME"  # the variable that tells gloo which network interface to take
LOWEST_PRIORITY = 19  # the highest niceness of a thread
CALL_SECONDS = 10.0  # in an exchange, until the others' threads are called; gloo waits for 30
POLL_SECONDS = 1.0  # between two looks of the thread
STAND_IN = math.nan  # each value of a tensor that a thread sends in place of its process's


@contextlib.contextmanager
def connecting() -> Iterator[None]:
    """Make Paddle connect processes through gloo inside. Raises DeviceError where it cannot."""
    # On a machine without GPUs Paddle trusts this variable, and looks for NCCL.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
    _choose_interface()
    threads_before, open_before = _thread_ids(), _open_to_network()
    yield
    # gloo's thread polls without a pause while the thread that computes holds its lock, and would
    # take the core from it for milliseconds: an exchange of 81 KB then takes 4 ms instead of 1.
    for thread in _thread_ids() - threads_before:
        os.setpriority(os.PRIO_PROCESS, thread, LOWEST_PRIORITY)
    # Paddle's TCP store, in the process that serves it, listens on all interfaces, and nothing
    # changes that. By now all processes are connected: a socket on this machine takes its place.
    if os.environ.get(INTERFACE) == "lo":
        for descriptor in _open_to_network() - open_before:
            with socket.create_server((LOOPBACK, 0)) as local:
                os.dup2(local.fileno(), descriptor, inheritable=False)


def _open_to_network() -> set[int]:
    """Return the descriptors of this process that listen on all interfaces, on Linux."""
    descriptors = set()
    for descriptor in map(int, os.listdir("/proc/self/fd") if sys.platform == "linux" else ()):
        with contextlib.suppress(OSError):  # the one that has listed them is closed
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as opened:
                    is_listening = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    if is_listening and opened.getsockname()[0] == "0.0.0.0":
                        descriptors.add(descriptor)
    return descriptors


def _choose_interface() -> None:
    """Have gloo connect processes on one machine through its loopback interface.

    gloo itself takes the interface that has the address of the machine's name. Raises DeviceError
    where processes cannot connect: Paddle reports that late, or never.
    """
    endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "")
    hosts = {endpoint.rpartition(":")[0] for endpoint in endpoints.split(",")}
    if endpoints and len(hosts) == 1:
        require_loopback()
        if sys.platform == "linux":
            os.environ.setdefault(INTERFACE, "lo")
    elif INTERFACE not in os.environ:
        require_host_name()


def _thread_ids() -> set[int]:
    """Return the threads of this process, on Linux, where each has its own priority."""
    tasks = Path("/proc/self/task")
    return {int(task.name) for task in tasks.iterdir()} if tasks.exists() else set()


def _all_reduce(tensor: paddle.Tensor) -> list[paddle.Tensor]:
    total = tensor.clone()  # gloo adds in place, and the exchange may have to be repeated
    distributed.all_reduce(total)
    return [total]


def _all_gather(tensor: paddle.Tensor) -> list[paddle.Tensor]:
    gathered: list[paddle.Tensor] = []
    distributed.all_gather(gathered, tensor)
    return gathered


Operation = Callable[[paddle.Tensor], list[paddle.Tensor]]
OPERATIONS: dict[str, Operation] = {"all_reduce": _all_reduce, "all_gather": _all_gather}


class Exchanges:
    """The exchanges of this process with the others, which all make the same ones in one order."""

    def exchange(self, operation: str, tensor: paddle.Tensor) -> list[paddle.Tensor]:
        """Apply an operation of `OPERATIONS`, by its name, to the tensors of all processes.

        tensor: of a floating-point dtype, and of the same shape and dtype in all processes.
        """
        return OPERATIONS[operation](tensor)

    @contextlib.contextmanager
    def all_present(self) -> Iterator[None]:
        """Wait until all processes are here, for communication that no thread can stand in for."""
        yield


class Waiting(NamedTuple):
    """The exchange that this process itself is in."""

    number: int
    started: float  # a time of `time.monotonic`
    form: str  # the operation, shape and dtype, as JSON: all that a thread needs to stand in


class KeptAliveExchanges(Exchanges):
    """Exchanges through gloo, repeated until all processes take part themselves."""

    def __init__(self) -> None:
        self._store: Any = core.create_or_get_global_tcp_store()
        self._store_lock = threading.Lock()
        self._lock = threading.Lock()  # held in an exchange
        self._number = 0  # of the current exchange, or of the next one; repeated ones count
        self._waiting: Optional[Waiting] = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        atexit.register(self._end)

    @contextlib.contextmanager
    def all_present(self) -> Iterator[None]:
        self.exchange("all_reduce", paddle.zeros([1]))
        # Keeps the thread from standing in: others may already wait in a later exchange.
        with self._lock:
            yield

    def exchange(self, operation: str, tensor: paddle.Tensor) -> list[paddle.Tensor]:
        form = json.dumps([operation, tensor.shape, str(tensor.dtype).rpartition(".")[2]])
        while True:
            with self._lock:
                number = self._number
                self._waiting = Waiting(number, time.monotonic(), form)
                try:
                    results = OPERATIONS[operation](tensor)
                finally:
                    self._waiting = None
                self._number += 1
            if not any(map(_may_be_a_stand_in, results)) or not self._count("absent", number):
                return results

    def _watch(self) -> None:
        """Call the others when this process waits for long; stand in for it when they wait."""
        seen = called = -1  # numbers of exchanges
        try:
            while not self._ending.wait(POLL_SECONDS):
                waiting = self._waiting
                if waiting is None:
                    if self._number == seen:  # the process is not in normal steps
                        self._stand_in()
                elif waiting.number > called and time.monotonic() > waiting.started + CALL_SECONDS:
                    called = waiting.number
                    with self._store_lock:
                        self._store.set(f"form/{called}", waiting.form)
                    self._count("waiting", called, one_more=True)
                seen = self._number
        except (RuntimeError, SystemError, OSError, ValueError):
            return  # another process is gone: the next exchange of this one raises that error

    def _end(self) -> None:
        """End the thread: one that is in Paddle's code while Paddle is unloaded crashes."""
        self._ending.set()
        self._thread.join(CALL_SECONDS)

    def _stand_in(self) -> None:
        """Take part in the exchange in which others wait, if they do."""
        if not self._lock.acquire(blocking=False):  # this process has come itself
            return
        try:
            if not self._count("waiting", self._number):
                return
            with self._store_lock:
                form = self._store.get(f"form/{self._number}")
            self._count("absent", self._number, one_more=True)  # before the others see a NaN
            operation, shape, dtype = json.loads(bytes(form))
            values = np.full(shape, STAND_IN, dtype)
            OPERATIONS[operation](paddle.to_tensor(values, place=paddle.CPUPlace()))
            self._number += 1
        finally:
            self._lock.release()

    def _count(self, what: str, number: int, one_more: bool = False) -> int:
        """Return how many processes are "waiting" in an exchange, or "absent" from it.

        one_more: count this process, too.
        """
        with self._store_lock:
            return int(self._store.add(f"{what}/{number}", int(one_more)))


def _may_be_a_stand_in(result: paddle.Tensor) -> bool:
    value = result.flatten()[-1].item()  # all are NaN, or none
    return value != value  # as only NaN is


@functools.cache  # each process counts its exchanges once
def exchanges() -> Exchanges:
    """Return the exchanges of this process, which Paddle has connected with the others."""
    return KeptAliveExchanges() if distributed.get_backend() == "GLOO" else Exchanges()

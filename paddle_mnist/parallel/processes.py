"""`Processes`: how many processes train together, and how many of them to start."""

import os
from dataclasses import dataclass
from typing import Any, Optional

from paddle_mnist.errors import ConfigError, DeviceError
from paddle_mnist.options import Count, CountOrZero, Options, Positive, option
from paddle_mnist.system.devices import chosen_gpus, gpu_count
from paddle_mnist.system.environment import (
    has_posix_processes,
    require_posix_processes,
    usable_cpus,
)

MIN_SAMPLES = 8  # of a batch, for a process to be worth its cost


def auto_as_zero(value: Any) -> Any:
    """Read "auto" as 0, which means as many as the machine can run side by side."""
    return 0 if value == "auto" else value


@dataclass(frozen=True)
class Processes(Options):
    """Options for how many processes train together, and how they divide a batch.

    nprocs: the number of processes to start; 0, or "auto": as many as the machine can use.
    gpus: the GPU of each, such as "0,1".
    grad_shards: the number of parts of a batch whose gradients are added in a fixed order. Any
        number of processes that divides it gives the same bits.
    hang_timeout: seconds without progress after which the processes are ended.
    """

    heading = "device"

    nprocs: CountOrZero = option(
        1, "number of processes, each computing a part of every batch; or auto", parse=auto_as_zero
    )
    gpus: Optional[str] = option(None, "GPUs to train on, such as 0,1, with one process each")
    grad_shards: Optional[Count] = option(
        None,
        "parts of each batch; gives the same bits for any number of processes",
        must_match=True,
    )
    hang_timeout: Positive = option(
        600.0, "seconds without a step after which training is considered hung", heading="run"
    )


def started_by_launcher() -> bool:
    """Return whether Paddle's launch or spawn started this process."""
    return "PADDLE_TRAINER_ID" in os.environ


def processes_to_start(options: Processes, device: str, batch_size: int) -> int:
    """Return how many processes this one is to start; 1 if it is to train by itself.

    device: "auto", "cpu", "gpu:0", ...
    Raises ConfigError for options that exclude each other, DeviceError for GPUs that are not there.
    """
    count = _process_count(options, device, batch_size)
    if count > 1:
        require_posix_processes(f"nprocs is {count}", "nprocs 1")
    if options.grad_shards:
        from paddle_mnist.data.sampler import ShardSpec  # here, for it imports Paddle

        ShardSpec(options.grad_shards, world_size=count)  # raises, before a process is started
    return count


def _process_count(options: Processes, device: str, batch_size: int) -> int:
    if started_by_launcher():
        if options.nprocs != 1 or options.gpus:
            raise ConfigError(
                f"nprocs is {options.nprocs or 'auto'}, gpus is {options.gpus}, but Paddle's "
                "launch started this process; expected one of the two: give the numbers to launch "
                "(--nproc_per_node, --gpus), or start with plain python"
            )
        return 1
    gpus = gpu_count()
    if chosen := chosen_gpus(options.gpus, options.nprocs if options.nprocs > 1 else None):
        return len(chosen)
    if device not in ("auto", "cpu", "gpu"):  # one device, or of a kind that only launch assigns
        if options.nprocs > 1:
            raise ConfigError(
                f"device is {device!r}, one for {options.nprocs} processes; expected auto or cpu; "
                "gpus, such as 0,1, chooses GPUs; Paddle's launch takes other kinds of devices"
            )
        return 1
    uses_gpus = bool(gpus) and device != "cpu"
    if not options.nprocs:
        return most_processes(options, batch_size, gpus if uses_gpus else usable_cpus())
    if uses_gpus and options.nprocs > gpus:
        raise DeviceError(
            f"nprocs is {options.nprocs}, but Paddle sees {gpus} GPUs; expected one for each, "
            "or device cpu"
        )
    return options.nprocs


def most_processes(options: Processes, batch_size: int, places: int) -> int:
    """Return how many processes are useful at most. places: the number of CPUs or GPUs."""
    if not has_posix_processes():
        return 1
    most = max(1, min(places, batch_size // MIN_SAMPLES))
    while options.grad_shards and options.grad_shards % most:
        most -= 1
    return most

"""How many processes and threads a training is worth, and how many it was told to start."""

from typing import Optional, Protocol

import paddle

from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError, DeviceError
from paddle_mnist.parallel.processes import Processes
from paddle_mnist.parallel.world import started_by_launcher
from paddle_mnist.system.devices import MAX_FAST_THREADS, chosen_gpus, fast_threads, gpu_count
from paddle_mnist.system.machine import has_posix_processes, usable_cpus
from paddle_mnist.system.program import as_option

MIN_SAMPLES = 8  # of a batch, for a process to be worth it
MIN_TOTAL_SAMPLES = 20_000  # fewer are trained before another process has started


class ThreadOptions(Protocol):
    """The options of the fast convolution: fast_conv is "auto", "on" or "off"; threads, or 0."""

    fast_conv: str
    threads: int


def processes_to_start(options: Processes, device: str, batch_size: int) -> int:
    """Return how many processes this one is to start; 1 if it is to train by itself.

    device: "auto", "cpu", "gpu:0", ...
    Raises ConfigError for options that exclude each other, DeviceError for GPUs that are not there.
    """
    count = _process_count(options, device, batch_size)
    if options.grad_shards:
        ShardSpec(options.grad_shards, world_size=count)  # raises, before a process is started
    return count


def _process_count(options: Processes, device: str, batch_size: int) -> int:
    if started_by_launcher():
        if options.number != 1 or options.gpus:
            raise ConfigError(
                f"nprocs is {options.number or 'auto'}, gpus is {options.gpus}, but this process "
                "was started by Paddle's launch; expected one of the two: give the numbers to "
                "launch (--nproc_per_node, --gpus), or start with plain python"
            )
        return 1
    gpus = gpu_count()
    if chosen := chosen_gpus(options.gpus, options.number if options.number > 1 else None):
        return len(chosen)
    if options.number > 1 and ":" in device:
        raise ConfigError(
            f"device is {device!r}, one for {options.number} processes; expected auto or "
            f"cpu, and {as_option('gpus', '0,1')} to choose"
        )
    uses_gpus = bool(gpus) and device != "cpu"
    if not options.number:
        return most_processes(options, batch_size, gpus if uses_gpus else usable_cpus())
    if uses_gpus and options.number > gpus:
        raise DeviceError(
            f"nprocs is {options.number}, but Paddle sees {gpus} GPUs; expected one for each, "
            f"or {as_option('device', 'cpu')}"
        )
    return options.number


def most_processes(options: Processes, batch_size: int, places: int) -> int:
    """Return the most processes that make sense with so many CPUs or GPUs to run on."""
    if not has_posix_processes():
        return 1
    most = max(1, min(places, batch_size // MIN_SAMPLES))
    while options.grad_shards and options.grad_shards % most:
        most -= 1
    return most


def hint(
    options: Processes, device: str, batch_size: int, samples: int, threads: int
) -> Optional[str]:
    """Return a line for a user who trains on one of several cores; None if it would not help.

    samples: how many the training takes in all. threads: of the fast convolution; 0 without it.
    """
    cores = usable_cpus()
    on_cpu = device == "cpu" or (device == "auto" and not gpu_count())
    if not on_cpu or started_by_launcher() or samples < MIN_TOTAL_SAMPLES:
        return None
    most_threads = min(cores, MAX_FAST_THREADS)
    if 0 < threads < most_threads:  # which need not exchange gradients
        return f"{cores} cores are available: {as_option('threads', most_threads)} trains faster"
    most = most_processes(options, batch_size, cores // max(1, threads))
    if most == 1:
        return None
    return (
        f"{cores} cores are available: {as_option('nprocs', most)} trains faster, with {most} "
        "processes"
    )


def fast_conv_threads(options: ThreadOptions) -> int:
    """Return the threads of the fast convolution on this device; 0 for Paddle's own layers.

    Raises DeviceError if the fast convolution is asked for but the device is not a CPU.
    """
    device = paddle.device.get_device()
    if options.fast_conv == "on" and device != "cpu":
        raise DeviceError(
            f"fast_conv is on, but the device is {device}; expected {as_option('device', 'cpu')}, "
            "or auto"
        )
    if options.fast_conv == "off" or device != "cpu":
        return 0
    return options.threads or fast_threads()

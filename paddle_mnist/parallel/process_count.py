"""How many processes and threads a training is worth, and how many it was told to start."""

from typing import Optional

import paddle

from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError, DeviceError
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.parallel.world import started_by_launcher
from paddle_mnist.system.devices import chosen_gpus, fast_threads, gpu_count
from paddle_mnist.system.machine import has_posix_processes, usable_cpus

AT_LEAST = 8  # samples of a batch that are worth a process
WORTH_IT = 20_000  # samples in all; fewer are trained before another process has started


def processes_to_start(config: TrainConfig) -> int:
    """How many processes a configuration asks this one to start; 1: it trains itself.

    Raises ConfigError for what does not go together, DeviceError for GPUs that are not there.
    """
    count = _wanted(config)
    if config.grad_shards:
        ShardSpec(config.grad_shards, world_size=count)  # raises, before a process is started
    return count


def _wanted(config: TrainConfig) -> int:
    if started_by_launcher():
        if config.nprocs != 1 or config.gpus:
            raise ConfigError(
                f"nprocs is {config.nprocs or 'auto'}, gpus is {config.gpus}, but this process was "
                "started by Paddle's launch; expected one of the two: give the numbers to launch "
                "(--nproc_per_node, --gpus), or start with plain python"
            )
        return 1
    count = gpu_count()
    if chosen := chosen_gpus(config.gpus, config.nprocs if config.nprocs > 1 else None):
        return len(chosen)
    if config.nprocs > 1 and ":" in config.device:
        raise ConfigError(
            f"device is {config.device!r}, one for {config.nprocs} processes; expected auto or "
            "cpu, and --gpus to choose"
        )
    if config.nprocs:
        if count and config.device != "cpu" and config.nprocs > count:
            raise DeviceError(
                f"nprocs is {config.nprocs}, but Paddle sees {count} GPUs; expected one for each, "
                "or --device cpu"
            )
        return config.nprocs
    return most_processes(config, count if count and config.device != "cpu" else usable_cpus())


def most_processes(config: TrainConfig, places: int) -> int:
    """The most processes that make sense with so many places to run on."""
    if not has_posix_processes():
        return 1
    most = max(1, min(places, config.batch_size // AT_LEAST))
    while config.grad_shards and config.grad_shards % most:
        most -= 1
    return most


def hint(config: TrainConfig, samples: int) -> Optional[str]:
    """One line for who trains so many samples on one of several cores; None where it is no use."""
    most = most_processes(config, usable_cpus() // max(1, fast_conv_threads(config)))
    on_cpu = config.device == "cpu" or (config.device == "auto" and not gpu_count())
    if most == 1 or not on_cpu or started_by_launcher() or samples < WORTH_IT:
        return None
    return f"{usable_cpus()} cores are here: --nprocs {most} trains faster, with {most} processes"


def fast_conv_threads(config: TrainConfig) -> int:
    """Threads of the fast convolution in this process, on its device; 0: Paddle's own layers.

    Raises DeviceError where it is asked for and cannot be had.
    """
    device = paddle.device.get_device()
    if config.fast_conv == "on" and device != "cpu":
        raise DeviceError(
            f"fast_conv is on, but the device is {device}; expected --device cpu, or auto"
        )
    if config.fast_conv == "off" or device != "cpu":
        return 0
    return config.threads or fast_threads()

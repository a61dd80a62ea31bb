"""Is there a Paddle, and which device is there to run on."""

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Callable
from importlib import metadata
from typing import Optional

from paddle_mnist.errors import ConfigError, DeviceError
from paddle_mnist.system import signals
from paddle_mnist.system.machine import usable_cpus

INSTALL = """\
Install one of the two, never both:
  CPU:  pip install paddlepaddle
  GPU:  pip install paddlepaddle-gpu==2.6.2 "numpy<2"   (newer GPU builds for your CUDA: \
https://www.paddlepaddle.org.cn/en/install/quick)"""
INSTALL_XPU = """\
Kunlun XPUs need the build paddlepaddle-xpu for your generation of chips, in place of paddlepaddle:
  https://www.paddlepaddle.org.cn/documentation/docs/zh/hardware_support/xpu/index_cn.html"""
BUILDS = ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu")  # all of them are `paddle`

MOST_THREADS = 4  # of the fast convolution: they take turns with all that is Python's


def require_paddle() -> None:
    """Raise DeviceError, with the lines that install Paddle, unless it can be imported."""
    builds = list(installed_builds())
    if len(builds) > 1:
        raise DeviceError(
            f"{' and '.join(builds)} are installed together, and share their files; "
            f"uninstall all of them, then install one.\n{INSTALL}"
        )
    os.environ.setdefault("GLOG_minloglevel", "1")  # 0 tells of every socket
    try:
        with signals.deferred():  # raised inside, it would pass for a fault of the import
            importlib.import_module("paddle")
        signals.reinstall_handlers()
    except (ImportError, OSError, AttributeError) as error:
        if getattr(error, "name", None) == "paddle":
            raise DeviceError(f"PaddlePaddle is not installed.\n{INSTALL}") from error
        # a wheel that does not fit this machine, this Python, or the packages beside it
        raise DeviceError(
            f"{builds[0] if builds else 'paddle'} is installed but cannot be imported on this "
            f"machine ({error}).\n{INSTALL}"
        ) from error


def installed_builds() -> dict[str, str]:
    """The builds of PaddlePaddle that are installed, by package name, with their versions."""
    versions = {}
    for name in BUILDS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def gpu_count() -> int:
    """The GPUs that Paddle sees."""
    import paddle

    return paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0


def chosen_gpus(gpus: Optional[str], nprocs: Optional[int] = None) -> list[str]:
    """The GPUs that a text such as "0,1" names, one for each process; [] for None or "".

    nprocs: how many processes were asked for; None: as many as there are GPUs named.
    Raises DeviceError where they are not numbers, or Paddle sees no GPU at all; ConfigError where
    there are more or fewer than processes.
    """
    if not gpus:
        return []
    chosen = [gpu.strip() for gpu in gpus.split(",")]
    count = gpu_count()
    if not count or not all(gpu.isdigit() for gpu in chosen):
        raise DeviceError(
            f"gpus is {gpus!r}, and Paddle sees {count} GPUs; expected numbers, as 0,1"
        )
    if nprocs not in (None, len(chosen)):
        raise ConfigError(f"nprocs is {nprocs}, but gpus names {len(chosen)}; expected as many")
    return chosen


def own_device(name: str) -> str:
    """The device of this process, one of several: the GPU that was chosen for it, if there are."""
    import paddle

    gpus = gpu_count()
    return f"gpu:{paddle.distributed.ParallelEnv().device_id}" if gpus and name == "auto" else name


def select_device(name: str = "auto") -> str:
    """Make `name` Paddle's device and return it, as Paddle writes it ("cpu", "gpu:0").

    name: "auto" (the first GPU if there is one, else the CPU), "cpu", "gpu[:N]" or "xpu[:N]".
    Raises DeviceError when there is no such device, never falls back to another.
    """
    import paddle

    gpus = gpu_count()
    if name == "auto":
        name = "gpu:0" if gpus else "cpu"
    if not re.fullmatch(r"cpu|(gpu|xpu)(:\d+)?", name):
        raise DeviceError(f"device is {name!r}; expected auto, cpu, gpu:N or xpu:N")
    kind, _, number = name.partition(":")
    built = {
        "cpu": True,
        "gpu": paddle.is_compiled_with_cuda(),
        "xpu": paddle.is_compiled_with_xpu(),
    }
    if not built[kind]:
        raise DeviceError(
            f"device is {name!r}, but the installed Paddle is built without {kind.upper()}; "
            f"use --device cpu.\n{INSTALL_XPU if kind == 'xpu' else INSTALL}"
        )
    if kind == "gpu" and int(number or 0) >= gpus:
        raise DeviceError(f"device is {name!r}, but Paddle sees {gpus} GPUs; use --device cpu")
    paddle.device.set_device(name)
    return paddle.device.get_device()


def autocast(level: str = "off") -> Callable[[], contextlib.AbstractContextManager]:
    """A function that gives a context, in which the chosen device computes in lower precision.

    level: "off": float32; "O1": bfloat16 where Paddle holds that to be safe and worth it, the
    products of convolutions and linear layers; "O2": everywhere, but for the few operators that
    have no bfloat16.

    Weights, their gradients and the optimizer's state are float32 with each, and are cast when they
    are used: checkpoints are the same, and `paddle.amp.decorate` is not needed. bfloat16, which has
    the range of float32, needs no loss scaling, whose state would be one more thing to be saved;
    float16 is not offered.
    Raises DeviceError where there is no bfloat16: on a CPU Paddle would go on in float32, unsaid.
    """
    import paddle

    if level == "off":
        return contextlib.nullcontext
    device = paddle.device.get_device()
    if not device.startswith("gpu") or not paddle.amp.is_bfloat16_supported():
        raise DeviceError(
            f"amp is {level}, but the device, {device}, has no bfloat16; expected a GPU that has "
            "(NVIDIA's from Ampere on), or --amp off"
        )
    # By default O2 goes back to float32 wherever one input has it, as weights have here.
    told = {"level": level, "dtype": "bfloat16", "use_promote": level == "O1"}
    return functools.partial(paddle.amp.auto_cast, **told)


@functools.cache
def fast_threads() -> int:
    """Threads of the fast convolution, where nobody chose a number.

    This process's share of the cores, if it trains with others on this machine; `MOST_THREADS` at
    most.
    """
    import paddle

    here = paddle.distributed.ParallelEnv()
    host = here.current_endpoint.rpartition(":")[0]
    neighbours = sum(one.rpartition(":")[0] == host for one in here.trainer_endpoints)
    return min(MOST_THREADS, max(1, usable_cpus() // max(1, neighbours)))

"""The installed Paddle, and the devices that it can run on."""

import contextlib
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any, Literal, Optional, cast

from paddle_mnist.errors import ConfigError, DeviceError
from paddle_mnist.system import signals
from paddle_mnist.system.environment import usable_home

INSTALL = """\
Install one of the two, never both:
  CPU:  pip install paddlepaddle
  GPU:  the build for your CUDA, from https://www.paddlepaddle.org.cn/en/install/quick
        (PyPI has an old one: pip install paddlepaddle-gpu==2.6.2 "numpy<2")"""
INSTALL_XPU = """\
Kunlun XPUs need the build paddlepaddle-xpu for your generation of chips, in place of paddlepaddle:
  https://www.paddlepaddle.org.cn/documentation/docs/zh/hardware_support/xpu/index_cn.html"""
BUILDS = ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu")  # each installs `paddle`
# Paddle 2 exports a zlib of its own, which crashes the later import of these.
BEFORE_PADDLE_2 = ("numba",)


def require_paddle(hide_warnings: bool = False) -> None:
    """Raise DeviceError, with the lines that install Paddle, unless it can be imported.

    hide_warnings: of Paddle's C++ code, which also warns when it exports its own softmax.
    """
    builds = installed_builds()
    if len(builds) > 1:
        raise DeviceError(
            f"{' and '.join(builds)} are installed together, and share their files; "
            f"uninstall all of them, then install one.\n{INSTALL}"
        )
    level = "2" if hide_warnings else "1"  # 0 would log every socket
    os.environ.setdefault("GLOG_minloglevel", level)
    if "paddle" not in sys.modules and any(version.startswith("2.") for version in builds.values()):
        for name in BEFORE_PADDLE_2:
            with contextlib.suppress(ImportError):  # if it is missing, the code that uses it raises
                importlib.import_module(name)
    try:
        # A signal's error, raised inside, would look like a broken import.
        with usable_home(), signals.deferred():
            importlib.import_module("paddle")
    except (ImportError, OSError, AttributeError) as error:
        if getattr(error, "name", None) == "paddle":
            raise DeviceError(f"PaddlePaddle is not installed.\n{INSTALL}") from error
        # a wheel that does not fit this machine, this Python, or the packages beside it
        missing = (getattr(error, "name", None) or "paddle").partition(".")[0]
        is_package = isinstance(error, ModuleNotFoundError) and missing != "paddle"
        remedy = f"; pip install {missing}" if is_package else f".\n{INSTALL}"
        raise DeviceError(
            f"{next(iter(builds), 'paddle')} is installed but cannot be imported on this "
            f"machine ({error}){remedy}"
        ) from error


def comes_after_paddle_2(name: str) -> bool:
    """Return whether Paddle 2 was imported before a module, which then crashes."""
    import paddle

    if not paddle.__version__.startswith("2."):
        return False
    modules = list(sys.modules)  # in the order of their imports
    return name not in modules[: modules.index("paddle.base.libpaddle")]


def zlib_is_broken() -> bool:
    """Return whether compressing anything in this process, as PNG does, would end it.

    Paddle 2 exports a zlib of its own. Python's, if it is imported later, mixes that with the
    system's: a segmentation fault (2.6.2; not with 3.3.1).
    """
    return {"paddle", "zlib"} <= sys.modules.keys() and comes_after_paddle_2("zlib")


def require_zlib(what: str) -> None:
    """Raise DeviceError where `zlib_is_broken`. what: the things to compress, in plural."""
    if zlib_is_broken():
        raise DeviceError(
            f"{what} need zlib, which this Paddle breaks if Paddle is imported first; expected "
            "`import zlib` before `import paddle`"
        )


def installed_builds() -> dict[str, str]:
    """Return the versions of the installed builds of PaddlePaddle, by package name."""
    versions = {}
    for name in BUILDS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def gpu_count() -> int:
    """Return the number of GPUs that Paddle sees."""
    import paddle

    return paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0


def device_counts() -> dict[str, int]:
    """Return how many devices Paddle sees of each kind that it is built for, except the CPU.

    Kinds such as "npu" come from plugins (Paddle's custom devices).
    """
    import paddle

    counts = {"gpu": gpu_count()} if paddle.is_compiled_with_cuda() else {}
    if paddle.is_compiled_with_xpu():
        core: Any = paddle.framework.core  # which has this in builds for XPUs
        counts["xpu"] = core.get_xpu_device_count()
    seen = [name.partition(":")[0] for name in paddle.device.get_available_custom_device() or ()]
    kinds = paddle.device.get_all_custom_device_type() or ()
    return {**counts, **{kind: seen.count(kind) for kind in kinds}}


def chosen_gpus(gpus: Optional[str], nprocs: Optional[int] = None) -> list[str]:
    """Parse a list of GPUs such as "0,1", one for each process; [] for None or "".

    nprocs: number of processes requested; None: as many as GPUs.
    Raises DeviceError if they are not numbers, or Paddle sees no GPU; ConfigError if there are more
    or fewer GPUs than processes.
    """
    if not gpus:
        return []
    chosen = [gpu.strip() for gpu in gpus.split(",")]
    count = gpu_count()
    if not count or not all(gpu.isdigit() for gpu in chosen):
        raise DeviceError(
            f"gpus is {gpus!r}, but Paddle sees {count} GPUs; expected numbers such as 0,1"
            + ("" if count else "; without GPUs, use nprocs")
        )
    if nprocs not in (None, len(chosen)):
        raise ConfigError(f"gpus lists {len(chosen)} for {nprocs} processes; expected one for each")
    return chosen


def own_device(name: str) -> str:
    """Return the device of this process, one of several: its own GPU for "auto" if there is one."""
    import paddle

    gpus = gpu_count()
    return f"gpu:{paddle.distributed.ParallelEnv().device_id}" if gpus and name == "auto" else name


def select_device(name: str = "auto") -> str:
    """Select Paddle's device and return its full name, such as "cpu" or "gpu:0".

    name: "auto" (the first GPU if there is one, else the CPU), "cpu", or another kind that Paddle
        reports, with or without a number, as "gpu:0", "xpu" or "npu:1".
    Raises DeviceError if there is no such device; never falls back to another.
    """
    import paddle

    counts = device_counts()
    if name == "auto":
        name = "gpu:0" if counts.get("gpu") else "cpu"
    kind, _, number = name.partition(":")
    is_known = kind in counts and re.fullmatch(r"(:\d+)?", name.removeprefix(kind))
    if name != "cpu" and not is_known:
        expected = ["auto", "cpu", *(f"{kind}:N" for kind in counts)]
        install = {"gpu": f".\n{INSTALL}", "xpu": f".\n{INSTALL_XPU}"}
        built_for = ", ".join(["cpu", *counts])
        raise DeviceError(
            f"device is {name!r}; expected {', '.join(expected)}: the installed Paddle is built "
            f"for {built_for}" + ("" if kind in counts else install.get(kind, ""))
        )
    if name != "cpu" and int(number or 0) >= counts[kind]:
        raise DeviceError(
            f"device is {name!r}, but Paddle sees {counts[kind]} {kind.upper()}s; use device cpu"
        )
    paddle.device.set_device(name)
    return paddle.device.get_device()


def autocast(level: str = "off") -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return a function that makes a context for computing in mixed precision.

    level: "off": float32; "O1": bfloat16 where Paddle considers it safe and worthwhile, in the
    products of convolutions and linear layers; "O2": everywhere but in the few operators that do
    not support it.

    Weights, gradients and the optimizer's state stay float32 at every level, and are cast when they
    are used: checkpoints are the same, and `paddle.amp.decorate` is not needed. bfloat16, which has
    the range of float32, needs no loss scaling, whose state would have to be saved too; float16 is
    not offered.
    Raises DeviceError where bfloat16 is not supported: on a CPU Paddle would silently use float32.
    """
    import paddle

    if level == "off":
        return contextlib.nullcontext
    device = paddle.device.get_device()
    if not device.startswith("gpu") or not paddle.amp.is_bfloat16_supported():
        raise DeviceError(
            f"amp is {level}, but the device, {device}, has no bfloat16; expected a GPU with "
            "bfloat16 (NVIDIA Ampere or newer), or amp off"
        )
    return functools.partial(
        paddle.amp.auto_cast,
        level=cast('Literal["O1", "O2"]', level),
        dtype="bfloat16",
        # By default O2 returns to float32 wherever one input has it, as weights have here.
        use_promote=level == "O1",
    )

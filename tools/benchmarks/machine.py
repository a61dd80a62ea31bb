"""What figures are measured on."""

import contextlib
import os
import platform
import re
from importlib import metadata
from pathlib import Path

from paddle_mnist.system.machine import usable_cpus


def machine() -> dict[str, str]:
    """Return the processor, the number of cores, and the versions of the libraries that matter."""
    versions = {"python": platform.python_version(), "cores": str(usable_cpus())}
    for name in ("paddlepaddle", "numpy", "torch", "lightning", "onnxruntime"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    models = []
    with contextlib.suppress(OSError):  # not on every system
        models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {**versions, "cpu": models[0] if models else platform.machine(), "blas": blas_kernels()}


def blas_kernels() -> str:
    """Return the kernels of NumPy's and SciPy's OpenBLAS, and whether the environment chose them.

    OPENBLAS_CORETYPE, where it is set, may make NumPy slower.
    """
    import numpy  # noqa: F401, whose library is to be looked at
    from threadpoolctl import threadpool_info

    libraries = [info for info in threadpool_info() if info["internal_api"] == "openblas"]
    kernels = " and ".join(sorted({str(info.get("architecture")) for info in libraries}))
    chosen = os.environ.get("OPENBLAS_CORETYPE")
    return f"{kernels or 'no OpenBLAS'}, OPENBLAS_CORETYPE {chosen or 'not set'}"

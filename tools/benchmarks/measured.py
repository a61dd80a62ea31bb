"""The commit, date and machine of a measurement."""

import contextlib
import datetime
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from paddle_mnist.system.environment import usable_cpus

ROOT = Path(__file__).parents[2]


def machine() -> dict[str, str]:
    """Return the versions of the libraries that matter, the processor, the commit and the date."""
    versions = {"python": platform.python_version(), "cores": str(usable_cpus())}
    for name in ("paddlepaddle", "numpy", "torch", "lightning", "onnxruntime"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    models = []
    with contextlib.suppress(OSError):  # not on every system
        models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        **versions,
        "cpu": models[0] if models else platform.machine(),
        "blas": _blas_kernels(),
        "commit": commit.stdout.strip() or "unknown",
        "date": datetime.date.today().isoformat(),
    }


def _blas_kernels() -> str:
    """Return the kernels of NumPy's and SciPy's OpenBLAS, and whether the environment chose them.

    OPENBLAS_CORETYPE, where it is set, may make NumPy slower.
    """
    import numpy  # noqa: F401, whose library is to be looked at
    from threadpoolctl import threadpool_info

    libraries = [info for info in threadpool_info() if info["internal_api"] == "openblas"]
    kernels = " and ".join(sorted({str(info.get("architecture")) for info in libraries}))
    chosen = os.environ.get("OPENBLAS_CORETYPE")
    return f"{kernels or 'no OpenBLAS'}, OPENBLAS_CORETYPE {chosen or 'not set'}"

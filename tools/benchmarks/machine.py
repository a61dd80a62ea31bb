"""What figures are measured on."""

import contextlib
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
    return {**versions, "cpu": models[0] if models else platform.machine()}

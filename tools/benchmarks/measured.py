"""The commit, date and machine of a measurement."""

import contextlib
import datetime
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
        "commit": commit.stdout.strip() or "unknown",
        "date": datetime.date.today().isoformat(),
    }

"""The versions and the machine that a result may depend on."""

import os
import platform

import numpy
import paddle

import paddle_mnist


def describe_environment(device: str) -> str:
    """Describe what a result may depend on, a line each.

    Of the environment variables only one: the others may hold secrets.
    """
    described = {
        "python": platform.python_version(),
        "paddle": paddle.__version__,
        "numpy": numpy.__version__,
        "paddle_mnist": paddle_mnist.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }
    return "\n".join(f"{name}: {value}" for name, value in described.items())


def versions() -> dict[str, str]:
    """Return the versions of paddle, numpy and this package, by name."""
    return {
        "paddle": paddle.__version__,
        "numpy": numpy.__version__,
        "package": paddle_mnist.__version__,
    }

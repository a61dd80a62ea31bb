"""Train any Paddle net and resume it bit for bit; with the handwritten-digit tutorial.

Importing it does not import paddle; the first use of a name that needs it does.
"""

import ast
import pkgutil
import warnings
from importlib import import_module
from typing import Any

# Paddle looks for this compiler cache on every import, and warns where there is none; nothing here
# compiles. Set before anything in the package imports Paddle, in each of its processes.
warnings.filterwarnings("ignore", message="No ccache found")
# Its BatchNorm announces a change of Paddle 2 in each process that trains; there is nothing to do.
warnings.filterwarnings("ignore", message="When training, we now always track global mean")

# The module of each public name, as the stub imports it for type checkers and editors.
_STUB = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
_IMPORTS = [node for node in _STUB.body if isinstance(node, ast.ImportFrom)]
_PUBLIC = {alias.name: node.module or "" for node in _IMPORTS for alias in node.names}

# Weights that come with the package: their name, and the function that returns them.
PACKAGED_WEIGHTS = {"pretrained": "paddle_mnist.mnist.pretrained:pretrained_weights"}

__all__ = sorted(_PUBLIC)
__version__ = "1.0.0"


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "TrainConfig":
        from paddle_mnist.system.devices import require_paddle

        require_paddle()
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

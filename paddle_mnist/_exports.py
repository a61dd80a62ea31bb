"""Public names of a package, imported on first use."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from paddle_mnist._moved import MOVED_NAMES, REMOVED_IN


def lazy_exports(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Build a package's `__getattr__`, `__dir__` and `__all__` (PEP 562).

    Importing the package then imports none of its modules, and so no paddle. Names that have moved
    to other packages (`MOVED_NAMES`) still work, with a DeprecationWarning.

    package: its `__name__`. modules: for each public name, the module it comes from.
    """
    moved = MOVED_NAMES.get(package, {})

    def module_getattr(name: str) -> Any:
        if name in moved:
            module, _, new_name = moved[name].partition(":")
            warnings.warn(
                f"{package}.{name} is {module}.{new_name or name} now; version {REMOVED_IN} "
                "removes the old name",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(import_module(module), new_name or name)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    def module_dir() -> list[str]:
        return sorted(modules)

    return module_getattr, module_dir, sorted(modules)

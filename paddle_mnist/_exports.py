"""Names that a package offers, imported when they are first asked for."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, str], moved: Mapping[str, str] = {}
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Build a package's `__getattr__`, `__dir__` and `__all__` (PEP 562).

    Importing the package then imports none of its modules, and so no paddle.

    package: its `__name__`. modules: for each public name, the module it comes from.
    moved: for each name that other packages offer now, the module it comes from; using one warns.
    """

    def module_getattr(name: str) -> Any:
        if name in moved:
            warnings.warn(
                f"{package}.{name} has moved to {moved[name]}.{name}; the old name goes with the "
                "next version",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(import_module(moved[name]), name)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    def module_dir() -> list[str]:
        return sorted(modules)

    return module_getattr, module_dir, sorted(modules)

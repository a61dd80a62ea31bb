"""Examine the code that a caller passes to `fit`: hash it, and find the attributes it assigns."""

import dis
import functools
import hashlib
import re
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Optional

import numpy as np

from paddle_mnist.hidden_state.object_graph import PARTS, is_users, links
from paddle_mnist.options import plain

# The types of values that lead from code to other code. Not objects: training changes them.
_CODE = (types.FunctionType, type, tuple, *PARTS)
# Strings that differ in each process, and so are not settings: paths, dates, identifiers, and the
# names that Paddle generates. Numbers above LARGEST are times and addresses.
_GENERATED = re.compile(r"[/\\]|\d{6}|\d{4}-\d\d|[0-9a-f]{12}|_\d+\.[a-z]+_\d")
_NUMBERS = (int, float, np.integer, np.floating, np.bool_)
MOST_ITEMS, MOST_LETTERS, LARGEST = 16, 80, 10**9  # of a setting


def is_setting(value: Any) -> bool:
    """Return whether a value is None, a number, a short string or a short tuple."""
    if isinstance(value, tuple):
        return len(value) <= MOST_ITEMS and all(map(is_setting, value))
    if isinstance(value, str):
        return len(value) <= MOST_LETTERS and not _GENERATED.search(value)
    return value is None or (isinstance(value, _NUMBERS) and bool(value <= LARGEST))


def own_code(roots: Iterable[Any]) -> list[Any]:
    """Return the functions and classes of some values, and those that their code refers to."""
    pending = [root if isinstance(root, _CODE) else type(root) for root in roots]
    seen: dict[int, Any] = {}
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            if isinstance(value, types.MethodType):
                pending.append(type(value.__self__))
            held = [member for _, member in links(value)]
            pending += [member for member in held if isinstance(member, _CODE)]
    return [value for value in seen.values() if isinstance(value, (types.FunctionType, type))]


def hash_of_code(code: Iterable[Any], state: Collection[str]) -> Optional[str]:
    """Return a hash of those functions and classes that are the caller's; None without any.

    The hash includes the settings that they use, except those with a name in `state`. It ignores
    comments, docstrings, lines and files.
    """
    texts = set()
    for item in code:
        if isinstance(item, types.FunctionType) and is_users(item.__module__):
            texts.add(f"{item.__name__} {list(_instructions(item.__code__))}")
        for (_, name), value in links(item):  # yields none for library code
            if is_setting(value) and name not in state and not name.startswith("__"):
                texts.add(f"{name}={plain(value)!r}")
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:12] if texts else None


def assigned_names(code: Collection[Any]) -> set[str]:
    """Return the names that functions, except constructors, assign: state, and not settings."""
    bases = {base for kind in code if isinstance(kind, type) for base in kind.__mro__}
    members = [*code, *(member for base in bases for member in vars(base).values())]
    functions = [member for member in members if isinstance(member, types.FunctionType)]
    constructors = ("__init__", "__post_init__", "__new__")
    return {
        name
        for function in functions
        if function.__name__ not in constructors
        for name in _assigned(function.__code__)
    }


@functools.lru_cache(maxsize=1024)  # Paddle's layers have the same methods in every call of `fit`
def _assigned(code: types.CodeType) -> frozenset[str]:
    stores = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF")
    return frozenset(operand.strip("'") for name, operand in _instructions(code) if name in stores)


def _instructions(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Yield the instructions of code and of the functions that it defines, with their operands."""
    for entry in dis.get_instructions(code):
        operand = entry.argval
        if isinstance(operand, types.CodeType):
            yield from _instructions(operand)
        elif isinstance(operand, frozenset):  # its order differs between processes
            yield entry.opname, str(sorted(map(repr, operand)))
        else:
            yield entry.opname, repr(operand)

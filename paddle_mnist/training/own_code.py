"""Examine the code that a caller passes to `fit`: hash it, and find the attributes it assigns."""

import dis
import functools
import hashlib
import re
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Optional

import numpy as np

from paddle_mnist.hidden_state.object_graph import child, is_users, steps
from paddle_mnist.options import plain

# What leads from code to further code. Objects are left out: training changes them.
_CODE: tuple[type, ...] = (types.FunctionType, types.MethodType, type, functools.partial, tuple)
_CODE += (staticmethod, classmethod, property, functools.cached_property)
_CODE += (functools._lru_cache_wrapper,)
# What differs in each process and is no setting: paths, dates, identifiers, Paddle's names of
# tensors, and, among numbers, times and addresses.
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
    """Return the functions and classes that values run, and those that the caller's code names."""
    pending = [one if isinstance(one, _CODE) else type(one) for one in roots]
    seen: dict[int, Any] = {}
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            if isinstance(value, types.MethodType):
                pending.append(type(value.__self__))
            held = [child(value, step) for step in steps(value)]
            pending += [one for one in held if isinstance(one, _CODE)]
    return [one for one in seen.values() if isinstance(one, (types.FunctionType, type))]


def hash_of_code(code: Iterable[Any], state: Collection[str]) -> Optional[str]:
    """Return a hash of the caller's functions and classes among some; None if there are none.

    With the settings that they use, except those with a name in `state`, but without comments,
    docstrings, lines and files.
    """
    texts = set()
    for one in code:
        if isinstance(one, types.FunctionType) and is_users(one.__module__):
            texts.add(f"{one.__name__} {list(_instructions(one.__code__))}")
        for step in steps(one):  # none of those of others
            value, name = child(one, step), step[1]
            if is_setting(value) and name not in state and not name.startswith("__"):
                texts.add(f"{name}={plain(value)!r}")
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:12] if texts else None


def assigned_names(code: Collection[Any]) -> set[str]:
    """Return the names that functions and methods assign, which are state and no settings.

    Constructors do not count.
    """
    bases = {base for one in code if isinstance(one, type) for base in one.__mro__}
    members = [*code, *(member for base in bases for member in vars(base).values())]
    functions = [one for one in members if isinstance(one, types.FunctionType)]
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
        elif isinstance(operand, frozenset):  # whose order differs between processes
            yield entry.opname, str(sorted(map(repr, operand)))
        else:
            yield entry.opname, repr(operand)

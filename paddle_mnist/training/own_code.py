"""Examine the code that a caller passes to `fit`: hash it, and find the attributes it assigns."""

import dis
import functools
import hashlib
import types
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy as np
from paddle import nn

from paddle_mnist._arguments import plain
from paddle_mnist.checkpoint.reachable import child, is_users, steps

# What leads from code to further code. Objects are left out: training changes them.
_CODE: tuple[type, ...] = (types.FunctionType, types.MethodType, type, functools.partial)
_CODE += (staticmethod, classmethod, functools._lru_cache_wrapper)
_CONSTRUCTORS = ("__init__", "__post_init__", "__new__")
MOST_ITEMS, MOST_LETTERS = 16, 80  # of a setting


def is_setting(value: Any) -> bool:
    """Return whether a value is a number, a short string, None or a short tuple; not a path."""
    if isinstance(value, tuple):
        return len(value) <= MOST_ITEMS and all(map(is_setting, value))
    if isinstance(value, str):
        return len(value) <= MOST_LETTERS and not {"/", "\\"} & {*value}
    return value is None or isinstance(value, (bool, int, float, np.generic))


def hash_of_code(roots: Iterable[Any]) -> Optional[str]:
    """Return a hash of the caller's code that values run; None if none of it is the caller's.

    Hashed are functions and classes, the caller's functions and classes that these name, and the
    settings that they use and do not assign; not the lines and files where they are written.
    """
    pending = [one if isinstance(one, _CODE) else type(one) for one in roots]
    seen: dict[int, Any] = {}
    texts, settings, assigned = set(), set(), set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, types.MethodType):
            pending.append(type(value.__self__))
        if isinstance(value, types.FunctionType) and is_users(value.__module__):
            texts.add(f"{value.__name__} {list(_instructions(value.__code__))}")
            assigned |= _assigned(value)
        for step in steps(value):
            found = child(value, step)
            if is_setting(found) and not str(step[1]).startswith("__"):
                settings.add((step[1], repr(plain(found))))
            elif isinstance(found, (*_CODE, tuple)):
                pending.append(found)
    if not texts:
        return None
    used = sorted(str(setting) for setting in settings if setting[0] not in assigned)
    digest = hashlib.sha256("\n".join([*sorted(texts), *used]).encode()).hexdigest()
    return digest[:12]


def assigned_attributes(values: Iterable[Any]) -> set[str]:
    """Return the names of attributes that functions, or methods of objects, assign.

    These are state and no settings; constructors do not count.
    """
    functions = {value for value in values if isinstance(value, types.FunctionType)}
    for base in {base for value in values for base in type(value).__mro__} - {nn.Layer, object}:
        methods = {name: one for name, one in vars(base).items() if name not in _CONSTRUCTORS}
        functions |= {one for one in methods.values() if isinstance(one, types.FunctionType)}
    return {name for function in functions for name in _assigned(function)}


def _assigned(function: types.FunctionType) -> set[str]:
    stored = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF")
    entries = _instructions(function.__code__)
    return {operand.strip("'") for name, operand in entries if name in stored}


def _instructions(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Yield the instructions of code and of the functions that it defines, with their operands."""
    for entry in dis.get_instructions(code):
        operand = entry.argval
        if isinstance(operand, types.CodeType):
            yield "function", operand.co_name
            yield from _instructions(operand)
        elif isinstance(operand, frozenset):  # whose order differs between processes
            yield entry.opname, str(sorted(map(repr, operand)))
        else:
            yield entry.opname, repr(operand)

"""Arguments as callers have them: NumPy's numbers, ranges, arrays and paths, made Python's own."""

import functools
import inspect
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import numpy as np

Called = TypeVar("Called", bound=Callable[..., Any])

PLAIN_TYPES = (bool, int, float, str, Path, type(None), Ellipsis)
CONTAINERS = (Union, Collection, Iterable, Sequence, list, tuple)


def plain(value: Any) -> Any:
    """Return NumPy's numbers, ranges, arrays and paths as plain numbers, lists and strings.

    Also those in lists, tuples and dicts; anything else is returned as it is.
    """
    if isinstance(value, np.floating):
        return float(value)  # item() of a long double is one still
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, Mapping):
        return {plain(key): plain(entry) for key, entry in value.items()}
    return value


def accepts_numpy(called: Called) -> Called:
    """Let a function or a class take what `plain` converts, wherever its annotations are plain.

    Plain are numbers, truth values, strings, paths, and lists of them; other arguments, such as
    data, are passed on as they are. So is a `Path` where one is expected.
    """
    function: Callable[..., Any] = called
    if isinstance(called, type):
        function = type.__getattribute__(called, "__init__")
    parameters = inspect.signature(function).parameters
    converters = {
        name: _path_or_plain if _names(parameter.annotation, Path) else plain
        for name, parameter in parameters.items()
        if _is_plain(parameter.annotation)
    }

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        names = itertools.chain(parameters, itertools.repeat(""))
        return function(
            *(converters.get(name, _unchanged)(value) for name, value in zip(names, args)),
            **{name: converters.get(name, _unchanged)(value) for name, value in kwargs.items()},
        )

    if not isinstance(called, type):
        return cast(Called, wrapper)
    type.__setattr__(called, "__init__", wrapper)
    return called


def _unchanged(value: Any) -> Any:
    return value


def _path_or_plain(value: Any) -> Any:
    return Path(value) if isinstance(value, os.PathLike) else plain(value)


def _is_plain(annotation: Any) -> bool:
    """Return whether an annotation allows for nothing but numbers, strings, and lists of them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_plain(arguments[0])
    if origin in CONTAINERS:
        return all(map(_is_plain, arguments))
    return origin is Literal or annotation in PLAIN_TYPES


def _names(annotation: Any, kind: type) -> bool:
    """Return whether a type is among those that an annotation allows for."""
    return annotation is kind or any(_names(one, kind) for one in get_args(annotation))

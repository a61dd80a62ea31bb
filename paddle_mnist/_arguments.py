"""Arguments as callers have them: NumPy's numbers, ranges, arrays and paths, made Python's own."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np


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

"""Put a batch sampler where it stands at the beginning of an epoch.

Paddle's own samplers draw from NumPy's global generator, or are told the epoch. A sampler of the
caller's own may also keep a generator of its own, or count its epochs.
"""

import copy
import random
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from paddle_mnist.data.seeding import generators_restored

# What a sampler counts and draws with. A dataset, say, is not its state.
KEPT: tuple[type, ...] = (bool, int, float, str, type(None))
KEPT += (np.random.RandomState, np.random.Generator, random.Random)
State = list[dict[str, Any]]  # of a batch sampler, and of the sampler in it


@dataclass
class _History:
    """The past of a batch sampler.

    states: at the beginnings of epochs, by epoch: the first, and the newest. next_epoch: the one
    that it is about to begin; None inside an epoch.
    """

    states: dict[int, State]
    next_epoch: Optional[int] = 0


HISTORY = "_paddle_mnist_history"  # the attribute of a batch sampler that holds it


def set_epoch(part: Any, epoch: int, **place: int) -> None:
    """Call the method `set_epoch` of an object that has one."""
    if hasattr(part, "set_epoch"):
        part.set_epoch(epoch, **place)


def begin_epoch(batch_sampler: Any, epoch: int) -> None:
    """Bring a sampler of the caller's own into its state at the beginning of an epoch.

    Where that is not known, as in a resumed training, it iterates over the epochs before, from the
    state in which it was first seen. After the epoch before it is left as it is.
    """
    is_own = any(map(_is_of_the_callers_own, _parts(batch_sampler)))
    if not is_own or not hasattr(batch_sampler, "__dict__"):
        return
    if HISTORY not in vars(batch_sampler):
        vars(batch_sampler)[HISTORY] = _History({0: _state(batch_sampler)})
    history = vars(batch_sampler)[HISTORY]
    if history.next_epoch != epoch:
        known = max(number for number in history.states if number <= epoch)
        for part, values in zip(_parts(batch_sampler), copy.deepcopy(history.states[known])):
            vars(part).update(values)
        with generators_restored():
            for number in range(known, epoch):
                for part in _parts(batch_sampler):
                    set_epoch(part, number)
                for _ in batch_sampler:
                    pass
    history.states = {epoch: _state(batch_sampler), 0: history.states[0]}
    history.next_epoch = None


def end_epoch(batch_sampler: Any, epoch: int) -> None:
    """Note that a sampler has come to the end of an epoch."""
    history = getattr(batch_sampler, HISTORY, None)
    if history:
        history.next_epoch = epoch + 1


def _parts(batch_sampler: Any) -> list[Any]:
    parts = (batch_sampler, getattr(batch_sampler, "sampler", None))
    return [part for part in parts if hasattr(part, "__dict__")]


def _is_of_the_callers_own(part: Any) -> bool:
    return not type(part).__module__.startswith(("paddle.", "paddle_mnist."))


def _state(batch_sampler: Any) -> State:
    kept = [
        {name: value for name, value in vars(part).items() if isinstance(value, KEPT)}
        for part in _parts(batch_sampler)
    ]
    return copy.deepcopy(kept)

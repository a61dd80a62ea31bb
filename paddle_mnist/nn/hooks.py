"""The mark of hooks that only read, whose layers may be computed in other ways than one by one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from paddle import nn

Hook = TypeVar("Hook", bound=Callable[..., Any])


def read_only(hook: Hook) -> Hook:
    """Mark a hook as one that changes neither inputs nor outputs."""
    vars(hook)["is_read_only"] = True
    return hook


def is_read_only(hook: Callable[..., Any]) -> bool:
    """Return whether a hook says of itself that it changes neither inputs nor outputs."""
    return getattr(hook, "is_read_only", False)


def hooks_of(layers: Sequence[nn.Layer]) -> Iterator[Callable[..., Any]]:
    """Yield the layers' hooks."""
    for layer in layers:
        yield from layer._forward_pre_hooks.values()
        yield from layer._forward_post_hooks.values()

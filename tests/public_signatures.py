"""The signatures of the public names as text, whose diff shows every change of them.

Rendered from the annotations as they are when the package runs, so that an alias that changes shows
wherever it is used; the same text with any Python, NumPy and Paddle.
"""

import collections.abc
import inspect
import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import numpy as np
from conftest import ROOT

import paddle_mnist

PATH = ROOT / "tests/public_signatures.txt"
EMPTY = inspect.Parameter.empty
SPECIAL = "__call__ __enter__ __exit__ __len__ __iter__ __getitem__ __add__ __radd__".split()


def public_signatures() -> str:
    return "".join(f"{line}\n" for name in paddle_mnist.__all__ for line in _entry(name))


def _members(name: str) -> Iterator[tuple[str, Any]]:
    """Yield a public name and, of a class, its public members, with signatures or annotations."""
    value = getattr(paddle_mnist, name)
    own = inspect.signature(value)
    if not isinstance(value, type):
        yield name, own
        return
    yield name, own.replace(return_annotation=EMPTY)
    seen = set(own.parameters)
    for base in value.__mro__:
        if not base.__module__.startswith("paddle_mnist."):
            continue
        members = {**vars(base).get("__annotations__", {}), **vars(base)}
        for member, found in members.items():
            is_public = not member.startswith("_") or member in SPECIAL
            if is_public and member not in seen:
                seen.add(member)
                place = f"{name}.{member}"
                if isinstance(found, property):
                    yield place, inspect.signature(found.fget).return_annotation
                elif isinstance(found, (classmethod, staticmethod)) or inspect.isfunction(found):
                    yield place, _signature(found)
                elif member not in vars(base):
                    yield place, found


def _signature(function: Any) -> inspect.Signature:
    """Return a method's signature as its callers see it."""
    own = inspect.signature(getattr(function, "__func__", function))
    taken = list(own.parameters.values())
    return own.replace(parameters=taken[not isinstance(function, staticmethod) :])


def _entry(name: str) -> Iterator[str]:
    for place, value in _members(name):
        if isinstance(value, inspect.Signature):
            result = value.return_annotation
            arrow = "" if result is EMPTY else f" -> {rendered(result)}"
            lines = [f"    {line}," for line in _parameters(value)]
            yield "\n".join([f"{place}(", *lines, f"){arrow}"]) if lines else f"{place}(){arrow}"
        else:
            yield f"{place}: {rendered(value)}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    names_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not names_only:
            yield "*"
        names_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        note = "" if parameter.annotation is EMPTY else f": {rendered(parameter.annotation)}"
        default = "" if parameter.default is EMPTY else f" = {_default(parameter.default)}"
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        yield f"{stars.get(parameter.kind, '')}{parameter.name}{note}{default}"


def rendered(annotation: Any) -> str:
    """Return an annotation as one would write it."""
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    if annotation in (None, type(None)):
        return "None"
    if annotation is ...:
        return "..."
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return rendered(arguments[0])
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is typing.Union:
        others = [one for one in arguments if one is not type(None)]
        text = ", ".join(map(rendered, others))
        text = text if len(others) == 1 else f"Union[{text}]"
        return text if len(others) == len(arguments) else f"Optional[{text}]"
    if origin is np.ndarray:
        return f"NDArray[{', '.join(map(rendered, get_args(arguments[1])))}]"
    if origin is collections.abc.Callable:
        *taken, result = arguments
        taken = taken[0] if len(taken) == 1 and isinstance(taken[0], list) else taken
        text = "..." if taken == [...] else f"[{', '.join(map(rendered, taken))}]"
        return f"Callable[{text}, {rendered(result)}]"
    if origin is not None:
        return f"{rendered(origin)}[{', '.join(map(rendered, arguments))}]"
    library = getattr(annotation, "__module__", "").partition(".")[0]
    name = getattr(annotation, "__qualname__", None) or str(annotation).rpartition(".")[2]
    is_known = library in ("builtins", "typing", "collections", "pathlib", "paddle_mnist")
    return name if is_known else f"{library}.{name}"


def _default(value: Any) -> str:
    """Return a default value; `...` for an object without a name."""
    text = getattr(value, "__name__", None) or repr(value)
    return "..." if text.startswith("<") else text

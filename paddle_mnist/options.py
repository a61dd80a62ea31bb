"""Options, declared once: as fields of dataclasses that `fit`, YAML and command lines share.

A group of options is a subclass of `Options`, in the subpackage that it concerns. Command lines,
YAML files and checkpoints have the options of all groups under flat names, which the fields declare
(`flat_options`); nothing else lists them. `git grep '= option('` finds the declarations.
"""

import dataclasses
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Optional,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec
import numpy as np
from msgspec import Meta

from paddle_mnist.errors import ConfigError, nearest_name, unknown_name

Count = Annotated[int, Meta(ge=1)]
CountOrZero = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]  # NumPy's limit
Fraction = Annotated[float, Meta(ge=0, lt=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
PathStr = Annotated[str, Meta(min_length=1)]

BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
WORDS_FOR_NONE = ("none", "null")
PLAINER = {  # than the words of msgspec; YAML accepts None, too
    "Expected": "expected",
    "`": "",
    " | ": " or ",
    "null": "None",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
}
OPTION = "option"  # the entry of a field's metadata that makes it an option


class Option(NamedTuple):
    """The declaration of a field of a group of options. See `option`."""

    help: Union[str, Mapping[str, str]]
    flat: Optional[Mapping[str, Mapping[str, Any]]]  # implied values by name; None: the field's
    heading: str
    must_match: bool
    bare: Optional[str]
    parse: Callable[[Any], Any]


def option(
    default: Any = MISSING,
    help: Union[str, Mapping[str, str]] = "",
    *,
    flat: Union[str, Mapping[str, Mapping[str, Any]], None] = None,
    heading: str = "",
    must_match: bool = False,
    bare: Optional[str] = None,
    parse: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Declare a field of a group of options.

    help: the text of `--help`; a mapping by flat name if there are several names.
    flat: its name on command lines, in YAML and in checkpoints; by default that of the field; ""
        if it has none there. Or several names, with the values of other fields that each implies.
    heading: where `--help` lists it; by default under the group's `heading`.
    must_match: whether it decides the result, so that a resumed run may not change it.
    bare: the value if a command line gives the option without one; None: it requires a value.
    parse: converts other ways to write a value, and raises ValueError for an invalid value.
    """
    if bare is None and isinstance(default, bool):
        bare = "true"
    if isinstance(flat, str):
        flat = {flat: {}} if flat else {}
    declared = Option(help, flat, heading, must_match, bare, parse)
    return dataclasses.field(default=default, metadata={OPTION: declared})


class Options:
    """Base class of groups of options, which are dataclasses that check their own fields.

    Raises ConfigError, naming the field, the value and what was expected.
    """

    # The heading of the fields in `--help`; "" for the arguments of `fit`, which are not a group.
    heading = "options"

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        parameters = inspect.signature(cls.__init__).parameters  # a subclass may have its own
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            require_known(kwargs, [*parameters][1:], cls.__name__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field, declared in _declared(type(self)):
            value = plain(getattr(self, field.name))
            label = f"{type(self).__name__}({field.name})" if self.heading else field.name
            object.__setattr__(self, field.name, _convert(value, field.type, declared.parse, label))
        self.check()

    def check(self) -> None:
        """Raise ConfigError for values that exclude each other."""


AnyOptions = TypeVar("AnyOptions", bound=Options)


class FlatOption(NamedTuple):
    """An option under its flat name.

    help: the text of `--help`. implied: values of other fields that the name stands for.
    """

    group: type[Options]
    field: "Field[Any]"
    declared: Option
    help: str
    implied: Mapping[str, Any]

    @property
    def heading(self) -> str:
        return self.declared.heading or self.group.heading

    @property
    def default(self) -> Any:
        """The field's default; None if it has none."""
        return None if self.field.default is MISSING else self.field.default

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may take if they are a fixed list; else an empty tuple."""
        return _choices(self.field.type)

    @property
    def metavar(self) -> str:
        """The placeholder for the value in `--help`: the choices, or its type."""
        if self.choices:
            return f"{{{','.join(self.choices)}}}"
        shown = {bool: "{true,false}", int: "INT", float: "FLOAT", tuple: "LIST", PathStr: "PATH"}
        return next((shown[kind] for kind in _kinds(self.field.type) if kind in shown), "TEXT")

    def read(self, name: str, value: Any) -> Any:
        """Convert a value, perhaps given as text, to the option's type. Raises ConfigError."""
        return _convert(plain(value), self.field.type, self.declared.parse, name)


def flat_options(groups: Iterable[type[Options]]) -> dict[str, FlatOption]:
    """Return the options of some groups by their flat names."""
    return {
        name: FlatOption(
            group,
            field,
            declared,
            declared.help if isinstance(declared.help, str) else declared.help[name],
            implied,
        )
        for group in groups
        for field, declared in _declared(group)
        for name, implied in _flat_names(field, declared).items()
    }


def build_group(group: type[AnyOptions], values: Mapping[str, Any]) -> Optional[AnyOptions]:
    """Build a group from values by flat name; return None if a required value is missing.

    Raises ConfigError for values that exclude each other, or that need the missing one.
    """
    arguments: dict[str, Any] = {}
    options = flat_options([group])
    for name, flat_option in options.items():
        field_name = flat_option.field.name
        if name not in values or (flat_option.implied and values[name] is None):
            continue
        if field_name in arguments:
            names = " and ".join(_flat_names(flat_option.field, flat_option.declared))
            raise ConfigError(f"{names} are given; expected at most one of them")
        arguments |= {field_name: flat_option.read(name, values[name]), **flat_option.implied}
    for field, declared in _declared(group):
        if field.default is MISSING and field.name not in arguments:
            extra = [
                name
                for name, flat_option in options.items()
                if values.get(name) not in (None, flat_option.default)
            ]
            if extra:
                needed = " or ".join(_flat_names(field, declared))
                raise ConfigError(
                    f"{extra[0]} is {values[extra[0]]!r} without {needed}; expected both or neither"
                )
            return None
    return group(**arguments)


def flat_values(groups: Iterable[Any], only_must_match: bool = False) -> dict[str, Any]:
    """Return the values of groups of options by flat name; skip other objects."""
    values = {}
    for group in groups:
        if isinstance(group, Options):
            for name, flat_option in flat_options([type(group)]).items():
                if flat_option.declared.must_match or not only_must_match:
                    is_meant = flat_option.implied.items() <= vars(group).items()
                    values[name] = getattr(group, flat_option.field.name) if is_meant else None
    return values


def _declared(group: type) -> Iterator[tuple["Field[Any]", Option]]:
    """Yield the fields of a class that are options, and their declarations."""
    for field in fields(group):
        if OPTION in field.metadata:
            yield field, field.metadata[OPTION]


def _flat_names(field: "Field[Any]", declared: Option) -> Mapping[str, Mapping[str, Any]]:
    """Return the flat names of a field, and the values that each of them implies."""
    return {field.name: {}} if declared.flat is None else declared.flat


def _convert(value: Any, kind: Any, parse: Callable[[Any], Any], name: str) -> Any:
    """Convert a value, perhaps given as text, to a type. Raises ConfigError."""
    choices = _choices(kind)
    try:
        converted = msgspec.convert(_from_text(parse(value), kind), kind, strict=False)
        if isinstance(converted, float) and not math.isfinite(converted):
            raise ValueError("expected a finite number")
        return converted
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0].partition(", got ")[0]
        if PathStr in _kinds(kind):
            reason = reason.replace("`str` of length >= 1", "`str`").replace("str", "a path")
        for word, plainer in PLAINER.items():
            reason = reason.replace(word, plainer)
        expected = f"expected {' or '.join(map(repr, choices))}" if choices else reason
    except ConfigError:  # from a `parse` that does not show the value
        raise
    except ValueError as error:  # from `parse`
        expected = str(error)
    near = nearest_name(str(value), choices)
    hint = f"; did you mean {near!r}?" if near else ""
    raise ConfigError(f"{name} is {value!r:.80}; {expected}{hint}")


def _from_text(value: Any, kind: Any) -> Any:
    """Convert text where msgspec does not: to None, a bool, a path or a list."""
    kinds = get_args(kind) if get_origin(kind) is Union else (kind,)
    if isinstance(value, bool):  # YAML reads a bare `off` as False
        word = "on" if value else "off"
        return word if word in _choices(kind) else value
    if not isinstance(value, str):
        return value
    if type(None) in kinds and value.lower() in WORDS_FOR_NONE:
        return None
    if bool in kinds:
        return BOOLEANS.get(value.lower(), value)
    if PathStr in kinds:
        return os.path.expanduser(value)
    return split_names(value) if any(get_origin(inner) is tuple for inner in kinds) else value


def _kinds(kind: Any) -> Iterator[Any]:
    """Yield the types that a type is made of, from the outside in."""
    yield get_origin(kind) or kind
    if get_origin(kind) is Annotated:
        yield kind
    if get_origin(kind) in (Union, Annotated):
        for inner in get_args(kind):
            yield from _kinds(inner)


def _choices(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return tuple(word for word in get_args(kind) if isinstance(word, str))
    if get_origin(kind) in (Union, Annotated):
        return tuple(word for inner in get_args(kind) for word in _choices(inner))
    return ()


def split_names(value: Any) -> list[Any]:
    """Split text at commas, as on a command line; convert another collection to a list.

    Raises ValueError for anything else.
    """
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [*value]
    raise ValueError("expected a list")


def require_known(names: Iterable[str], known: Iterable[str], origin: str) -> None:
    """Raise ConfigError for an unknown option, with the nearest known one."""
    known = [*known]
    for name in names:
        if name not in known:
            raise ConfigError(unknown_name(origin, name, known))


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings, with names such as "optimizer.beta1"."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def plain(value: Any) -> Any:
    """Convert NumPy's numbers, arrays, ranges and paths to plain numbers, lists and strings.

    Also inside lists, tuples and dicts. Returns anything else unchanged.
    """
    if isinstance(value, np.floating):
        return float(value)  # `item()` of a long double returns a long double
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

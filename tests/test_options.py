"""Groups of options: what a field declares, flat names and back, and what is refused."""

import inspect
import math
import pickle
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Annotated, Literal, Optional, Union, get_args, get_origin

import numpy as np
import pytest
import yaml
from flat_options import CALLBACKS
from hypothesis import assume, given
from hypothesis import strategies as st

from paddle_mnist import Loading, Processes, Saving, StartFrom, fit
from paddle_mnist._arguments import plain
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist import config
from paddle_mnist.mnist.options import AUGMENT_LIMITS
from paddle_mnist.options import (
    Count,
    Options,
    Positive,
    build_group,
    flat_options,
    flat_values,
    option,
    split_names,
)
from paddle_mnist.training.arguments import GROUPS
from paddle_mnist.training.reporting import PAGES, with_defaults

KINDS = [*dict.fromkeys([*GROUPS.values(), *CALLBACKS, *config.GROUPS.values()])]
NAMES = flat_options(KINDS)

# Values of fields whose type does not tell which are taken.
PARSED = {
    "augment": st.lists(st.sampled_from([*AUGMENT_LIMITS]), unique=True).map(
        lambda names: tuple(f"{name}=0.5" for name in AUGMENT_LIMITS if name in names)
    ),
    "visualdl": st.lists(st.sampled_from(PAGES), unique=True).map(
        lambda names: tuple(name for name in PAGES if name in names)
    ),
}


def values_of(kind):
    """Return a strategy of the values of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Union:
        return st.one_of(*map(values_of, inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        return st.lists(values_of(inner[0]), max_size=3).map(tuple)
    if origin is Annotated:
        limits = inner[1]
        if inner[0] is int:
            return st.integers(limits.ge, (limits.lt or 2**40) - 1)
        if inner[0] is float:
            open_ended = {"exclude_min": limits.ge is None, "exclude_max": limits.lt is not None}
            return st.floats(limits.gt or limits.ge or 0, limits.lt or 1e9, **open_ended)
    plains = {bool: st.booleans(), int: st.integers(0, 9), type(None): st.none()}
    return plains.get(kind, st.text("abc", min_size=1))


def as_text(value):
    """Return what a command line has for a value."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@st.composite
def flat(draw, kind):
    """Draw values of the options of a group by flat name; one for each field."""
    chosen = {}
    for name, one in draw(st.permutations([*flat_options([kind]).items()])):
        value = draw(PARSED.get(name, values_of(one.field.type)))
        if not one.implied or all(NAMES[other].field != one.field for other in chosen):
            chosen[name] = value
    return chosen


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_flat_values_make_a_group_that_has_them(kind, data):
    """From Python, from YAML and from text; a group of one type becomes another's in none."""
    chosen = data.draw(flat(kind))
    try:
        group = build_group(kind, chosen)
    except ConfigError:  # values that exclude each other
        assume(False)
    values = flat_values([group])
    assert {name: values[name] for name in chosen} == chosen
    assert {*values} == {*flat_options([kind])}
    assert all(value is None for name, value in values.items() if name not in chosen)
    from_yaml = yaml.safe_load(yaml.safe_dump({k: plain_list(v) for k, v in values.items()}))
    texts = {name: as_text(value) for name, value in chosen.items()}
    for written in (from_yaml, texts):
        read = {k: NAMES[k].read(k, v) for k, v in written.items() if k in chosen}
        assert read == chosen
        assert {k: type(v) for k, v in read.items()} == {k: type(v) for k, v in chosen.items()}
        assert flat_values([build_group(kind, read)]) == values
    assert flat_values([pickle.loads(pickle.dumps(group))]) == values


def plain_list(value):
    return list(value) if isinstance(value, tuple) else value


def test_every_option_has_one_name_a_help_and_a_default_that_it_takes():
    assert len(NAMES) == sum(len(flat_options([kind])) for kind in KINDS), "a name is used twice"
    for name, one in NAMES.items():
        assert one.declared.help and one.heading, name
        if not one.implied:
            assert one.read(name, one.default) == one.default, name


def test_defaults_of_fit_are_those_of_the_groups():
    parameters = inspect.signature(fit).parameters
    for name, kind in GROUPS.items():
        assert parameters[name].default == (None if name == "start" else kind()), name
    for kind in GROUPS.values():
        assert inspect.signature(fit).parameters.keys().isdisjoint(flat_options([kind])), kind


def test_groups_of_fit_cannot_be_changed_so_that_calls_may_share_them():
    with pytest.raises(FrozenInstanceError):
        Saving().keep_last = 2
    assert {Saving(), Saving(keep_last=3)} == {Saving()}


@dataclass(frozen=True)
class Ovens(Options):
    """A group as anybody could write it."""

    heading = "baking"

    loaves: Count = option(2, "how many at once", must_match=True)
    heat: Positive = option(220.0, "degrees", flat="oven_heat")
    kind: Literal["gas", "wood"] = option("gas", "what burns")
    notes: tuple[str, ...] = option((), "names", parse=split_names)
    light: bool = option(False, "whether it is lit", heading="safety")
    number: Optional[int] = option(None, "which one", flat="")
    place: str = option(
        "home", "where", flat={"at_home": {"is_far": False}, "away": {"is_far": True}}
    )
    is_far: bool = option(False, flat="")

    def check(self):
        if self.light and self.kind == "wood":
            raise ConfigError("light is on with kind 'wood'; expected light off")


FLAT_OVENS = flat_options([Ovens])


def test_a_field_declares_its_names_its_heading_and_its_choices():
    assert [*FLAT_OVENS] == "loaves oven_heat kind notes light at_home away".split()
    headings = {name: one.heading for name, one in FLAT_OVENS.items()}
    assert headings.pop("light") == "safety" and {*headings.values()} == {"baking"}
    assert FLAT_OVENS["kind"].choices == ("gas", "wood") and FLAT_OVENS["loaves"].choices == ()
    assert FLAT_OVENS["light"].declared.bare == "true" and not FLAT_OVENS["kind"].declared.bare
    assert flat_values([Ovens()], only_must_match=True) == {"loaves": 2}
    assert flat_values([3, Ovens(number=3), "x"])["at_home"] == "home"


def test_of_two_names_of_a_field_one_may_be_given():
    assert build_group(Ovens, {"away": "there"}) == Ovens(place="there", is_far=True)
    assert build_group(Ovens, {"away": None, "at_home": "here"}) == Ovens(place="here")
    with pytest.raises(ConfigError, match="at_home and away are given; expected at most one"):
        build_group(Ovens, {"away": "there", "at_home": "here"})
    for start in ({}, {"init_from": None}, {"soften": None, "init_partial": False}):
        assert build_group(StartFrom, start) is None  # which requires a path
    for start, found in (
        ({"soften": "fc"}, "soften is 'fc'"),
        ({"init_partial": True}, "partial is T"),
    ):
        with pytest.raises(ConfigError, match=f"{found}.* without incremental_from or init_from"):
            build_group(StartFrom, start)
    assert build_group(StartFrom, {"init_from": "run"}) == StartFrom("run", weights_only=True)
    assert flat_values([StartFrom("run")]) == {
        "incremental_from": "run",
        "init_from": None,
        "init_partial": False,
        "soften": None,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"loaves": np.int64(3)}, 3),
        ({"loaves": np.array(3)}, 3),
        ({"heat": np.float32(0.5)}, 0.5),
        ({"heat": 3}, 3.0),
        ({"light": np.bool_(True)}, True),
        ({"kind": np.str_("wood")}, "wood"),
        ({"notes": np.array(["a", "b"])}, ("a", "b")),
        ({"notes": "a, b,"}, ("a", "b")),
        ({"number": None}, None),
        ({"number": np.uint8(7)}, 7),
        ({"place": Path("a/b")}, "a/b"),
    ],
    ids=str,
)
def test_a_group_takes_what_callers_have_and_keeps_plain_values(given, expected):
    ((name, _),) = given.items()
    value = getattr(Ovens(**given), name)
    assert value == expected and type(value) is type(expected)


WRONG = [
    # field, value in Python, what the error says; the flat name's value, where text differs
    ("loaves", 0, "0; expected a whole number >= 1"),
    ("loaves", -1, "-1; expected a whole number >= 1"),
    ("loaves", 2.5, "2.5; expected a whole number"),
    ("loaves", True, "True; expected a whole number"),
    ("loaves", None, "None; expected a whole number"),
    ("loaves", "many", "'many'; expected a whole number"),
    ("loaves", [1], "[1]; expected a whole number"),
    ("heat", 0, "0; expected a number > 0"),
    ("heat", math.nan, "nan; expected a number > 0"),
    ("heat", math.inf, "inf; expected a finite number"),
    ("heat", True, "True; expected a number"),
    ("heat", "hot", "'hot'; expected a number"),
    ("kind", "would", "'would'; expected 'gas' or 'wood'; did you mean 'wood'?"),
    ("kind", None, "None; expected 'gas' or 'wood'"),
    ("kind", 3, "3; expected 'gas' or 'wood'"),
    ("notes", 3, "3; expected a list"),
    ("notes", None, "None; expected a list"),
    ("notes", {"a": 1}, "{'a': 1}; expected a list"),
    ("notes", [1], "[1]; expected text"),
    ("light", "maybe", "'maybe'; expected True or False"),
    ("light", None, "None; expected True or False"),
    ("place", 3, "3; expected text"),
]


@pytest.mark.parametrize(("field", "value", "message"), WRONG, ids=str)
def test_what_is_wrong_is_said_in_a_line_with_its_name_and_what_was_expected(field, value, message):
    """In Python by group and field, elsewhere by flat name."""
    name = {"heat": "oven_heat", "place": "away"}.get(field, field)
    with pytest.raises(ConfigError) as in_python:
        Ovens(**{field: value})
    with pytest.raises(ConfigError) as elsewhere:
        FLAT_OVENS[name].read(name, value)
    assert str(in_python.value) == f"Ovens: {field} is {message}"
    assert str(elsewhere.value) == f"{name} is {message}"


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("loaves", "3", 3),
        ("loaves", 3.0, 3),
        ("oven_heat", "1e2", 100.0),
        ("light", "yes", True),
        ("light", "OFF", False),
        ("light", 1, True),
    ],
    ids=str,
)
def test_text_stands_for_numbers_outside_python_only(field, value, read):
    assert FLAT_OVENS[field].read(field, value) == read
    with pytest.raises(ConfigError):
        Ovens(**{FLAT_OVENS[field].field.name: value})


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.lists(st.text())))
def test_any_value_is_read_or_refused_in_a_line(value):
    for name, one in NAMES.items():
        try:
            read = one.read(name, value)
        except ConfigError as error:
            text = str(error)
            assert text.startswith(f"{name} is ") and "; expected " in text and len(text) < 400
            assert "\n" not in text, text
        else:
            assert plain(read) is read or isinstance(read, tuple)
            assert one.read(name, read) == read


def test_values_that_exclude_each_other():
    with pytest.raises(ConfigError, match="light is on with kind 'wood'; expected light off"):
        Ovens(kind="wood", light=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partial": True}, "StartFrom: partial is on without weights_only; expected both"),
        ({"weights_only": True, "soften": "fc"}, "StartFrom: soften is 'fc' with weights_only; "),
    ],
    ids=str,
)
def test_ways_to_start_that_exclude_each_other(options, message):
    with pytest.raises(ConfigError, match=message):
        StartFrom("run", **options)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Loading(shuffle="no"), "Loading: shuffle is 'no'; expected True or False"),
        (lambda: Saving(keep_best=0), "Saving: keep_best is 0; expected True or False"),
        (lambda: Saving(every_seconds=0), "Saving: every_seconds is 0; expected a number > 0"),
        (lambda: Saving(every_steps="3"), "Saving: every_steps is '3'; expected a whole number or"),
        (lambda: Processes("many"), "Processes: number is 'many'; expected a whole number"),
        (lambda: Processes(hang_timeout=None), "Processes: hang_timeout is None; expected a num"),
        (lambda: StartFrom(""), "StartFrom: path is ''; expected text that is not empty"),
    ],
)
def test_what_groups_of_fit_refuse(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
    assert Processes("auto").number == 0


def test_a_callback_of_the_same_class_replaces_the_default():
    kinds = [type(callback).__name__ for callback in with_defaults([])]
    assert kinds == ["Console", "VisualDL", "Figures"]
    own = CALLBACKS[-1](every=7)
    assert with_defaults([own])[0] is own and len(with_defaults([own])) == 3

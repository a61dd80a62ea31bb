"""Options: what fields declare, the forms in which callers have values, and what is refused."""

import inspect
import math
import pickle
import random
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Optional, Union, get_args, get_origin

import numpy as np
import pytest
import yaml
from flat_options import CALLBACKS
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paddle_mnist import EarlyStopping, Saving, StartFrom, TrainConfig, Watch, fit
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist import config
from paddle_mnist.mnist.incremental import Incremental
from paddle_mnist.mnist.options import AUGMENT_LIMITS
from paddle_mnist.options import (
    Count,
    Options,
    Positive,
    build_group,
    flat_options,
    flat_values,
    option,
    plain,
    split_names,
)
from paddle_mnist.training.arguments import GROUPS
from paddle_mnist.training.bundled import PAGES, with_defaults

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
    "lr_schedule": st.just("polynomial"),  # which takes the options of all others
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


class Entry:
    """A path of another class than `pathlib.Path`, as `os.scandir` gives."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


NUMPYS = {bool: np.bool_, int: np.int64, float: np.float64, tuple: np.array}


def in_another_form(value):
    """Return a value as callers of Python may have it: of NumPy, a path, or a list."""
    if isinstance(value, str):
        return random.choice([np.str_, PurePosixPath, Entry])(value)
    if isinstance(value, tuple) and random.random() < 0.5:
        return list(value)
    return value if value in (None, ()) else NUMPYS[type(value)](value)


def as_text(value):
    """Return what a command line has for a value."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@st.composite
def flat(draw, kind):
    """Draw values of the options of a group by flat name; one for each field."""
    chosen = {}
    for name, flat_option in draw(st.permutations([*flat_options([kind]).items()])):
        field = flat_option.field
        value = draw(PARSED.get(name, values_of(field.type)))
        if not flat_option.implied or all(NAMES[other].field != field for other in chosen):
            chosen[name] = value
    return chosen


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_group_keeps_plain_values_in_any_form(kind, data):
    """From Python, NumPy, YAML and text; also as a part of the configuration of a command."""
    chosen = data.draw(flat(kind))
    try:
        group = build_group(kind, chosen)
    except ConfigError:  # values that exclude each other
        assume(False)
    values = flat_values([group])
    assert {name: values[name] for name in chosen} == chosen
    assert {*values} == {*flat_options([kind])}
    assert all(value is None for name, value in values.items() if name not in chosen)
    others = {name: in_another_form(value) for name, value in chosen.items()}
    from_yaml = yaml.safe_load(yaml.safe_dump({k: plain_list(v) for k, v in values.items()}))
    texts = {name: as_text(value) for name, value in chosen.items()}
    assert flat_values([build_group(kind, others)]) == values
    for written in (from_yaml, texts):
        read = {k: NAMES[k].read(k, v) for k, v in written.items() if k in chosen}
        assert read == chosen
        assert {k: type(v) for k, v in read.items()} == {k: type(v) for k, v in chosen.items()}
    assert flat_values([pickle.loads(pickle.dumps(group))]) == values
    if kind in config.GROUPS.values() and kind is not Incremental:  # which needs a start
        try:
            expected = TrainConfig(**chosen)
        except ConfigError:  # with the defaults of other groups
            assume(False)
        assert TrainConfig(**others) == expected and hash(TrainConfig(**others)) == hash(expected)
        assert {name: expected.options[name] for name in chosen} == chosen
        assert TrainConfig.from_mapping(yaml.safe_load(expected.as_yaml())) == expected


def plain_list(value):
    return list(value) if isinstance(value, tuple) else value


def test_options_have_one_name_a_help_and_a_default_that_they_take():
    assert len(NAMES) == sum(len(flat_options([kind])) for kind in KINDS), "a name is used twice"
    for name, flat_option in NAMES.items():
        assert flat_option.declared.help and flat_option.heading, name
        if not flat_option.implied:
            assert flat_option.read(name, flat_option.default) == flat_option.default, name


def test_fit_has_the_defaults_of_its_groups_which_are_frozen():
    parameters = inspect.signature(fit).parameters
    for name, kind in GROUPS.items():
        assert parameters[name].default == (None if name == "start" else kind()), name
        assert parameters.keys().isdisjoint(flat_options([kind])), kind
    with pytest.raises(FrozenInstanceError):
        Saving().keep_last = 2
    assert {Saving(), Saving(keep_last=3)} == {Saving()}


@pytest.mark.parametrize(
    ("written", "number"),
    [(True, 1), (False, 0), ("true", 1), ("Off", 0), ("3", 3), (3, 3), (np.bool_(True), 1)],
)
def test_keep_best_is_a_number_or_a_truth_value(written, number):
    read = NAMES["keep_best"].read("keep_best", written)
    assert read == number and type(read) is int
    assert Saving(keep_best=written).keep_best == number


@pytest.mark.parametrize("wrong", [-1, "-1", 1.5, "some", None])
def test_keep_best_of_another_value_raises_one_line(wrong):
    with pytest.raises(ConfigError, match=r"^keep_best is .*; expected [^\n]*$"):
        NAMES["keep_best"].read("keep_best", wrong)
    with pytest.raises(ConfigError, match=r"^Saving\(keep_best\) is "):
        Saving(keep_best=wrong)


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
FLAT_NAMES = {"heat": "oven_heat", "place": "away"}  # where they are not the field's


def test_field_declares_its_names_its_heading_and_its_choices():
    assert [*FLAT_OVENS] == "loaves oven_heat kind notes light at_home away".split()
    headings = {name: flat_option.heading for name, flat_option in FLAT_OVENS.items()}
    assert headings.pop("light") == "safety" and {*headings.values()} == {"baking"}
    assert FLAT_OVENS["kind"].choices == ("gas", "wood") and FLAT_OVENS["loaves"].choices == ()
    assert FLAT_OVENS["light"].declared.bare == "true" and not FLAT_OVENS["kind"].declared.bare
    assert flat_values([Ovens()], only_must_match=True) == {"loaves": 2}
    assert flat_values([3, Ovens(number=3), "x"])["at_home"] == "home"


def test_field_with_two_names_takes_one_of_them():
    assert build_group(Ovens, {"away": "there"}) == Ovens(place="there", is_far=True)
    assert build_group(Ovens, {"away": None, "at_home": "here"}) == Ovens(place="here")
    for start in ({}, {"init_from": None}, {"init_partial": False}):
        assert build_group(StartFrom, start) is None  # which requires a path
    assert build_group(StartFrom, {"init_from": "run"}) == StartFrom("run", weights_only=True)
    values = flat_values([StartFrom("run")])
    assert (values["incremental_from"], values["init_from"]) == ("run", None)


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("heat", np.float32(0.5), 0.5),
        ("heat", 3, 3.0),
        ("heat", "1e2", 100.0),
        ("loaves", "3", 3),
        ("loaves", 3.0, 3),
        ("notes", "a, b,", ("a", "b")),
        ("place", Path("a/b"), "a/b"),
        ("light", "OFF", False),
        ("light", 1, True),
    ],
    ids=str,
)
def test_field_keeps_a_plain_value_of_its_type(field, given, kept):
    name = FLAT_NAMES.get(field, field)
    for value in (FLAT_OVENS[name].read(name, given), getattr(Ovens(**{field: given}), field)):
        assert value == kept and type(value) is type(kept)


WRONG = [
    # field, value, what the error says
    ("loaves", 0, "0; expected a whole number >= 1"),
    ("loaves", 2.5, "2.5; expected a whole number"),
    ("loaves", True, "True; expected a whole number"),
    ("loaves", np.float64(2.5), "2.5; expected a whole number"),
    ("loaves", np.bool_(True), "True; expected a whole number"),
    ("loaves", "many", "'many'; expected a whole number"),
    ("heat", math.nan, "nan; expected a number > 0.0"),
    ("heat", math.inf, "inf; expected a finite number"),
    ("kind", "would", "'would'; expected 'gas' or 'wood'; did you mean 'wood'?"),
    ("kind", None, "None; expected 'gas' or 'wood'"),
    ("notes", 3, "3; expected a list"),
    ("notes", [1], "[1]; expected text"),
    ("light", "maybe", "'maybe'; expected true or false"),
    ("place", 3, "3; expected text"),
]


@pytest.mark.parametrize(("field", "value", "message"), WRONG, ids=str)
def test_wrong_value_raises_with_its_name_and_the_expected_values(field, value, message):
    name = FLAT_NAMES.get(field, field)
    with pytest.raises(ConfigError) as in_python:
        Ovens(**{field: value})
    with pytest.raises(ConfigError) as elsewhere:
        FLAT_OVENS[name].read(name, value)
    assert str(in_python.value) == f"Ovens({field}) is {message}"
    assert str(elsewhere.value) == f"{name} is {message}"


@settings(max_examples=50)
@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.lists(st.text())))
def test_any_value_is_read_or_raises_in_a_line(value):
    for name, flat_option in NAMES.items():
        try:
            read = flat_option.read(name, value)
        except ConfigError as error:
            text = str(error)
            assert text.startswith(f"{name} is ") and "; expected " in text and len(text) < 400
            assert "\n" not in text, text
        else:
            assert plain(read) is read or isinstance(read, tuple)
            assert flat_option.read(name, read) == read


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Ovens(kind="wood", light=True), "light is on with kind 'wood'; expected light"),
        (lambda: build_group(Ovens, {"away": "a", "at_home": "b"}), "at_home and away are given"),
        (lambda: build_group(StartFrom, {"init_partial": True}), "init_partial is True without"),
        (lambda: StartFrom("run", partial=True), "partial is on without weights_only"),
        (lambda: StartFrom(""), r"^StartFrom\(path\) is ''; expected a path$"),
        (lambda: Ovens(loafs=3), "^Ovens: unknown name 'loafs'; did you mean 'loaves'"),
        (lambda: EarlyStopping(patient=3), "^EarlyStopping: unknown name 'patient'; did you mean"),
        (lambda: Watch(colour=3), "^Watch: unknown name 'colour'; expected every$"),
    ],
)
def test_group_of_values_or_names_that_are_refused_raises(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_callback_replaces_the_default_of_its_class():
    kinds = [type(callback).__name__ for callback in with_defaults([])]
    assert kinds == ["Console", "VisualDL", "Figures"]
    own = CALLBACKS[-1](every=7)
    assert with_defaults([own])[0] is own and len(with_defaults([own])) == 3

"""State hidden anywhere: a run resumes to the same bits, or the state is refused by its name.

An example's name says all that it is: `-k "schedule-deque-loss"` repeats one that fails.
"""

import collections
import functools
import random
from typing import NamedTuple, Optional

import paddle
import pytest
from fit_rows import ProgramError, StopsAt, bits, stop, terminate
from flat_options import grouped
from hiding_places import (
    DRAWN,
    INFLUENCES,
    KINDS,
    OF_DATA,
    PLACES,
    UNSAVABLE,
    Inside,
    State,
    base,
)
from paddle.nn import functional as F
from silence import silent
from stopped_programs import some
from usual_programs import PROGRAMS

from paddle_mnist import Callback, fit, is_rehearsal
from paddle_mnist.errors import ConfigError, StoppedError

# When the state changes, by the step before; the rehearsal sees only what changes always.
ALWAYS = "always"
IN_EVALUATION = "in an evaluation"
STEPS = 12
TIMES = {
    ALWAYS: lambda step: True,
    "from step 6": lambda step: step >= 6,
    "once, after step 7": lambda step: step == 7,
    "in the last epoch": lambda step: step >= 8,
    IN_EVALUATION: lambda step: step in (8, 12),  # of an epoch, until it ends
}


class Example(NamedTuple):
    """A kind of data in a place, what it influences, when it changes, and where the run stops.

    killed: nothing is saved as it ends, so that the run resumes at the step before.
    """

    place: str
    kind: str
    influence: Optional[str]
    time: str
    stops: tuple[int, ...]
    killed: bool

    @property
    def is_saved(self):
        """Whether it must be saved or have no influence; otherwise it may be refused."""
        if self.place in OF_DATA:
            return self.influence is None and self.kind not in DRAWN
        return self.influence is None or self.kind not in UNSAVABLE

    def __str__(self):
        stops = "+".join(map(str, self.stops))
        parts = [self.place, self.kind, self.influence, self.time.replace(" ", "_"), stops]
        return "-".join(map(str, [*parts, "killed" if self.killed else "stopped"]))


def draw_examples(is_late, rounds):
    """Return random examples: in each round all places that may have such state."""
    draw, examples = random.Random(3), []
    places = [place for place in PLACES if not (is_late and place in OF_DATA)]
    kinds = [kind for kind in KINDS if not (is_late and kind in (*DRAWN, *UNSAVABLE))]
    times = [time for time in TIMES if (time != ALWAYS) == is_late]
    for _ in range(rounds):
        for place in draw.sample(places, len(places)):
            # What iterators do in data by a callback, or at an epoch's end, only the log names.
            is_blind = place.startswith("dataset, by") or place == "callback, by epoch"
            possible = [kind for kind in kinds if not (is_blind and kind in UNSAVABLE)]
            influence = draw.choice(INFLUENCES if is_late else [*INFLUENCES, None])
            stops = sorted(draw.sample(range(1, STEPS), 2 if is_late else 1))
            killed = not is_late and draw.random() < 0.5
            kind = draw.choice(possible)
            is_turned_by_callback = ", by " in place  # which an evaluation does not call
            time = draw.choice(
                [t for t in times if t != IN_EVALUATION or not is_turned_by_callback]
            )
            examples.append(Example(place, kind, influence, time, tuple(stops), killed))
    return examples


class Clock(Callback):
    """Knows whether it is time for the state to change, and whether it has changed before."""

    def __init__(self, time):
        self.time = time
        self.is_on = self.has_begun = time == ALWAYS

    def after_step(self, view):
        if not is_rehearsal():
            self.is_on = TIMES[self.time](view.step)
            self.has_begun |= self.is_on

    def after_epoch(self, view):
        self.is_on &= self.time != IN_EVALUATION


def build(example):
    """Return arguments of `fit` for a run whose state changes when it is time."""
    clock = Clock(example.time)
    kind = KINDS[example.kind]
    state = State(kind, example.influence, lambda: clock.is_on, lambda: clock.has_begun)
    values = PLACES[example.place](state)
    return base(**{**values, "callbacks": [clock, *values.get("callbacks", ())]})


def train(output, build, *callbacks, **options):
    """Train as a new process does: `build` builds the arguments of `fit` again."""
    with paddle.utils.unique_name.guard():
        values = {**build(), **options}
        callbacks = [*values.pop("callbacks", ()), *callbacks]
        fixed = {"epochs": 3, "batch_size": 3, "seed": 3, "device": "cpu", "figures": False}
        return fit(
            **grouped(**{**fixed, **values}, callbacks=callbacks, output=output, visualdl=())
        )


def check_resumes(folder, build, stops, killed=False):
    """Stop after each of some steps, resume, and compare with a run that is never stopped."""
    unbroken = train(folder / "unbroken", build)
    options = {"save_every_steps": 1, "save_on_exception": False} if killed else {}
    for step in stops:
        with pytest.raises(StoppedError):
            train(folder / "run", build, StopsAt(step, terminate), **options)
    result = train(folder / "run", build, **options)
    assert result.stopped == "finished" and bits(result) == bits(unbroken)


def refusal_of(folder, build):
    """Return the message of the error that `fit` raises before the first step."""
    with pytest.raises(ConfigError) as refusal:
        train(folder, build)
    assert not list(folder.rglob("*.pdparams"))
    return str(refusal.value)


def names_hidden_state(text):
    return "hidden" in text.lower() or "step.args" in text


@pytest.mark.parametrize(
    "example",
    [
        *some(draw_examples(is_late=False, rounds=8), len(PLACES)),
        *some(draw_examples(is_late=True, rounds=9), 12),
    ],
    ids=str,
)
def test_hidden_state_resumes_to_the_same_bits_or_raises_by_name(example, tmp_path):
    program = functools.partial(build, example)
    # An iterator that is used warns whether or not it has an influence.
    allowed = ["checkpoints do not contain it"] if example.kind in UNSAVABLE else []
    try:
        with silent(*allowed):
            check_resumes(tmp_path, program, example.stops, example.killed)
    except ConfigError:
        assert not example.is_saved, "refused, though it can be saved or has no influence"
        assert names_hidden_state(refusal_of(tmp_path / "refused", program))


@pytest.mark.parametrize("place", OF_DATA)
def test_samples_that_differ_when_read_again_raise_with_the_remedy(place, tmp_path):
    example = Example(place, "Generator", "inputs", ALWAYS, (), False)
    text = refusal_of(tmp_path, functools.partial(build, example))
    assert names_hidden_state(text) and "numpy.random" in text and "seeded" in text


@pytest.mark.parametrize("place", ["optimizer", "model", "step's closure", "callback, by step"])
def test_iterator_that_is_first_used_late_warns_by_name(place, tmp_path, lines):
    example = Example(place, "iterator", "loss", "from step 6", (), False)
    train(tmp_path, functools.partial(build, example))
    assert any(map(names_hidden_state, lines()))


def test_number_in_the_place_of_an_object_warns_by_name_and_resumes(tmp_path, lines):
    """A resume replaces no object, and a checkpoint that says so would be refused."""

    def build():
        def step(model, batch):
            scale = getattr(step.hidden, "total", step.hidden)
            return {"loss": F.cross_entropy(model(batch[0]), batch[1]) * (1 + scale)}

        def replace():
            step.hidden = 0.5

        step.hidden = Inside()
        return base(step=step, loss=None, callbacks=[StopsAt(8, replace)])

    with pytest.raises(ProgramError):
        train(tmp_path, build, StopsAt(10, stop))
    assert any("step.hidden has changed, and checkpoints do not" in line for line in lines())
    assert train(tmp_path, build).stopped == "finished"


def test_containers_whose_own_methods_never_end_resume_to_the_same_bits(tmp_path):
    """Such as `__iter__` of a ring; here, each method that reads raises."""

    def refuse(*_):
        raise AssertionError("a method of the container's class is called")

    names = ("__iter__", "__len__", "items", "keys", "values")

    def build():
        def own(kind, content):
            return type("Ring", (kind,), dict.fromkeys(names, refuse))(content)

        hidden = [own(list, [0.1]), own(dict, {"count": 0.1}), own(collections.deque, [0.1])]
        hidden.append(own(tuple, [own(list, [0.1])]))

        def step(model, batch):
            values = [hidden[0][0], hidden[1]["count"], hidden[2][0], hidden[3][0][0]]
            if model.training:
                for ring, key in zip([*hidden[:3], hidden[3][0]], [0, "count", 0, 0]):
                    ring[key] *= 1.1
            return {"loss": F.cross_entropy(model(batch[0]), batch[1]) * sum(values)}

        return base(step=step, loss=None)

    check_resumes(tmp_path, build, (6, 9))


class Turning(list):
    """A list whose methods count from another first item."""

    first = 0

    def __getitem__(self, index):
        return super().__getitem__((index + self.first) % 4)


class Doubling(dict):
    """A dict that counts what is written, and holds other numbers than it is given."""

    count = 0

    def __setitem__(self, key, value):
        self.count += 1
        super(type(self), self).__setitem__(key, 2 * value)

    def update(self, values):
        for key, value in values.items():
            self[key] = value


class DoublingInOrder(collections.OrderedDict):
    count, __setitem__, update = 0, Doubling.__setitem__, Doubling.update


@pytest.mark.parametrize("kind", [Doubling, DoublingInOrder])
def test_containers_whose_own_methods_change_items_resume_to_the_same_bits(kind, tmp_path):
    def build():
        hidden_list, hidden_dict = Turning([0.1, 0.2, 0.3, 0.4]), kind(number=0.5)

        def step(model, batch):
            if model.training:
                hidden_list[hidden_list.first % 2] *= 1.1
                hidden_list.first += 1
                hidden_dict["number"] *= 0.49
            total = hidden_list[0] + hidden_dict["number"] + 0.01 * hidden_dict.count
            return {"loss": F.cross_entropy(model(batch[0]), batch[1]) * total}

        return base(step=step, loss=None)

    check_resumes(tmp_path, build, (5, 7))
    with_rehearsal, without = (
        train(tmp_path / str(rehearse), build, rehearse=rehearse) for rehearse in (True, False)
    )
    assert bits(with_rehearsal) == bits(without)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_usual_program_resumes_to_the_same_bits(program, tmp_path):
    """Inside the second epoch, and in the third."""
    with silent():
        check_resumes(tmp_path, program, (6, 9))

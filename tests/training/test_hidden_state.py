"""State hidden anywhere: a run resumes to the same bits, or is refused by the state's name.

An example's name says all that it is: `-k "schedule-deque-rate"` repeats one that fails.
"""

import functools
import random
from typing import NamedTuple, Optional

import paddle
import pytest
from fit_rows import ProgramError, StopsAt, bits, stop
from flat_options import grouped
from hiding_places import DRAWN, KINDS, PLACES, UNSAVABLE, task
from silence import silent
from usual_programs import REFUSED, SAVED

from paddle_mnist import Callback, fit, is_rehearsal
from paddle_mnist.errors import ConfigError

STEPS, EPOCHS = 12, 3


class Example(NamedTuple):
    """A kind of data in a place, on what it acts there, and after which step the run stops.

    killed: nothing is saved as it ends, so that the run resumes at the step before.
    """

    place: str
    kind: str
    influence: Optional[str]
    step: int
    killed: bool

    @property
    def is_saved(self):
        """Whether it must be saved or have no influence; else it may be refused."""
        if PLACES[self.place].of_data:
            return self.influence is None and self.kind not in DRAWN
        return self.influence is None or self.kind not in UNSAVABLE

    def __str__(self):
        end = "killed" if self.killed else "stopped"
        return "-".join([self.place, self.kind, str(self.influence), f"{end}{self.step}"])


def draw_examples(rounds=8):
    """Return random examples: all places and nearly all kinds in each round."""
    draw, examples = random.Random(3), []
    for _ in range(rounds):
        kinds = draw.sample([*KINDS], len(KINDS))
        for place, kind in zip(PLACES, kinds):
            influence = draw.choice([*PLACES[place].influences, None])
            step, killed = draw.randint(1, STEPS - 1), draw.random() < 0.5
            examples.append(Example(place, kind, influence, step, killed))
    return examples


EXAMPLES = draw_examples()
FAST = len(PLACES)  # the others before a release


class Started(Callback):
    """Knows whether a step was trained, apart from a rehearsal."""

    def __init__(self):
        self.is_true = False

    def after_step(self, view):
        self.is_true |= not is_rehearsal()


def train(output, build, *callbacks, **options):
    """Train as a new process does: `build` builds the arguments of `fit` anew."""
    with paddle.utils.unique_name.guard():
        values = {**build(), **options}
        callbacks = [*values.pop("callbacks", ()), *callbacks]
        arguments = grouped(
            **values,
            callbacks=callbacks,
            epochs=EPOCHS,
            batch_size=3,
            seed=3,
            output=output,
            visualdl=(),
            figures=False,
            device="cpu",
        )
        return fit(**arguments)


def refusal_of(folder, build):
    """Return the text of the error with which a training is refused before its first step."""
    started = Started()
    with pytest.raises(ConfigError) as refusal:
        train(folder, build, started)
    assert not started.is_true and not list(folder.rglob("*.pdparams"))
    return str(refusal.value)


def check_resumes(folder, build, step, killed):
    unbroken = train(folder / "unbroken", build)
    options = {"save_every_steps": 1, "save_on_exception": False} if killed else {}
    with pytest.raises(ProgramError):
        train(folder / "run", build, StopsAt(step, stop), **options)
    result = train(folder / "run", build, **options)
    assert result.stopped == "finished" and bits(result) == bits(unbroken)


@pytest.mark.parametrize(
    "example",
    [*EXAMPLES[:FAST], *(pytest.param(one, marks=pytest.mark.release) for one in EXAMPLES[FAST:])],
    ids=str,
)
def test_hidden_state_resumes_to_the_same_bits_or_raises_by_name(example, tmp_path):
    build = functools.partial(task, example.place, example.kind, example.influence)
    try:
        with silent():
            check_resumes(tmp_path, build, example.step, example.killed)
    except ConfigError:
        assert not example.is_saved, "refused, though it can be saved or has no influence"
        text = refusal_of(tmp_path / "refused", build).lower()
        assert "hidden" in text or "step.args" in text


@pytest.mark.parametrize("place", [place for place in PLACES if PLACES[place].of_data])
def test_samples_that_differ_when_read_again_raise(place, tmp_path):
    assert "hidden" in refusal_of(tmp_path, functools.partial(task, place, "int", "inputs"))


# In `make test` inside the second epoch; before a release all programs, also killed in the third.
OF_ITS_OWN_KIND = (
    "a net frozen between its steps",
    "optimizer named before its discriminator",
    "parameters outside the model",
    "a parameter by itself",
    "teacher made before the training",
    "rate set by a callback",
    "dropout changed by a callback",
    "layers frozen by a callback",
    "patience that begins anew",
    "state that an epoch's end resets",
    "array in two places",
    "objects without influence",
    "memory of named tuples",
    "optimizer by the id of parameters",
)


@pytest.mark.parametrize(
    ("program", "step", "killed"),
    [
        *((program, 6, False) for program in OF_ITS_OWN_KIND),
        *(pytest.param(program, 9, True, marks=pytest.mark.release) for program in SAVED),
    ],
)
def test_usual_program_resumes_to_the_same_bits(program, step, killed, tmp_path):
    with silent():
        check_resumes(tmp_path, SAVED[program], step, killed)


@pytest.mark.parametrize("program", REFUSED)
def test_usual_program_with_what_cannot_be_saved_raises_by_name(program, tmp_path):
    build, word = REFUSED[program]
    assert word in refusal_of(tmp_path, build)

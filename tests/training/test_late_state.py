"""State that changes for the first time long after the rehearsal: it comes back, or is named."""

import functools
import logging

import numpy as np
import paddle
import pytest
from fit_rows import ProgramError, StopsAt, stop
from flat_options import grouped
from hiding_places import DRAWN, KINDS, PLACES, UNSAVABLE, Kind, task
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_mnist import Callback, fit, is_rehearsal
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import ConfigError

EPOCHS, STEPS = 3, 12
TIMES = {
    "from step 6": lambda step: step >= 6,
    "once, after step 7": lambda step: step == 7,
    "in the last epoch": lambda step: step >= 8,
}
CASES = [(place, details.influences[0]) for place, details in PLACES.items() if not details.of_data]


class Clock(Callback):
    """Knows whether it is time for the state to change."""

    def __init__(self, is_time):
        self.is_time, self.is_on = is_time, False

    def after_step(self, view):
        self.is_on = not is_rehearsal() and self.is_time(view.step)


def late(kind, clock):
    """Return a kind of state that does not change before its time."""
    return Kind(kind.make, lambda value: kind.turn(value) if clock.is_on else (value, 0.0))


def train(output, *stops, place, kind, influence, time):
    """Train as a new process does."""
    clock = Clock(TIMES[time])
    with paddle.utils.unique_name.guard():
        KINDS["late"] = late(KINDS[kind], clock)
        try:
            values = task(place, "late", influence)
        finally:
            del KINDS["late"]
        callbacks = [clock, *values.pop("callbacks", ()), *stops]
        fixed = {"epochs": EPOCHS, "batch_size": 3, "seed": 3, "device": "cpu", "figures": False}
        return fit(**grouped(**values, **fixed, callbacks=callbacks, output=output, visualdl=()))


def bits(result):
    weights = {name: np.asarray(value).tobytes() for name, value in load(result.weights).items()}
    return {**weights, **result.metrics}


def check(folder, case, kind, time, stops, warned):
    """Stop after each of some steps, resume, and compare; or find the state named in a warning."""
    program = functools.partial(train, place=case[0], kind=kind, influence=case[1], time=time)
    try:
        unbroken = program(folder / "unbroken")
    except ConfigError as error:
        assert "hidden" in str(error).lower() or "step.args" in str(error)
        return
    if kind in UNSAVABLE and any("hidden" in line.lower() or "args" in line for line in warned()):
        return
    for step in stops:
        with pytest.raises(ProgramError):
            program(folder / "run", StopsAt(step, stop))
    assert bits(program(folder / "run")) == bits(unbroken)


def run_case(tmp_path_factory, case, kind, time, stops):
    log, lines = logging.getLogger("paddle_mnist"), []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    try:
        check(tmp_path_factory.mktemp("late"), case, kind, time, sorted(stops), lambda: lines)
    finally:
        log.removeHandler(handler)


def late_states(examples):
    def decorate(test):
        return settings(max_examples=examples, derandomize=True)(
            given(
                case=st.sampled_from(CASES),
                kind=st.sampled_from([one for one in KINDS if one not in DRAWN]),
                time=st.sampled_from(list(TIMES)),
                stops=st.sets(st.integers(1, STEPS - 1), min_size=2, max_size=2),
            )(test)
        )

    return decorate


@late_states(12)
def test_state_that_first_changes_late_resumes(tmp_path_factory, case, kind, time, stops):
    run_case(tmp_path_factory, case, kind, time, stops)


@pytest.mark.slow
@pytest.mark.release
@late_states(200)
def test_state_that_first_changes_late_resumes_in_many_examples(
    tmp_path_factory, case, kind, time, stops
):
    run_case(tmp_path_factory, case, kind, time, stops)

"""The exceptions of the package."""

import copy
import pickle

import pytest

from paddle_mnist import errors

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.PaddleMnistError)
]
ARGUMENTS = {"ProcessError": ("rank 1 ended with SIGKILL", 137), "StoppedError": (15,)}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_errors_pass_between_processes_whole(kind):
    error = kind(*ARGUMENTS.get(kind.__name__, ("it is missing",)))
    for received in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(received) is kind
        assert (str(received), received.exit_code) == (str(error), error.exit_code)


def test_summary_marks_where_a_long_error_is_cut():
    assert errors.summary(ValueError("x" * 300)) == f"ValueError: {'x' * 300}"
    assert errors.summary(ValueError("x" * 301)) == f"ValueError: {'x' * 300} ..."


def test_summary_joins_a_line_that_introduces_the_next():
    text = "it may be because:\n  You call backward twice.\n\n  [Hint: one]\n"
    expected = "ValueError: it may be because: You call backward twice"
    assert errors.summary(ValueError(text)) == expected

"""The exceptions of the package."""

import copy
import pickle

import pytest

from paddle_mnist import errors

CLASSES = [one for one in vars(errors).values() if isinstance(one, type)]
ARGUMENTS = {"ProcessError": ("rank 1 ended with SIGKILL", 137), "StoppedError": (15,)}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("through", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy])
def test_errors_pass_between_processes_whole(kind, through):
    error = kind(*ARGUMENTS.get(kind.__name__, ("it is missing",)))
    received = through(error)
    assert type(received) is kind
    assert (str(received), received.exit_code) == (str(error), error.exit_code)

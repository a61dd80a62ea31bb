"""Programs of `fit_rows` that are stopped: random examples, and how to run them.

As a script it trains an example, which kills it: stopped_programs.py EXAMPLE OUTPUT
"""

import functools
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import NamedTuple, Optional

import forked
import paddle
import pytest
from fit_rows import ROWS, UNDIVIDED, ProgramError, StopsAt, stop, train

from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import PaddleMnistError, StoppedError

# SIGINT stops a script in `test_fit_script`: a shell's background job, as tests may be, ignores it.
STOPS = ("SIGTERM", "exception", "SIGKILL")


class Example(NamedTuple):
    """A program, how it is stopped after which step, and how its batches are read and divided."""

    program: str
    stop: str
    step: int
    workers: int = 0
    shards: Optional[int] = None

    def __str__(self):
        parts = [f"step{self.step}", f"{self.workers}workers", f"{self.shards or 1}shards"]
        return "-".join([self.program, self.stop, *parts])


def draw_examples(rounds=6):
    """Return random examples: all programs in each round, every time stopped in another way."""
    draw, programs, examples = random.Random(56), [*ROWS], {}
    for number in range(rounds):
        for program in draw.sample(programs, len(programs)):
            how = STOPS[(number + programs.index(program)) % len(STOPS)]
            step = draw.randint(1, 8)
            workers = 2 if draw.random() < 0.05 else 0
            shards = None if program == "endless batches" else draw.choice([None, 2])
            example = Example(program, how, step, workers, shards)
            examples[str(example)] = example
    return [*examples.values()]


def draw_for_two_processes():
    """Return examples that end with an exception: a signal would end the test, too."""
    draw = random.Random(56)
    return [
        Example(program, "exception", draw.randint(1, 8), shards=2)
        for program in draw.sample([*ROWS], len(ROWS))
        if program not in UNDIVIDED
    ]


def some(values, count):
    """Return the values of a parameter: so many each time, all of them before a release."""
    return [
        *values[:count],
        *(pytest.param(value, marks=pytest.mark.release) for value in values[count:]),
    ]


def call(example, output, *callbacks):
    """Train a program, or resume it, by the same call as before."""
    options = {"num_workers": example.workers, "grad_shards": example.shards}
    return train(example.program, output, save_every_steps=3, callbacks=callbacks, **options)


def call_until_stopped(example, output):
    if example.stop == "exception":
        end = stop
    else:
        end = functools.partial(os.kill, os.getpid(), getattr(signal, example.stop))
    call(example, output, StopsAt(example.step, end))


def stop_example(example, output):
    """Train in this process until it is stopped. To be killed, train in another one."""
    if example.stop == "SIGKILL":
        done = forked.run([sys.executable, __file__, json.dumps(example), output])
        assert done.returncode == -signal.SIGKILL, done.stderr
        return
    with pytest.raises((ProgramError, StoppedError)) as stopped:
        call_until_stopped(example, output)
    if example.stop != "exception":
        assert stopped.value.code == 128 + getattr(signal, example.stop)
    is_whole = example.stop != "exception"  # which comes inside the step
    saved = CheckpointStore(output / "checkpoints").newest_step()
    assert saved == example.step - (not is_whole)


def in_two_processes(folder, examples, refused):
    """Stop examples and resume them, as one of two processes; write why others are refused."""
    for example in examples:
        with pytest.raises(ProgramError):
            call_until_stopped(example, Path(folder, str(example)))
        call(example, Path(folder, str(example)))
    for program in refused:
        with pytest.raises(PaddleMnistError) as refusal:
            train(program, Path(folder, program), grad_shards=2)
        rank = paddle.distributed.get_rank()
        Path(folder, f"{program} {rank}.txt").write_text(str(refusal.value))


if __name__ == "__main__":
    call_until_stopped(Example(*json.loads(sys.argv[1])), sys.argv[2])

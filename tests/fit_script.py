"""A script of a user's own, which trains with `fit` and is stopped, killed and launched.

    fit_script.py [--OPTION=NUMBER ...] OUTPUT [STEP:SIGNAL ...]

It sends itself each signal after that step, as 7:SIGTERM, but only once in a run.
"""

import functools
import os
import signal
import sys
from pathlib import Path

from fit_rows import StopsAt, train
from paddle.nn import functional as F


def send_once(name, mark):
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), getattr(signal, name))


def loss(outputs, labels):
    assert "a" in {"a", "b", "c", "d", "e"}  # a set, whose order differs between processes
    return F.cross_entropy(outputs, labels)


def main(output, *signals, **options):
    callbacks = []
    for text in signals:
        step, name = text.split(":")
        mark = Path(output).parent / f"sent_at_{step}"
        callbacks.append(StopsAt(int(step), functools.partial(send_once, name, mark)))
    options = {"save_every_steps": 3, "grad_shards": 2, **options}
    result = train("BatchNorm", output, callbacks=callbacks, loss=loss, **options)
    print(f"{result.stopped} {result.metrics['valid/loss']!r}")


if __name__ == "__main__":
    words, numbers = sys.argv[1:], {}
    while words[0].startswith("--"):
        name, _, number = words.pop(0)[2:].partition("=")
        numbers[name] = int(number)
    main(*words, **numbers)

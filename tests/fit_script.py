"""A script of a user's own, which trains with `fit` and is stopped, killed and launched."""

import os
import signal
import sys
from pathlib import Path

import paddle
from fit_rows import Points, StopsAt, momentum, with_batch_norm
from flat_options import grouped

from paddle_mnist import fit, is_rehearsal


class SendsOnce(StopsAt):
    """Sends a signal to its process after a step, but only once in a run."""

    def __init__(self, step, signum, folder):
        self.step, self.signum, self.mark = step, signum, Path(folder, f"sent_at_{step}")

    def after_step(self, view):
        if view.step == self.step and not is_rehearsal() and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), self.signum)


def main(output, *signals, **options):
    """signals: "STEP:NAME", as 7:SIGTERM."""
    callbacks = []
    for text in signals:
        step, name = text.split(":")
        callbacks.append(SendsOnce(int(step), getattr(signal, name), Path(output).parent))
    options = grouped(
        model=with_batch_norm,
        train=Points(),
        valid=Points(),
        loss=paddle.nn.functional.cross_entropy,
        optimizer=momentum,
        metrics={"acc": paddle.metric.Accuracy()},
        epochs=2,
        batch_size=8,
        seed=5,
        output=output,
        save_every_steps=3,
        grad_shards=2,
        device="cpu",
        visualdl=(),
        figures=False,
        callbacks=callbacks,
        **options,
    )
    result = fit(**options)
    print(f"{result.stopped} {result.metrics['valid/loss']!r}")


if __name__ == "__main__":
    words, numbers = sys.argv[1:], {}
    while words[0].startswith("--"):
        name, _, number = words.pop(0)[2:].partition("=")
        numbers[name] = int(number)
    main(*words, **numbers)

#!/usr/bin/env python
"""Count the functions and modules of the package that a step and a save call.

A small net with state of its own trains in one process, without shards. The step is any step that
saves nothing; the save is one inside an epoch, from the question whether it is due until it is on
the disk. `--list` prints the names.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np
import paddle
from paddle import nn

import paddle_mnist
from paddle_mnist import Callback, Console, Figures, Saving, VisualDL, fit, is_rehearsal
from paddle_mnist.commands import Parser, run_command, run_script

FOLDER = os.path.dirname(paddle_mnist.__file__) + os.sep
SAVE_AT, STEP_AT = 6, 8
Called = set[tuple[str, str]]  # modules and functions


class Noisy:
    """A step with a generator of its own, which checkpoints save."""

    def __init__(self) -> None:
        self.random = np.random.RandomState(1)

    def __call__(self, model: nn.Layer, batch: Any) -> dict[str, Any]:
        inputs, labels = batch
        noise = paddle.to_tensor(self.random.rand(*inputs.shape).astype("float32"))
        return {"loss": nn.functional.cross_entropy(model(inputs + noise), labels)}


class Traces(Callback):
    """Records what is called in the two steps, below the loop over the steps."""

    def __init__(self) -> None:
        self.step: Called = set()
        self.save: Called = set()

    def on_epoch_start(self, view: Any) -> None:
        if not is_rehearsal():
            sys.setprofile(self.record)

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(FOLDER):
            return
        callers, above = [], frame.f_back
        while above and above.f_code.co_name != "train_epoch":
            callers.append(above)
            above = above.f_back
        if above is None:
            return
        done = above.f_locals["self"].state.step
        own = (code.co_filename.removeprefix(FOLDER), code.co_qualname)
        outermost = (callers or [frame])[-1].f_code.co_qualname
        is_save = outermost.endswith("Checkpointer.after_step")
        if is_save and done == SAVE_AT:
            self.save.add(own)
        elif not is_save and done in (STEP_AT - 1, STEP_AT):
            self.step.add(own)


def trace() -> Traces:
    """Train, and return what was called."""
    random = np.random.RandomState(0)
    points = random.rand(120, 4).astype("float32")
    data = [*zip(points, (points.sum(1, keepdims=True) > 2).astype("int64"))]
    traces = Traces()
    logging.getLogger("paddle_mnist").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        fit(
            lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1D(4), nn.Linear(4, 2)),
            data,
            step=Noisy(),
            optimizer=lambda parameters: paddle.optimizer.Adam(0.01, parameters=parameters),
            epochs=1,
            batch_size=8,
            output=folder,
            device="cpu",
            saving=Saving(every_steps=SAVE_AT),
            callbacks=[traces, Console(every=100), Figures(draw=False), VisualDL(())],
        )
        sys.setprofile(None)
    return traces


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="tools/called.py", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the functions, by module")
    args = parser.parse_args(argv)
    traces = trace()
    for name, called in (("step", traces.step), ("save", traces.save)):
        modules = {module for module, _ in called}
        print(f"{name}: {len(called)} functions in {len(modules)} modules")
        for module in sorted(modules) if args.list else ():
            print(f"  {module}: {', '.join(sorted(f for m, f in called if m == module))}")
    return 0


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, prints_data=True))

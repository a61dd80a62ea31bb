#!/usr/bin/env python
"""Count the functions and modules of the package that a step, a save and a resume call.

A small net with state of its own trains in one process, without shards. The step is any step that
saves nothing; the save is one inside an epoch, from the question whether it is due until it is on
the disk. `--list` prints the names.

The resume is that of a net with two optimizers and an average of its weights, from the moment when
the run directory is open until the first step. It enters a module where a function of another one
calls it, while no function of the former is running, with something that a resume changes: the
training, or its net, optimizers, schedule, average or other state. What callbacks and walks over
all objects call does not count. A module that is entered from two others is entered twice: those
who read a resume from top to bottom come to it twice. `--list` prints the modules in order, and
from where they are entered.
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from types import FrameType
from typing import Any, Optional

import paddle
from faults import BATCH, Augments, Points, with_batch_norm

import paddle_mnist
from paddle_mnist import (
    Callback,
    Console,
    Figures,
    Numerics,
    Saving,
    VisualDL,
    fit,
    is_rehearsal,
)
from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import StoppedError
from paddle_mnist.training.callbacks import Training

FOLDER = os.path.dirname(paddle_mnist.__file__) + os.sep
SAVE_AT, STEP_AT = 6, 8
WALKS = ("hidden_state/object_paths.py", "hidden_state/snapshot.py")  # these examine all objects
Called = set[tuple[str, str]]  # modules and functions


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


class Twice(Augments):
    """A step with an optimizer of its own, beside that of `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = paddle.create_parameter([1], "float32")
        self.own = paddle.optimizer.Momentum(0.01, parameters=[self.scale])

    def __call__(self, model: paddle.nn.Layer, batch: Any) -> dict[str, Any]:
        values = super().__call__(model, (batch[0] * self.scale.detach(), batch[1]))
        (self.scale**2).sum().backward()
        self.own.step()
        self.own.clear_grad()
        return values


class Stops(Callback):
    """Stops the first run; the next one, which resumes, calls `begin` and `end`.

    They are no attributes, which checkpoints would save.
    """

    def after_step(self, view: Any) -> None:
        if view.step == STEP_AT and not is_rehearsal():
            os.kill(os.getpid(), signal.SIGTERM)

    def run_opened(self, training: Training) -> None:
        if training.run.checkpoints.all():
            RESUME.begin(training)

    def before_first_step(self, training: Training) -> None:
        sys.setprofile(None)


class Resume:
    """Records which modules a resume enters: by name, in order, with those that call them."""

    def __init__(self) -> None:
        self.entered: dict[str, dict[str, None]] = {}
        self.parts: list[Any] = []

    def begin(self, training: Training) -> None:
        names = ("model", "optimizer", "schedule", "average", "extra")
        others = training.extra.optimizers.values()
        self.parts = [training, *(getattr(training, name) for name in names), *others]
        sys.setprofile(self.record)

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not is_ours(frame):
            return
        code, values = frame.f_code, frame.f_locals
        given = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
        if not any(value is part for value in given for part in self.parts):
            return
        modules = list[str]()
        above: Optional[FrameType] = frame
        while above:
            if isinstance(above.f_locals.get("self"), (Callback, Training)):
                return
            if is_ours(above):
                modules.append(above.f_code.co_filename.removeprefix(FOLDER))
            if modules[-1] in WALKS:
                return
            above = above.f_back
        module, *callers = modules
        if callers and module not in callers:
            self.entered.setdefault(module, {})[callers[0]] = None


RESUME = Resume()


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(FOLDER)


def train(step: Augments, folder: str, *callbacks: Callback, **options: Any) -> None:
    logging.getLogger("paddle_mnist").setLevel(logging.ERROR)
    fit(
        with_batch_norm,
        Points(15 * BATCH),
        step=step,
        optimizer=lambda parameters: paddle.optimizer.Adam(0.01, parameters=parameters),
        epochs=1,
        batch_size=BATCH,
        output=folder,
        device="cpu",
        saving=Saving(every_steps=SAVE_AT),
        callbacks=[*callbacks, Console(every=100), Figures(draw=False), VisualDL(())],
        **options,
    )


def trace() -> Traces:
    """Train, and return what a step and a save call."""
    traces = Traces()
    with tempfile.TemporaryDirectory() as folder:
        train(Augments(), folder, traces)
        sys.setprofile(None)
    return traces


def trace_resume() -> dict[str, dict[str, None]]:
    """Stop a run, resume it, and return the modules that this enters, with their callers."""
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(StoppedError):
            train(Twice(), folder, Stops(), numerics=Numerics(ema=0.9))
        train(Twice(), folder, Stops(), numerics=Numerics(ema=0.9))
    return RESUME.entered


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
    entered = trace_resume()
    twice = [module for module, callers in entered.items() if len(callers) > 1]
    print(f"resume: {len(entered)} modules, {len(twice)} entered twice: {', '.join(twice) or '-'}")
    for module, callers in entered.items() if args.list else ():
        print(f"  {module} from {', '.join(callers)}")
    return 0


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, prints_data=True))

"""The time that trainings of `fit` take to save, rehearse a resume, record steps, and stop."""

import os
import random
import resource
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.timing import Timing, config_of, in_own_process, timed_training, train
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session, Turn

SAVE_EVERY, STEPS = 50, 200  # steps between two saves, and of the training
EPOCH = -(-50_000 // 64)  # steps of an epoch of the recipe `default` on MNIST

# ------------------------------------------------------------------ saving


def _save(session: Session) -> Figures:
    """Return the seconds of a step and of a save, which deletes an older checkpoint, too."""
    config = config_of(
        "default",
        data=session.source,
        epochs=STEPS,
        max_steps=STEPS,
        save_every_steps=SAVE_EVERY,
        keep_epochs=False,
        keep_last=1,
        output=str(session.folder / "run"),
    )
    seconds = timed_training(config)
    steps = [step - save for step, save in zip(seconds["step"], seconds["saving"])]
    return {"step": steps, "save": seconds["saving"][SAVE_EVERY - 1 :: SAVE_EVERY]}


def _rows_of_saves(report: Report) -> Rows:
    (seconds,) = report.medians.values()
    steps = {f"after each epoch ({EPOCH} steps)": EPOCH, f"every {SAVE_EVERY} steps": SAVE_EVERY}
    return {
        title: {"share": seconds["save"] / (seconds["save"] + count * seconds["step"])}
        for title, count in steps.items()
    }


def _note_on_saves(report: Report) -> str:
    (seconds,) = report.medians.values()
    save, step = 1000 * seconds["save"], 1000 * seconds["step"]
    return f"One save takes {save:.1f} ms, one step {step:.1f} ms (medians)."


# ------------------------------------------------------------------ rehearsing

RESNET, LARGE = "ResNet-18, 3x32x32, Momentum", "100,000,000 parameters, Adam"
REHEARSED = 3  # steps of a rehearsal


def _rehearsals(session: Session) -> Mapping[str, Turn]:
    steps, width = (3, 50) if session.is_quick else (6, 5_000)
    of_default = {"data": session.source, "train_limit": 6_400}
    trainings = {
        "the recipe `digits`": partial(_train_recipe, "digits", {}),
        "the recipe `default`": partial(_train_recipe, "default", of_default),
        RESNET: partial(_train_net, RESNET, steps, width),
        LARGE: partial(_train_net, LARGE, steps, width),
    }
    return {title: partial(_rehearse, session, call) for title, call in trainings.items()}


def _rehearse(session: Session, training: Callable) -> Figures:
    """Train with and without a rehearsal; return the time and the memory that it adds."""
    without, rehearsed = (
        in_own_process(_measure, training, is_rehearsed, str(session.folder / f"{is_rehearsed}"))
        for is_rehearsed in (False, True)
    )
    shutil.rmtree(session.folder)
    return {
        "seconds": rehearsed["seconds"] - without["seconds"],
        "steps": REHEARSED * rehearsed["step"],
        "memory": max(0.0, rehearsed["peak"] - without["peak"]),
        "state": rehearsed["state"],
    }


def _measure(training: Callable, is_rehearsed: bool, output: str) -> Figures:
    """Return the seconds and the MiB of a run until its last step, and those of one step."""
    from paddle_mnist import Saving

    class Taken(Timing):
        def after_last_step(self, training: Any) -> None:
            parts = (training.model, training.optimizer)
            state = [value for part in parts for value in part.state_dict().values()]
            sizes = [
                value.size * value.element_size()
                for value in state
                if hasattr(value, "element_size")
            ]
            taken.update(
                seconds=time.perf_counter() - began,
                step=statistics.median(self.timer.seconds["step"]),
                peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                state=sum(sizes) / 2**20,
            )

    taken: dict[str, float] = {}
    # A save at the start would take more memory than the rehearsal.
    saving = Saving(at_start=False, rehearse=is_rehearsed)
    began = time.perf_counter()
    training(callbacks=[Taken()], saving=saving, output=output)
    return taken


def _train_recipe(recipe: str, changes: dict[str, Any], callbacks: list, **options: Any) -> None:
    train(config_of(recipe, epochs=1, **changes), *callbacks, **options)


def _train_net(name: str, steps: int, width: int, callbacks: list, **options: Any) -> None:
    import paddle
    from paddle import nn
    from paddle.vision.models import resnet18

    from paddle_mnist import Figures, VisualDL, fit

    def perceptron() -> nn.Layer:
        hidden = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 10))

    is_resnet = name == RESNET
    batch, shape = (32, (3, 32, 32)) if is_resnet else (8, (width,))
    kind = paddle.optimizer.Momentum if is_resnet else paddle.optimizer.Adam
    draw = np.random.default_rng(1)
    samples = draw.random((batch * steps, *shape), dtype=np.float32)
    fit(
        model=partial(resnet18, num_classes=10) if is_resnet else perceptron,
        train=list(zip(samples, draw.integers(0, 10, (len(samples), 1)))),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: kind(1e-3, parameters=parameters),
        epochs=1,
        batch_size=batch,
        device="cpu",
        callbacks=[*callbacks, VisualDL(pages=()), Figures(draw=False)],
        **options,
    )


# ------------------------------------------------------------------ stopping

SIGNALS = 20  # in a round


def _stop_trainings(source: str, folder: Path, seed: int) -> dict[str, list[float]]:
    """Stop a run at random moments; return the seconds until each `fit` has ended."""
    from paddle_mnist import Callback
    from paddle_mnist.errors import StoppedError

    draw, seconds = random.Random(seed), []
    sent_at: list[float] = []
    timers: list[threading.Timer] = []

    def send() -> None:
        sent_at.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGTERM)

    class Sender(Callback):
        def before_first_step(self, training: Any) -> None:
            timers.append(threading.Timer(draw.uniform(0, 1), send))
            timers[-1].start()

        def close(self) -> None:
            timers[-1].cancel()
            timers[-1].join()

    output = folder / "run"
    bare = {"visualdl": False, "figures": False, "watch": 0}
    config = config_of("digits", data=source, output=str(output), **bare)
    while len(seconds) < SIGNALS:
        try:
            train(config, Sender())
            shutil.rmtree(output)  # finished before the signal: start again
        except StoppedError:
            seconds.append(time.perf_counter() - sent_at[-1])
    return {"seconds": seconds}


def _rows_of_signals(report: Report) -> Rows:
    (figures,) = report.samples.values()
    seconds = sorted(figures["seconds"])
    count = len(seconds)
    return {
        f"median of {count}": {"seconds": statistics.median(seconds)},
        f"99th percentile of {count}": {"seconds": seconds[-(-99 * count // 100) - 1]},
        f"largest of {count}": {"seconds": seconds[-1]},
    }


# ------------------------------------------------------------------ records of steps

BUFFERS = 20
LINEAR = "one linear layer"
WITH_BUFFERS = f"the same with {BUFFERS} buffers of 64 numbers"


def _records(session: Session) -> Mapping[str, Turn]:
    """Return trainings in which each step and its record are timed, in turns."""
    trainings = {
        "the recipe `digits`": partial(_train_recipe, "digits", {}),
        LINEAR: partial(_train_linear, 0),
        WITH_BUFFERS: partial(_train_linear, BUFFERS),
    }

    def turn(title: str, training: Callable) -> Figures:
        figures = in_own_process(_time_records, training, str(session.folder / title[-9:]))
        shutil.rmtree(session.folder)
        return figures

    return {title: partial(turn, title, training) for title, training in trainings.items()}


def _time_records(training: Callable, output: str) -> Figures:
    """Return the microseconds of a step, and those that its record takes."""
    from paddle_mnist.training.witness import FileWitness

    class Steps(Timing):
        def after_last_step(self, training: Any) -> None:
            figures["step"] = 1e6 * statistics.median(self.timer.seconds["step"])

    def timed(*arguments: Any) -> None:
        began = time.perf_counter()
        record(*arguments)
        seconds.append(time.perf_counter() - began)

    figures: dict[str, float] = {}
    seconds: list[float] = []
    record = FileWitness.after_step
    with patch.object(FileWitness, "after_step", timed):
        training(callbacks=[Steps()], output=output)
    return {**figures, "record": 1e6 * statistics.median(seconds)}


def _train_linear(buffers: int, callbacks: list, output: str) -> None:
    import paddle
    from paddle import nn

    from paddle_mnist import Figures, VisualDL, fit

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)
            for number in range(buffers):
                self.register_buffer(f"buffer{number}", paddle.ones([64]))

        def forward(self, points: Any) -> Any:
            return self.out(points)

    draw = np.random.default_rng(1)
    points = draw.random((1_200, 6), dtype=np.float32)
    fit(
        model=Net,
        train=list(zip(points, draw.integers(0, 3, (len(points), 1)))),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: paddle.optimizer.SGD(0.1, parameters=parameters),
        epochs=1,
        batch_size=4,
        device="cpu",
        callbacks=[*callbacks, VisualDL(pages=()), Figures(draw=False)],
        output=output,
    )


BENCHMARKS = {
    "checkpoint": Benchmark(
        "The share of a run's time that goes into saving.",
        code=("paddle_mnist/checkpoint", "paddle_mnist/system/files.py"),
        kinds=lambda session: {"default": lambda: _save(session)},
        head="a checkpoint",
        columns={"share of the training's time": (".2%", "share")},
        rows=_rows_of_saves,
        note=_note_on_saves,
        warm_up=1,
    ),
    "rehearsal": Benchmark(
        "What the rehearsal before a run takes: time, and memory.",
        code=("paddle_mnist/hidden_state", "paddle_mnist/training"),
        kinds=_rehearsals,
        head="training",
        columns={
            "rehearsal, s": (".2f", "seconds"),
            "of which steps, s": (".2f", "steps"),
            "beside the steps, s": (".2f", lambda row, rows: row["seconds"] - row["steps"]),
            "more memory, MiB": (",.0f", "memory"),
            "copy of the state, MiB": (",.1f", "state"),
        },
        quick=("the recipe `digits`", LARGE),
    ),
    "witness": Benchmark(
        "What the records of steps take, with which repeated steps are compared.",
        code=("paddle_mnist/training/witness.py", "paddle_mnist/nn/layers.py"),
        kinds=_records,
        head="training",
        columns={
            "a step, µs": (",.0f", "step"),
            "its record, µs": (".1f", "record"),
            "share": (".2%", lambda row, rows: row["record"] / row["step"]),
        },
        note=lambda report: (
            "Each step and its record are timed in the same run; medians of "
            f"{report.rounds} rounds in turns."
        ),
    ),
    "signal": Benchmark(
        "Seconds from SIGTERM to the committed checkpoint.",
        code=(
            "paddle_mnist/checkpoint",
            "paddle_mnist/system/files.py",
            "paddle_mnist/system/signals.py",
        ),
        kinds=lambda session: {
            "signals": lambda: in_own_process(
                _stop_trainings, session.source, session.folder, session.number
            )
        },
        head="from SIGTERM to the committed checkpoint",
        columns={"seconds": (".3f", "seconds")},
        rows=_rows_of_signals,
    ),
}

"""The time that trainings of `fit` take to save, to rehearse a resume and to record steps."""

import resource
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
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
    trainings = {
        "the recipe `digits`": _train_digits,
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


def _train_digits(callbacks: list, **options: Any) -> None:
    train(config_of("digits", epochs=1), *callbacks, **options)


def _train_net(name: str, steps: int, width: int, **options: Any) -> None:
    import paddle
    from paddle import nn
    from paddle.vision.models import resnet18

    def perceptron() -> nn.Layer:
        hidden = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 10))

    if name == RESNET:
        momentum = partial(paddle.optimizer.Momentum, 1e-3)
        _fit(partial(resnet18, num_classes=10), momentum, 32, (32 * steps, 3, 32, 32), **options)
    else:
        adam = partial(paddle.optimizer.Adam, 1e-3)
        _fit(perceptron, adam, 8, (8 * steps, width), **options)


def _fit(
    model: Callable, optimizer: Callable, batch: int, shape: tuple, callbacks: list, **options: Any
) -> None:
    """Train one epoch on random samples of some shape, with labels from 0 to 9."""
    from paddle import nn

    from paddle_mnist import Figures, VisualDL, fit

    draw = np.random.default_rng(1)
    samples = draw.random(shape, dtype=np.float32)
    fit(
        model=model,
        train=list(zip(samples, draw.integers(0, 10, (len(samples), 1)))),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: optimizer(parameters=parameters),
        epochs=1,
        batch_size=batch,
        device="cpu",
        callbacks=[*callbacks, VisualDL(pages=()), Figures(draw=False)],
        **options,
    )


# ------------------------------------------------------------------ records of steps

BUFFERS = 20
LINEAR = "one linear layer"
WITH_BUFFERS = f"the same with {BUFFERS} buffers of 64 numbers"


def _records(session: Session) -> Mapping[str, Turn]:
    """Return trainings in which each step and its record are timed, in turns."""
    trainings = {
        "the recipe `digits`": _train_digits,
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


def _train_linear(buffers: int, **options: Any) -> None:
    import paddle
    from paddle import nn

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 10)
            for number in range(buffers):
                self.register_buffer(f"buffer{number}", paddle.ones([64]))

        def forward(self, points: Any) -> Any:
            return self.out(points)

    _fit(Net, partial(paddle.optimizer.SGD, 0.1), 4, (1_200, 6), **options)


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
}

"""What the rehearsal before a training takes: time, and memory."""

import importlib
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.timing import in_own_process, seconds_of
from benchmarks.trainings import config_of, train
from benchmarks.turns import Benchmark, Figures, Session

RESNET, LARGE = "ResNet-18, 3x32x32, Momentum", "100,000,000 parameters, Adam"
LAYERS = 4  # of the large net


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    steps, width = (3, 50) if session.is_quick else (6, 5_000)
    of_default = {"data": session.source, "train_limit": 6_400}
    trainings = {
        "the recipe `digits`": partial(_train_recipe, "digits", {}),
        "the recipe `default`": partial(_train_recipe, "default", of_default),
        RESNET: partial(_train_net, RESNET, steps, width),
        LARGE: partial(_train_net, LARGE, steps, width),
    }
    return {name: partial(_measure, session, training) for name, training in trainings.items()}


def _measure(session: Session, training: Callable) -> Figures:
    """Return the figures of a training in a process of its own, and the memory of one without."""
    without, rehearsed = (
        in_own_process(_time, training, is_rehearsed, session.folder)
        for is_rehearsed in (False, True)
    )
    return {**rehearsed, "without": without["peak"]}


def _time(training: Callable, is_rehearsed: bool, folder: Any) -> Figures:
    """Train with a rehearsal or without; return the seconds and MiB that it took.

    The time of the rehearsal's steps is that of as many of the training.
    """
    from paddle_mnist import Callback
    from paddle_mnist.training.trainer import Trainer

    fit = importlib.import_module("paddle_mnist.training.fit")  # not the function of this name
    rehearse = fit.rehearse if is_rehearsed else lambda job: None
    update_weights = Trainer._optimizer_step
    taken: dict[str, float] = {}
    ends: list[float] = []  # of steps

    def timed_rehearsal(job: Any) -> None:
        taken["seconds"] = seconds_of(rehearse, job)
        taken["steps"] = len(ends)
        ends.clear()

    # No hook of the callback, because a rehearsal restores what a callback has changed.
    def timed_update(*args: Any, **options: Any) -> None:
        update_weights(*args, **options)
        ends.append(time.perf_counter())
        taken["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    class State(Callback):
        def after_last_step(self, training: Any) -> None:
            parts = (training.model, training.optimizer)
            state = [tensor for part in parts for tensor in part.state_dict().values()]
            sizes = [one.size * one.element_size() for one in state if hasattr(one, "element_size")]
            taken["state"] = sum(sizes) / 2**20

    with (
        patch.object(fit, "rehearse", timed_rehearsal),
        patch.object(Trainer, "_optimizer_step", timed_update),
    ):
        training(State(), str(folder / f"run {is_rehearsed}"))
    taken["steps"] *= float(np.median(np.diff(ends)))
    return taken


def _train_recipe(recipe: str, options: dict[str, Any], callback: Any, output: str) -> None:
    train(config_of(recipe, epochs=1, output=output, **options), callback, fresh=True)


def _train_net(name: str, steps: int, width: int, callback: Any, output: str) -> None:
    import paddle
    from paddle import nn
    from paddle.vision.models import resnet18

    from paddle_mnist import Figures, Saving, VisualDL, fit

    def perceptron() -> nn.Layer:
        hidden = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())]
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
        output=output,
        fresh=True,
        device="cpu",
        callbacks=[callback, VisualDL(pages=()), Figures(draw=False)],
        saving=Saving(at_start=False),  # it takes more memory than what is measured
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        *(
            f"paddle_mnist.hidden_state.{name}"
            for name in ("extra_state", "object_graph", "snapshot")
        ),
        *(f"paddle_mnist.training.{name}" for name in ("rehearsal", "rehearsing", "trial_steps")),
    ),
    kinds=_kinds,
    head="training",
    columns={
        "rehearsal, s": (".2f", "seconds"),
        "of which steps, s": (".2f", "steps"),
        "beside the steps, s": (".2f", lambda row, rows: row["seconds"] - row["steps"]),
        "more memory, MiB": (",.0f", lambda row, rows: max(0.0, row["peak"] - row["without"])),
        "copy of the state, MiB": (",.1f", "state"),
    },
    quick=("the recipe `digits`", LARGE),
)

"""What the rehearsal before a training takes: time, and memory."""

import functools
import importlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from markdown_tables import table as markdown_table

from benchmarks.recipes import config_of
from benchmarks.timing import medians, run_python

DIGITS_RECIPE, DEFAULT_RECIPE = "the recipe `digits`", "the recipe `default`"
RESNET, LARGE = "ResNet-18, 3x32x32, Momentum", "100,000,000 parameters, Adam"
LIMIT = 6_400  # images of the recipe `default`
STEPS = 6  # of the nets
WIDTH, LAYERS = 5_000, 4  # of the last
COLUMNS = {
    "seconds": ("rehearsal, s", ".2f"),
    "steps": ("of which steps, s", ".2f"),
    "rest": ("beside the steps, s", ".2f"),
    "memory": ("more memory, MiB", ",.0f"),
    "state": ("copy of the state, MiB", ",.1f"),
}


def measure(source: str, rounds: int, steps: int = STEPS, width: int = WIDTH) -> dict:
    """Medians over `rounds` trainings, each in a process of its own. steps, width: of the nets.

    The time of its steps is that of as many steps of the training that follows. The memory is the
    most until the last step, less that of a process that trains the same without a rehearsal.
    """
    rows: dict[str, dict[str, float]] = {}
    for name in (DIGITS_RECIPE, DEFAULT_RECIPE, RESNET, LARGE):
        taken: dict[str, list[float]] = {"peak": [], "without": []}
        for _ in range(rounds):
            for is_rehearsed in (True, False):
                words = ("-m", "benchmarks.rehearsal", is_rehearsed, name, source, steps, width)
                figures = json.loads(run_python(*words).printed.splitlines()[-1])
                if not is_rehearsed:
                    figures = {"without": figures["peak"]}
                for figure, value in figures.items():
                    taken.setdefault(figure, []).append(value)
        row = medians(taken)
        row["rest"] = row["seconds"] - row["steps"]
        row["memory"] = max(0.0, row["peak"] - row["without"])
        rows[name] = row
    return {"rounds": rounds, "trainings": rows}


def table(report: dict) -> str:
    return markdown_table(
        {"training": "", **dict(COLUMNS.values())},
        [(name, *map(row.get, COLUMNS)) for name, row in report["trainings"].items()],
    )


# ------------------------------------------------------------------ in a process of its own


class _Clock:
    """Times the rehearsal, or leaves it out, and the steps after it."""

    def __init__(self, is_rehearsed: bool):
        # Modules, not what they hold: `fit` is a function, too.
        module = importlib.import_module("paddle_mnist.training.fit")
        trainer = importlib.import_module("paddle_mnist.training.trainer").Trainer
        self._rehearse = module.rehearse if is_rehearsed else lambda job: None
        module.rehearse = self._timed_rehearsal
        trainer._update_weights = self._noting_ends(trainer._update_weights)
        self.ends: list[float] = []
        self.peak = self.seconds = 0.0
        self.rehearsed, self.job = 0, None

    def _timed_rehearsal(self, job: Any) -> None:
        self.job = job
        began = time.perf_counter()
        self._rehearse(job)
        self.seconds = time.perf_counter() - began
        self.rehearsed, self.ends = len(self.ends), []

    def _noting_ends(self, update_weights: Callable) -> Callable:
        @functools.wraps(update_weights)
        def noting(*args: Any, **kwargs: Any) -> None:
            update_weights(*args, **kwargs)
            self.ends.append(time.perf_counter())
            self.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        return noting

    def figures(self) -> dict[str, float]:
        step = float(np.median(np.diff(self.ends)))
        parts = self.job.parts
        state = [*parts.model.state_dict().values(), *parts.optimizer.state_dict().values()]
        sizes = [one.size * one.element_size() for one in state if hasattr(one, "element_size")]
        return {
            "seconds": self.seconds,
            "step": step,
            "steps": self.rehearsed * step,
            "peak": self.peak,
            "state": sum(sizes) / 2**20,
        }


def _train_recipe(name: str, source: str, output: Path) -> None:
    from paddle_mnist.mnist.run import train_and_evaluate

    options = {"data": source, "train_limit": LIMIT} if name == DEFAULT_RECIPE else {}
    recipe = "default" if name == DEFAULT_RECIPE else "digits"
    train_and_evaluate(config_of(recipe, epochs=1, output=str(output), **options))


def _train_net(name: str, steps: int, width: int, output: Path) -> None:
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
        model=functools.partial(resnet18, num_classes=10) if is_resnet else perceptron,
        train=list(zip(samples, draw.integers(0, 10, (len(samples), 1)))),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: kind(1e-3, parameters=parameters),
        epochs=1,
        batch_size=batch,
        output=output,
        device="cpu",
        callbacks=[VisualDL(pages=()), Figures(draw=False)],
        saving=Saving(at_start=False),  # it takes more memory than what is measured
    )


def _main(is_rehearsed: str, name: str, source: str, steps: str, width: str) -> None:
    clock = _Clock(is_rehearsed == "True")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "run")
        if name in (DIGITS_RECIPE, DEFAULT_RECIPE):
            _train_recipe(name, source, output)
        else:
            _train_net(name, int(steps), int(width), output)
    print(json.dumps(clock.figures()))


if __name__ == "__main__":
    _main(*sys.argv[1:])

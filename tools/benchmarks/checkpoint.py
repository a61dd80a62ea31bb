"""The share of a training's time that goes into saving."""

import statistics
import tempfile
import time
from pathlib import Path

from markdown_tables import table as markdown_table
from measuring.parts import build_parts

from benchmarks.recipes import config_of

SAVE_EVERY = 50  # steps


def measure(source: str, rounds: int) -> dict:
    """What saving costs the default recipe, medians over `rounds` trainings of 200 steps."""
    from paddle_mnist.mnist.cache import open_data
    from paddle_mnist.mnist.setup import parts as parts_of

    data = open_data(source)
    images = len(data["train"])
    limit, epochs = min(200 * 64, images), -(-200 * 64 // images)
    config = config_of("default", data=source, train_limit=limit, epochs=epochs)
    arguments = parts_of(config)
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            _time_saving(build_parts(arguments), config.epochs, Path(folder, str(number)))
            for number in range(rounds + 1)
        ][1:]  # the first warms up
    save, step = (statistics.median(run[what] for run in runs) for what in ("save", "step"))
    steps = -(-images // config.batch_size)
    return {
        "rounds": rounds,
        "dataset": data.name,
        "steps_an_epoch": steps,
        "step_seconds": step,
        "save_seconds": save,
        "every_epoch_share": save / (save + steps * step),
        "every_50_steps_share": save / (save + SAVE_EVERY * step),
    }


def _time_saving(parts, epochs: int, folder: Path) -> dict:
    """Median seconds of a step and of a save, deletion of an older one included."""
    from paddle_mnist import Saving, Trainer
    from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
    from paddle_mnist.checkpoint.store import CheckpointStore

    class Timed(StoreCheckpointer):
        def __init__(self, *args):
            super().__init__(*args)
            self.ends, self.steps, self.saves = time.perf_counter(), [], []

        def after_step(self, state, model, optimizer):
            state.synchronize()  # the step is done when its loss is there
            began = time.perf_counter()
            self.steps.append(began - self.ends)
            super().after_step(state, model, optimizer)
            self.ends = time.perf_counter()
            if state.step % SAVE_EVERY == 0:
                self.saves.append(self.ends - began)

    timed = Timed(CheckpointStore(folder), Saving(every_steps=SAVE_EVERY, keep_last=1))
    trainer = Trainer(
        folder / "mnist.pdparams", parts.model, parts.optimizer, checkpointer=timed, log_every=1000
    )
    trainer.train(parts.loader, 0, epochs)
    return {"step": statistics.median(timed.steps), "save": statistics.median(timed.saves)}


def table(report: dict) -> str:
    milliseconds = {name: 1000 * report[f"{name}_seconds"] for name in ("save", "step")}
    return markdown_table(
        {"a checkpoint": "", "share of the training's time": ".2%"},
        [
            (f"after each epoch ({report['steps_an_epoch']} steps)", report["every_epoch_share"]),
            (f"every {SAVE_EVERY} steps", report["every_50_steps_share"]),
        ],
        "One save takes {save:.1f} ms, one step {step:.1f} ms (medians).".format(**milliseconds),
    )

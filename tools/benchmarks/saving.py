"""The share of a training's time that its checkpoints take."""

from benchmarks.timing import config_of, timed_training
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session

SAVE_EVERY, STEPS = 50, 200  # steps between two saves, and of the training
EPOCH = -(-50_000 // 64)  # steps of an epoch of the recipe `default` on MNIST


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


BENCHMARKS = {
    "checkpoint": Benchmark(
        "The share of a run's time that goes into saving.",
        kinds=lambda session: {"default": lambda: _save(session)},
        head="a checkpoint",
        columns={"share of the training's time": (".2%", "share")},
        rows=_rows_of_saves,
        note=_note_on_saves,
        warm_up=1,
    ),
}

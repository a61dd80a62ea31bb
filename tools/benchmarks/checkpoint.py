"""The share of a training's time that goes into saving."""

from typing import Any

from benchmarks.trainings import config_of, timed_training
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session

SAVE_EVERY = 50  # steps
STEPS = 200  # of a training, at least


def _train(session: Session) -> Figures:
    """Seconds of a step and of a save, deletion of an older one included."""
    images = _facts(session)["images"]
    limit, epochs = min(STEPS * 64, images), -(-STEPS * 64 // images)
    config = config_of(
        "default",
        data=session.source,
        train_limit=limit,
        epochs=epochs,
        save_every_steps=SAVE_EVERY,
        keep_epochs=False,
        keep_last=1,
        output=str(session.folder / "run"),
    )
    seconds = timed_training(config)
    steps = [step - save for step, save in zip(seconds["step"], seconds["saving"])]
    return {"step": steps, "save": seconds["saving"][SAVE_EVERY - 1 :: SAVE_EVERY]}


def _facts(session: Session) -> dict[str, Any]:
    from paddle_mnist.mnist.images import open_data

    images = len(open_data(session.source)["train"])
    return {"images": images, "steps_an_epoch": -(-images // config_of("default").batch_size)}


def _rows(report: Report) -> Rows:
    (seconds,) = report.medians.values()
    epoch = report.facts["steps_an_epoch"]
    steps = {f"after each epoch ({epoch} steps)": epoch, f"every {SAVE_EVERY} steps": SAVE_EVERY}
    return {
        title: {"share": seconds["save"] / (seconds["save"] + count * seconds["step"])}
        for title, count in steps.items()
    }


def _note(report: Report) -> str:
    (seconds,) = report.medians.values()
    save, step = 1000 * seconds["save"], 1000 * seconds["step"]
    return f"One save takes {save:.1f} ms, one step {step:.1f} ms (medians)."


BENCHMARK = Benchmark(
    __doc__,
    code=(__name__, "paddle_mnist.checkpoint", "paddle_mnist.system.files"),
    kinds=lambda session: {"default": lambda: _train(session)},
    head="a checkpoint",
    columns={"share of the training's time": (".2%", "share")},
    rows=_rows,
    note=_note,
    facts=_facts,
    warm_up=1,
)

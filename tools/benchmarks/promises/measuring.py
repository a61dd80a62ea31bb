"""What becomes of a training that is stopped, with `fit`, with paddle.Model and with Lightning."""

from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

from benchmarks.promises.experiments import FRAMEWORKS, STEPS, Framework, Trainings
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    return {name: partial(_outcomes, framework, session) for name, framework in FRAMEWORKS.items()}


def _outcomes(framework: Framework, session: Session) -> Figures:
    try:
        metadata.version(framework.needs)
    except metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(framework.needs) from error
    trainings = Trainings(framework, session.folder / framework.path.stem)
    return trainings.outcomes(**_facts(session))


def _rows(report: Report) -> Rows:
    """Return what became of each promise, by framework."""
    promises = next(filter(None, report.medians.values()))
    return {
        promise: {
            name: outcomes.get(promise, "not installed")
            for name, outcomes in report.medians.items()
        }
        for promise in promises
    }


def _facts(session: Session) -> dict[str, Any]:
    return {"kills": 1 if session.is_quick else session.rounds}


def _note(report: Report) -> str:
    return (
        f"A net of two layers with dropout on 1,500 digits of scikit-learn, shuffled, {STEPS} "
        "steps in 6 epochs; saved every 10 steps, with `paddle.Model` every epoch; stopped after "
        f"about 75, and killed at {report.facts['kills']} places. Lightning reads through "
        "torchdata's `StatefulDataLoader`. Bits are those of the final weights."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=("benchmarks.promises", "paddle_mnist.checkpoint", "paddle_mnist.training"),
    kinds=_kinds,
    columns={name: ("", name) for name in FRAMEWORKS},
    rows=_rows,
    note=_note,
    facts=_facts,
    rounds=1,
)

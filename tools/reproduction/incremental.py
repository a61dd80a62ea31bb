"""Training a net further on new images: the accuracy on these, and on the old ones."""

import statistics
from pathlib import Path
from typing import Any

from markdown_tables import table

from paddle_mnist.mnist.config import continued_schedule, read_recipe
from reproduction.claims import Experiment, Report, Workspace
from reproduction.trainings import evaluate_run, train

RECIPE = "default"
OLD, NEW = "#0-4", "#5-9"
SEEDS = 3
FORGETTING_EPOCHS = 3  # of each of the trainings below
FORGETTING = {
    "old": "0-4",
    "new": "then 5-9",
    "new_replayed": "then 5-9, a fifth of each epoch 0-4",
}


def measure_forgetting(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return accuracies on the eval split's old and new digits after each of three trainings."""
    epochs, seeds = work.choose(FORGETTING_EPOCHS, 1), list(range(1, (work.seeds or SEEDS) + 1))
    reports = [_forget(work.data.path, folder / str(seed), epochs, seed) for seed in seeds]
    accuracy = {
        name: {half: [report[name][half] for report in reports] for half in ("old", "new")}
        for name in FORGETTING
    }
    return {"epochs": epochs, "seeds": seeds, "accuracy": accuracy}


def _forget(data: str, output: Path, epochs: int, seed: int) -> dict[str, dict[str, float]]:
    further = {
        "data": data + NEW,
        "incremental_from": str(output / "old"),
        **continued_schedule(read_recipe(RECIPE)),
    }
    trainings = {
        "old": {"data": data + OLD},
        "new": further,
        "new_replayed": {**further, "replay_data": data + OLD, "replay_fraction": 0.2},
    }
    accuracies = {}
    for name, options in trainings.items():
        train(RECIPE, {"epochs": epochs, "seed": seed, **options}, output / name)
        accuracies[name] = {
            half: evaluate_run(output / name, data + digits, "eval").accuracy
            for half, digits in (("old", OLD), ("new", NEW))
        }
    return accuracies


def tabulate_forgetting(report: Report) -> str:
    rows = (
        (title, *(statistics.mean(report["accuracy"][name][half]) for half in ("old", "new")))
        for name, title in FORGETTING.items()
    )
    columns = {"trained on": "", "accuracy on 0-4": ".2%", "on 5-9": ".2%"}
    return table(columns, rows, f"Means of {len(report['seeds'])} seeds.")


FORGOTTEN = Experiment("forgetting", measure_forgetting, tabulate_forgetting)

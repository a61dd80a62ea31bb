"""New digits drive out the old ones, unless some of the old are replayed."""

from dataclasses import replace
from pathlib import Path

from markdown_tables import table

OLD, NEW = "#0-4", "#5-9"
TITLES = {
    "old": "0-4",
    "new": "then 5-9",
    "new_replayed": "then 5-9, a fifth of each epoch 0-4",
}


def measured(data: str, output: Path, epochs: int, seed: int) -> dict:
    """Return accuracies on the eval split's old and new digits after each of three trainings."""
    from paddle_mnist import TrainConfig, train_and_evaluate
    from paddle_mnist.mnist.config import read_recipe
    from paddle_mnist.mnist.evaluate_checkpoint import evaluate_checkpoint

    options = {"epochs": epochs, "seed": seed, "visualdl": False, "figures": False}
    base = TrainConfig.from_mapping({**read_recipe("default"), **options})
    further = {"data": data + NEW, "incremental_from": str(output / "old")}
    trainings = {
        "old": {"data": data + OLD},
        "new": further,
        "new_replayed": {**further, "replay_data": data + OLD, "replay_fraction": 0.2},
    }
    accuracies = {}
    for name, options in trainings.items():
        train_and_evaluate(replace(base, output=str(output / name), **options))
        accuracies[name] = {
            half: evaluate_checkpoint("latest", str(output / name), data + digits)["accuracy"]
            for half, digits in (("old", OLD), ("new", NEW))
        }
    return {"epochs": epochs, "seed": seed, "accuracy": accuracies}


def tabulate(report: dict) -> str:
    accuracies = report["accuracy"]
    rows = ((t, accuracies[name]["old"], accuracies[name]["new"]) for name, t in TITLES.items())
    return table({"trained on": "", "accuracy on 0-4": ".2%", "on 5-9": ".2%"}, rows)


def figure(report: dict):
    from paddle_mnist.plots import charts

    return charts.bars(
        {
            half: [report["accuracy"][name][end] for name in TITLES]
            for half, end in (("digits 0-4", "old"), ("digits 5-9", "new"))
        },
        [f"trained on\n{title}" for title in TITLES.values()],
        "accuracy on the eval split (share)",
    )

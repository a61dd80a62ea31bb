"""New digits drive out the old ones, unless some of the old are replayed."""

import argparse
import statistics
from pathlib import Path
from typing import Any

from markdown_tables import table

from paddle_mnist.mnist.arrays import Data
from reproduction.stored import measured_or_stored

OLD, NEW = "#0-4", "#5-9"
SEEDS = 3
TITLES = {"old": "0-4", "new": "then 5-9", "new_replayed": "then 5-9, a fifth of each epoch 0-4"}


def measure(data: Data, args: argparse.Namespace) -> dict[str, Any]:
    """Train, or with `--page-only` read what is stored below `--docs`; store what was trained.

    With `--docs` it is drawn there, too.
    """
    report = measured_or_stored(
        args,
        "forgetting",
        lambda output: _train(data.location, output, args.epochs, args.seeds or SEEDS),
    )
    if args.docs:
        from reproduction.drawing import save_figures

        save_figures({"forgetting": figure(report)}, Path(args.docs, "figures"))
    return report


def _train(data: str, output: Path, epochs: int, seeds: int) -> dict[str, Any]:
    """Return accuracies on the eval split's old and new digits after each of three trainings.

    They are lists, with an element for each of the seeds 1 to `seeds`.
    """
    accuracies: dict[str, dict[str, list[float]]] = {}
    for seed in range(1, seeds + 1):
        for name, halves in _of_seed(data, output / str(seed), epochs, seed).items():
            for half, accuracy in halves.items():
                accuracies.setdefault(name, {}).setdefault(half, []).append(accuracy)
    return {"epochs": epochs, "seeds": list(range(1, seeds + 1)), "accuracy": accuracies}


def _of_seed(data: str, output: Path, epochs: int, seed: int) -> dict[str, dict[str, float]]:
    from paddle_mnist import TrainConfig, train_and_evaluate
    from paddle_mnist.mnist.config import continued_schedule, read_recipe
    from paddle_mnist.mnist.evaluate_checkpoint import evaluate_checkpoint

    options = {"epochs": epochs, "seed": seed, "visualdl": False, "figures": False}
    recipe = read_recipe("default")
    base = TrainConfig.from_mapping({**recipe, **options})
    further = {
        "data": data + NEW,
        "incremental_from": str(output / "old"),
        **continued_schedule(recipe),
    }
    trainings = {
        "old": {"data": data + OLD},
        "new": further,
        "new_replayed": {**further, "replay_data": data + OLD, "replay_fraction": 0.2},
    }
    accuracies = {}
    for name, options in trainings.items():
        train_and_evaluate(base.replace(output=str(output / name), **options))
        accuracies[name] = {
            half: evaluate_checkpoint("latest", str(output / name), data + digits)["accuracy"]
            for half, digits in (("old", OLD), ("new", NEW))
        }
    return accuracies


def tabulate(report: dict[str, Any]) -> str:
    rows = (
        (title, *(statistics.mean(report["accuracy"][name][half]) for half in ("old", "new")))
        for name, title in TITLES.items()
    )
    columns = {"trained on": "", "accuracy on 0-4": ".2%", "on 5-9": ".2%"}
    return table(columns, rows, f"Means of {len(report['seeds'])} seeds.")


def figure(report: dict[str, Any]) -> Any:
    from reproduction import charts

    accuracy = report["accuracy"]
    lost, kept = (statistics.mean(accuracy[name]["old"]) for name in ("new", "new_replayed"))
    forgotten = f"Training on new digits forgets the old ones ({lost:.1%})"
    return charts.bars(
        f"{forgotten}; replaying a fifth keeps {kept:.1%}",
        ["trained on 0-4", "then on 5-9", "then on 5-9,\nreplaying 0-4"],
        {
            half: [accuracy[name][end] for name in TITLES]
            for half, end in (("digits 0-4", "old"), ("digits 5-9", "new"))
        },
        "accuracy on the eval split",
    )

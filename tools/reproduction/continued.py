"""A trained net goes on with 500, 3,000 and 20,000 new images: what it learns, what it forgets."""

import argparse
import itertools
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markdown_tables import table

from paddle_mnist.mnist.arrays import Data
from reproduction.stored import measured_or_stored

OLD, NEW = "#0-4", "#5-9"
OLD_IMAGES = 3000  # on which the old net was trained, for one epoch
EPOCHS = {500: 5, 3000: 1, 20000: 1}  # of the further training, by its number of new images
SEEDS = 3
KINDS = {
    "nothing": "from nothing",
    "neither": "the recipe's schedule, `--soften false`",
    "schedule": "its own schedule, `--soften false`",
    "soften": "the recipe's schedule",
    "default": "the default: its own schedule",
}
COLUMNS = {
    "new images": "",
    "training": "",
    "only 5-9: on 5-9": ".1%",
    "5-9 and replay: on 5-9": ".1%",
    "5-9 and replay: on 0-4": ".1%",
    "all digits: on all": ".2%",
}


def measure(data: Data, args: argparse.Namespace) -> dict[str, Any]:
    """Train, or with `--page-only` read what is stored below `--docs`."""

    def train(output: Path) -> dict[str, Any]:
        seeds = range(1, (args.seeds or SEEDS) + 1)
        reports = [_of_seed(data.location, output / str(seed), seed) for seed in seeds]
        return {"seeds": [*seeds], "accuracy": _listed(reports)}

    return measured_or_stored(args, "continued", train)


def _of_seed(data: str, output: Path, seed: int) -> dict[str, float]:
    """Return accuracies on eval splits: "500 default alone", ...; "old" and "all" before.

    data: where all digits are. What is trained already is not trained again.
    """
    from paddle_mnist import TrainConfig, train_and_evaluate
    from paddle_mnist.mnist.config import continued_schedule, read_recipe

    recipe = read_recipe("default")
    shown = {"visualdl": False, "figures": False, "watch": 0}
    base = TrainConfig.from_mapping({**recipe, **shown, "seed": seed, "epochs": 1})

    def train(name: str, **options: Any) -> Mapping[str, float]:
        config = base.replace(output=str(output / name), **options)
        return train_and_evaluate(config, quiet=True).metrics

    accuracies = {
        "old": train("old", data=data + OLD, train_limit=OLD_IMAGES)["eval/acc"],
        "all": train("all", data=data)["eval/acc"],
    }
    own = continued_schedule(recipe)
    of_kinds = {
        "nothing": {},
        "neither": {"soften": None},
        "schedule": {"soften": None, **own},
        "soften": {},
        "default": own,
    }
    for (images, epochs), (kind, options) in itertools.product(EPOCHS.items(), of_kinds.items()):
        name = f"{images} {kind}"
        options = {**options, "train_limit": images, "epochs": epochs}
        of_old, of_all = options, options
        if kind != "nothing":
            of_old = {**options, "incremental_from": str(output / "old")}
            of_all = {**options, "incremental_from": str(output / "all")}
        alone = train(f"{name} alone", data=data + NEW, **of_old)
        replay = train(f"{name} replay", data=data + NEW, replay_data=data + OLD, **of_old)
        accuracies |= {
            f"{name} alone": alone["eval/acc"],
            f"{name} replay, new": replay["eval/acc"],
            f"{name} replay, old": replay["replay_eval/acc"],
            f"{name} all": train(f"{name} whole", data=data, **of_all)["eval/acc"],
        }
    return accuracies


def _listed(reports: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return the values of all seeds, by name."""
    return {name: [report[name] for report in reports] for name in reports[0]}


def tabulate(report: Mapping[str, Any]) -> str:
    means = {name: statistics.mean(values) for name, values in report["accuracy"].items()}
    rows = [
        (
            f"{images:,}, {epochs} epochs" if epochs > 1 else f"{images:,}",
            title,
            *(
                means[f"{images} {kind} {column}"]
                for column in ("alone", "replay, new", "replay, old", "all")
            ),
        )
        for images, epochs in EPOCHS.items()
        for kind, title in KINDS.items()
    ]
    note = (
        f"Means of {len(report['seeds'])} seeds; one epoch unless said otherwise. Before, the net "
        f"that was trained on {OLD_IMAGES:,} images of 0-4 had {means['old']:.1%} on 0-4, and the "
        f"one that was trained on all digits had {means['all']:.2%}."
    )
    return table(COLUMNS, rows, note)

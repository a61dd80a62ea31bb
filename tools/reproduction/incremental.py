"""Training a net further on new images: the accuracy on these, and on the old ones."""

import itertools
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markdown_tables import table

from paddle_mnist.mnist.config import continued_schedule, read_recipe
from reproduction.claims import Experiment, Report, Workspace, by_name
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
OLD_IMAGES = 3000  # on which the old net of `continued` was trained, for one epoch
EPOCHS = {500: 5, 3000: 1, 20000: 1}  # of the further training, by its number of new images
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


def measure_forgetting(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return accuracies on the eval split's old and new digits after each of three trainings."""
    epochs, seeds = work.choose(FORGETTING_EPOCHS, 1), _seeds(work)
    reports = [_forget(work.data.path, folder / str(seed), epochs, seed) for seed in seeds]
    accuracy = {name: by_name([report[name] for report in reports]) for name in FORGETTING}
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


def measure_continued(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return accuracies after further training, with and without its schedule and softening."""
    seeds = _seeds(work)
    reports = [_continue(work.data.path, folder / str(seed), seed) for seed in seeds]
    return {"seeds": seeds, "accuracy": by_name(reports)}


def _continue(data: str, output: Path, seed: int) -> dict[str, float]:
    """Return accuracies on eval splits: "500 default alone", ...; "old" and "all" before.

    data: where all digits are.
    """

    def metrics_of(name: str, **options: Any) -> Mapping[str, float]:
        return train(RECIPE, {"seed": seed, "epochs": 1, **options}, output / name)

    accuracies = {
        "old": metrics_of("old", data=data + OLD, train_limit=OLD_IMAGES)["eval/acc"],
        "all": metrics_of("all", data=data)["eval/acc"],
    }
    own = continued_schedule(read_recipe(RECIPE))
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
        alone = metrics_of(f"{name} alone", data=data + NEW, **of_old)
        replay = metrics_of(f"{name} replay", data=data + NEW, replay_data=data + OLD, **of_old)
        accuracies |= {
            f"{name} alone": alone["eval/acc"],
            f"{name} replay, new": replay["eval/acc"],
            f"{name} replay, old": replay["replay_eval/acc"],
            f"{name} all": metrics_of(f"{name} whole", data=data, **of_all)["eval/acc"],
        }
    return accuracies


def tabulate_continued(report: Report) -> str:
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


def _seeds(work: Workspace) -> list[int]:
    return list(range(1, (work.seeds or SEEDS) + 1))


FORGOTTEN = Experiment("forgetting", measure_forgetting, tabulate_forgetting)
CONTINUED = Experiment("continued", measure_continued, tabulate_continued)

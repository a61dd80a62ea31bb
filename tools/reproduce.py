#!/usr/bin/env python
"""Measure what the documentation claims, with the real MNIST, and write the tables into it.

forgetting  train on the digits 0 to 4, go on with 5 to 9, with and without old images replayed;
            accuracy on both halves of the eval split
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from paddle_mnist.cli import Parser, run_command, write_table
from paddle_mnist.device import require_paddle
from paddle_mnist.errors import DataError

OLD, NEW = "#0-4", "#5-9"


def forgetting(data: str, output: Path, epochs: int, seed: int) -> dict:
    """Accuracies on the eval split's old and new digits after each of three trainings."""
    from paddle_mnist import TrainConfig, train_and_evaluate
    from paddle_mnist.config import read_recipe
    from paddle_mnist.score import evaluate_checkpoint

    base = TrainConfig.from_mapping(
        {**read_recipe("default"), "epochs": epochs, "seed": seed, "visualdl": False}
    )
    further = {"data": data + NEW, "incremental_from": str(output / "old")}
    runs = {
        "old": {"data": data + OLD},
        "new": further,
        "new_replayed": {**further, "replay_data": data + OLD, "replay_fraction": 0.2},
    }
    found = {}
    for name, options in runs.items():
        train_and_evaluate(replace(base, output=str(output / name), **options))
        found[name] = {
            half: evaluate_checkpoint("latest", str(output / name), data + digits)["accuracy"]
            for half, digits in (("old", OLD), ("new", NEW))
        }
    return {"epochs": epochs, "seed": seed, "accuracy": found}


def forgetting_table(report: dict) -> str:
    titles = {
        "old": "0-4",
        "new": "then 5-9",
        "new_replayed": "then 5-9, a fifth of each epoch 0-4",
    }
    rows = ["| trained on | accuracy on 0-4 | on 5-9 |", "|---|---|---|"]
    for name, title in titles.items():
        accuracy = report["accuracy"][name]
        rows.append(f"| {title} | {accuracy['old']:.2%} | {accuracy['new']:.2%} |")
    return "\n".join(rows)


def main(argv) -> None:
    parser = Parser(prog="tools/reproduce.py", description=__doc__)
    parser.add_argument("--only", default="forgetting", choices=["forgetting"], help="[all]")
    parser.add_argument("--data", default="auto", metavar="PATH", help="MNIST [auto]")
    parser.add_argument("--output", default="work/output/reproduce", metavar="FOLDER")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="[3]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="[1]")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--docs", metavar="FOLDER", help="put the table into the pages there")
    args = parser.parse_args(argv)
    require_paddle()
    from paddle_mnist.data import open_data

    data = open_data(args.data)
    if data.name == "digits":
        raise DataError(f"data is {data.source}; expected MNIST; name it with --data")
    report = forgetting(data.location, Path(args.output, "forgetting"), args.epochs, args.seed)
    table = forgetting_table(report)
    print(json.dumps(report) if args.json else table)
    if args.docs:
        for path in sorted(Path(args.docs).glob("*.md")):
            write_table(path, "reproduce forgetting", table)


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)

#!/usr/bin/env python
"""Measure what the documentation claims, with the real MNIST, and write the tables into it.

forgetting  train on the digits 0 to 4, go on with 5 to 9, with and without old images replayed;
            accuracy on both halves of the eval split
collapse    weights drawn from U(-1, 1), as in the tutorial's part three: the loss of the first 20
            steps, and what a watch of the net says about them
pretrained  train the weights that come with the package, and put them there
"""

import dataclasses
import hashlib
import itertools
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
        {
            **read_recipe("default"),
            "epochs": epochs,
            "seed": seed,
            "visualdl": False,
            "figures": False,
        }
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


TITLES = {
    "old": "0-4",
    "new": "then 5-9",
    "new_replayed": "then 5-9, a fifth of each epoch 0-4",
}


def forgetting_table(report: dict) -> str:
    rows = ["| trained on | accuracy on 0-4 | on 5-9 |", "|---|---|---|"]
    for name, title in TITLES.items():
        accuracy = report["accuracy"][name]
        rows.append(f"| {title} | {accuracy['old']:.2%} | {accuracy['new']:.2%} |")
    return "\n".join(rows)


def forgetting_figure(report: dict):
    from paddle_mnist import figures

    return figures.bars(
        {
            half: [report["accuracy"][name][end] for name in TITLES]
            for half, end in (("digits 0-4", "old"), ("digits 5-9", "new"))
        },
        [f"trained on\n{title}" for title in TITLES.values()],
        "accuracy on the eval split (share)",
    )


STEPS = 20


def collapse(data: str, seed: int) -> dict:
    """The losses of the first steps, and the findings of a watch that looks at each."""
    import paddle
    from paddle import nn

    from paddle_mnist import MNIST, BatchLoader, MnistDataset, watch
    from paddle_mnist.data.dataset import epoch_batches

    paddle.seed(seed)
    nn.initializer.set_global_initializer(nn.initializer.Uniform(), nn.initializer.Constant())
    try:
        model = MNIST()
    finally:
        nn.initializer.set_global_initializer(None)
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    loader = BatchLoader(MnistDataset("train", data), 32, shuffle=False)
    losses = []
    with watch(model, tell=lambda finding: None) as seen:
        for images, labels in itertools.islice(epoch_batches(loader, 0), STEPS):
            loss = nn.functional.cross_entropy(model(images), labels)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
    findings = [dataclasses.asdict(finding) for finding in seen.findings]
    return {"seed": seed, "losses": losses, "findings": findings}


def collapse_table(report: dict) -> str:
    rows = ["| step | where | what the watch says |", "|---|---|---|"]
    rows += [f"| {f['step']} | {f['place']} | {f['message']} |" for f in report["findings"]]
    first, last = report["losses"][0], report["losses"][-1]
    return "\n".join(
        [
            *rows,
            "",
            f"The loss of step 1 is {first:.1f}, of step {len(report['losses'])} {last:.2f}.",
        ]
    )


PRETRAINED = {"epochs": 20, "augment": "rotate=10,shift=2,scale=0.1,shear=5"}


def pretrained(data: str, output: Path, seed: int) -> dict:
    """Train the recipe `default` with PRETRAINED; gives, and writes, the package's about.json."""
    from paddle_mnist import TrainConfig, pretrained, train_and_evaluate
    from paddle_mnist.config import read_recipe
    from paddle_mnist.files import write_atomically

    told = {**PRETRAINED, "seed": seed}
    more = {"data": data, "output": str(output), "visualdl": False, "figures": False}
    config = TrainConfig.from_mapping({**read_recipe("default"), **told, **more})
    result = dataclasses.asdict(train_and_evaluate(config))
    weights = (output / "mnist.pdparams").read_bytes()
    kept = ("dataset", "eval_acc", "eval_loss", "valid_acc", "valid_loss", "steps")
    about = {
        "sha256": hashlib.sha256(weights).hexdigest(),
        "command": "python tools/reproduce.py --only pretrained --data MNIST",
        "recipe": "default",
        "with": told,
        **{name: result[name] for name in kept},
        **{name: result[name] for name in ("paddle", "numpy", "package")},
    }
    write_atomically(pretrained.WEIGHTS, weights)
    write_atomically(pretrained.ABOUT, (json.dumps(about, indent=1) + "\n").encode())
    return about


def pretrained_table(about: dict) -> str:
    return (
        f"accuracy on the eval split {about['eval_acc']:.2%}, loss {about['eval_loss']:.4f}; "
        f"SHA-256 {about['sha256'][:12]}..."
    )


def main(argv) -> None:
    parser = Parser(prog="tools/reproduce.py", description=__doc__)
    parser.add_argument(
        "--only", choices=["forgetting", "collapse", "pretrained"], help="[the first two]"
    )
    parser.add_argument("--data", default="auto", metavar="PATH", help="MNIST [auto]")
    parser.add_argument("--output", default="work/output/reproduce", metavar="FOLDER")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="of forgetting [3]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="[1]")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--docs", metavar="FOLDER", help="put tables and figures into the pages there"
    )
    args = parser.parse_args(argv)
    require_paddle()
    from paddle_mnist import figures
    from paddle_mnist.data import open_data

    data = open_data(args.data)
    if data.name == "digits":
        raise DataError(f"data is {data.source}; expected MNIST; name it with --data")
    for claim in [args.only] if args.only else ["collapse", "forgetting"]:
        if claim == "collapse":
            report = collapse(data.location, args.seed)
            table, drawn = collapse_table(report), {}
        elif claim == "pretrained":
            report = pretrained(data.location, Path(args.output, "pretrained"), args.seed)
            table, drawn = pretrained_table(report), {}
        else:
            output = Path(args.output, "forgetting")
            report = forgetting(data.location, output, args.epochs, args.seed)
            table, drawn = forgetting_table(report), {"forgetting": forgetting_figure(report)}
        print(json.dumps(report) if args.json else table)
        if args.docs:
            for path in sorted(Path(args.docs).glob("*.md")):
                write_table(path, f"reproduce {claim}", table)
            figures.save(drawn, Path(args.docs, "figures"), [f"{name}.png" for name in drawn])


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)

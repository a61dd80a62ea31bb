"""The figures of the READMEs, of a training with the recipe `default`."""

import argparse
from pathlib import Path

from paddle_mnist.mnist.arrays import Data
from reproduction.trainings import train

FIGURES = ("curves.png", "feature_maps.png", "mistakes.png")


def measure(data: Data, args: argparse.Namespace) -> list[str]:
    """Train, unless that is done, and draw; return the figures' paths."""
    from paddle_mnist.mnist.report import plot_runs
    from reproduction.drawing import shrink

    run, folder = Path(args.output, "default"), Path(args.docs or args.output, "figures")
    train("default", {"data": data.location, "seed": args.seed, "log_every": 100}, run)
    plot_runs([run], str(folder), "cpu", FIGURES)
    paths = [folder / name for name in FIGURES]
    for path in paths:
        shrink(path)
    return [str(path) for path in paths]


def tabulate(paths: list[str]) -> str:
    return "\n".join(paths)

"""Name the weights that commands read, a run, a checkpoint or a file; and the net they are of."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from paddle_mnist.checkpoint.names import CHECKPOINT_WORDS, WORDS, find_run
from paddle_mnist.commands import Parser
from paddle_mnist.errors import ConfigError

OPTIONS = ("--run", "--checkpoint", "-k", "--model")  # the same, wherever weights are read
KINDS = "a run, a checkpoint, a .pdparams file"


class NamedWeights(NamedTuple):
    """The arguments of `find_weights`: the name of weights, and the run that the name refers to."""

    name: Optional[str] = None
    run: Optional[str] = None


def add_weights_arguments(
    parser: Parser,
    default: str,
    kinds: str = KINDS,
    first: bool = True,
    more_options: tuple[str, ...] = (),
) -> None:
    """Add what names the weights of a command, which `named_weights` returns, and their net.

    default: what is read without it, for the help. kinds: what may be named.
    first: whether it may stand before all options, too. more_options: further options for it.
    """
    if first:
        parser.usage = "%(prog)s [RUN] [options]"
    words = ", ".join(WORDS[:-1]) + f" or {WORDS[-1]}"
    meaning = f"{kinds}, {words} [{default}]"
    if first:
        parser.add_argument("weights", metavar="RUN", nargs="?", help=meaning)
    parser.add_argument(
        *OPTIONS,
        *more_options,
        dest="weights_options",
        metavar="RUN",
        action="append",
        default=[],
        help=f"{'the same as RUN' if first else meaning}; beside {' or '.join(CHECKPOINT_WORDS)} "
        "or the name of a checkpoint, the run that it refers to",
    )
    parser.add_argument(
        "--net",
        metavar="FILE.py:CLASS",
        help="net of your own that the weights are of; FILE.py is executed [the tutorial's]",
    )


def named_weights(args: argparse.Namespace) -> NamedWeights:
    """Return what the arguments name. Raises ConfigError if they name several things."""
    first = getattr(args, "weights", None)
    values = distinct([*([] if first is None else [first]), *args.weights_options])
    if len(values) < 2:
        return NamedWeights(*values)
    is_name = [value in CHECKPOINT_WORDS for value in values]
    if not any(is_name):
        is_name = [not os.path.isdir(value) for value in values]
    if len(values) > 2 or sum(is_name) != 1:
        raise ConfigError(
            f"{' and '.join(values)} are given; expected one of them, or a run and the name of "
            f"one of its checkpoints, such as {CHECKPOINT_WORDS[1]}"
        )
    name, run = values if is_name[0] else reversed(values)
    return NamedWeights(name, run)


def add_runs_arguments(parser: Parser, help: str, more_options: tuple[str, ...] = ()) -> None:
    """Add what names the runs that a command shows; `named_runs` returns them.

    more_options: further options for them.
    """
    parser.usage = "%(prog)s [RUN ...] [options]"
    parser.add_argument("runs", metavar="RUN", nargs="*", help=help)
    parser.add_argument(
        *OPTIONS,
        *more_options,
        dest="more_runs",
        metavar="RUN",
        nargs="+",
        action="extend",
        default=[],
        help="the same as RUN",
    )


def named_runs(args: argparse.Namespace) -> list[Path]:
    """Return the directories of the runs that the arguments name, or to whose files they lead."""
    return [find_run(name).path for name in (*args.runs, *args.more_runs)]


def distinct(values: Sequence[str]) -> list[str]:
    """Return words and paths without those that say the same again."""
    places = [value if value in WORDS else os.path.abspath(value) for value in values]
    return list(dict(zip(places, values)).values())

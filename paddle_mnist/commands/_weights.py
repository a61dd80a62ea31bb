"""Name the weights that a command reads: a run, a checkpoint or a file; and the net they are of."""

import argparse
from typing import NamedTuple, Optional

from paddle_mnist.checkpoint.names import CHECKPOINT_WORDS, WORDS
from paddle_mnist.commands import Parser
from paddle_mnist.errors import ConfigError

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
    run_options: tuple[str, ...] = ("--run",),
) -> None:
    """Add what names the weights of a command, which `named_weights` returns, and their net.

    default: what is read without it, for the help. kinds: what may be named.
    first: whether it may stand before all options, too. run_options: spellings of `--run`.
    """
    meaning = f"{kinds}, {', '.join(WORDS[:-1])} or {WORDS[-1]} [{default}]"
    if first:
        parser.usage = "%(prog)s [RUN] [options]"
        parser.add_argument("weights", metavar="RUN", nargs="?", help=meaning)
    parser.add_argument(
        "--checkpoint",
        "-k",
        "--model",
        dest="name",
        metavar="NAME",
        help="the same as RUN, or a checkpoint of it" if first else meaning,
    )
    parser.add_argument(
        *run_options,
        dest="run",
        metavar="RUN",
        help=f"the run that {', '.join(CHECKPOINT_WORDS)} or the name of a checkpoint refers to",
    )
    parser.add_argument(
        "--net",
        metavar="FILE.py:CLASS",
        help="net of your own that the weights are of; FILE.py is executed [the tutorial's]",
    )


def named_weights(args: argparse.Namespace) -> NamedWeights:
    """Return what the arguments name. Raises ConfigError if they name several things."""
    first, name, run = getattr(args, "weights", None), args.name, args.run
    if first is None or name is None:
        return NamedWeights(name if first is None else first, run)
    if run is not None:
        raise ConfigError(
            f"{first}, {name} and the run {run} are given; expected a run and one of its "
            "checkpoints"
        )
    return NamedWeights(name, first)

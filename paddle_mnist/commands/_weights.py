"""The arguments that choose the weights and the net of a command."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple, Optional

from paddle_mnist.checkpoint.names import CHECKPOINT_WORDS, WEIGHTS_WORDS
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
    """Add the arguments that name a command's weights, for `named_weights`, and their net.

    default: the weights without them, for the help. kinds: what a name may stand for.
    first: whether a name may also stand before all options. run_options: spellings of `--run`.
    """
    meaning = f"{kinds}, {', '.join(WEIGHTS_WORDS[:-1])} or {WEIGHTS_WORDS[-1]} [{default}]"
    if first:
        parser.usage = "%(prog)s [RUN] [options]"
        parser.add_argument("weights", metavar="RUN", nargs="?", help=meaning)
    parser.add_argument(
        "--checkpoint",
        "-k",
        "--model",
        dest="names",
        metavar="NAME",
        action="append",
        default=[],
        help="the same as RUN, or a checkpoint of it" if first else meaning,
    )
    parser.add_argument(
        *run_options,
        dest="runs_of_names",
        metavar="RUN",
        action="append",
        default=[],
        help=f"the run that {', '.join(CHECKPOINT_WORDS)} or the name of a checkpoint refers to",
    )
    parser.add_argument(
        "--net",
        metavar="FILE.py:CLASS",
        help="custom net of the weights; FILE.py is executed [the tutorial's]",
    )


def named_weights(args: argparse.Namespace) -> NamedWeights:
    """Return the weights that the arguments name. Raises ConfigError if they name several."""
    first = getattr(args, "weights", None)
    name, run = _only("checkpoint", args.names), _only("run", args.runs_of_names)
    if first is None or name is None:
        return NamedWeights(name if first is None else first, run)
    if run is not None:
        raise ConfigError(
            f"{first}, {name} and the run {run} are given; expected a run and one of its "
            "checkpoints"
        )
    return NamedWeights(name, first)


def _only(option: str, values: Sequence[str]) -> Optional[str]:
    """Return the value of a repeatable option. Raises ConfigError if it has several values."""
    different = list(dict.fromkeys(values))
    if len(different) > 1:
        raise ConfigError(f"{option} is {' and '.join(different)}; expected one")
    return different[0] if different else None

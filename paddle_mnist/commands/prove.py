"""Prove that a program that calls fit ends with the same bits after being killed.

Runs it uninterrupted, then kills and repeats it, in a scratch folder, and compares the results.
Give the program after `--`, or name a recipe, such as `--recipe digits`.
"""

import sys
from collections.abc import Sequence
from typing import Any

from paddle_mnist.commands import Parser, command
from paddle_mnist.errors import ConfigError
from paddle_mnist.proof.prove import prove


@command(prints_data=True)
def main(argv: Sequence[str]) -> int:
    """Print what was tried and what differs; return 1 if something does."""
    parser = Parser("paddle-mnist prove", __doc__, "-- python my_training.py")
    parser.usage = "%(prog)s [options] (--recipe NAME | -- PROGRAM [ARGUMENTS])"
    number: Any = {"type": int, "metavar": "N"}
    parser.add_argument("--recipe", help="train this recipe instead of a program")
    parser.add_argument("--kills", default=3, help="kills (default: 3)", **number)
    parser.add_argument("--signal", default="KILL", help="the signal (default: KILL)")
    parser.add_argument("--steps", help="end each run after so many steps", **number)
    parser.add_argument("--epochs", help="end each run after so many epochs", **number)
    parser.add_argument("--seed", default=0, help="seed of the kill times (default: 0)", **number)
    parser.add_argument(
        "--minutes",
        default=2.0,
        type=float,
        metavar="M",
        help="approximate time for all runs; longer training is cut short (default: 2)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the scratch folder")
    split = argv.index("--") if "--" in argv else len(argv)
    options, program = vars(parser.parse_args(argv[:split])), [*argv[split + 1 :]]
    recipe = options.pop("recipe")
    if bool(recipe) == bool(program):
        raise ConfigError("expected either `-- PROGRAM [ARGUMENTS]` or --recipe NAME")
    if recipe:
        program = [sys.executable, "-m", "paddle_mnist", "train", "--recipe", recipe]
    proof = prove(program, **options)
    print(proof)
    return 0 if proof.same_bits else 1

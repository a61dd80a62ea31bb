#!/usr/bin/env python
"""Measure what the documents claim, with the real MNIST. Without --only: all of REPRODUCTION.md.

claimed     the tutorial's 98.6 %, over several seeds
optimizers  the four that the tutorial names, at its rate
l2          with and without its L2 regularisation
rate        its rate that never decays, and the one that does
unstepped   Paddle's schedule, stepped and not
initialization  weights drawn from U(-1, 1) and otherwise: signals, losses
averages    means of batch means against counting
names       checkpoints sorted as texts
pattern     the checkpoint pattern: seconds without steps, the last one deleted, order by time
globals     whose weights are saved: the document's ways, and this package's
partly      weights for a net of another shape
resumed     a training killed and resumed against an unbroken one
everyone    several processes that all read everything
mistakes    the eval images that most seeds of the best net get wrong
calibration  how sure the pretrained net is, and how sure it should be
robustness  its accuracy on images shifted, rotated, noisy, inverted
ladder      what makes the net better, one change at a time
finalists   which of these are the best recipe, and for how long
best        the best recipe, over ten seeds
fewest      how few images, each seen once, come to 98.6 %
forgetting  train on the digits 0 to 4, go on with 5 to 9, with and without old images replayed;
            accuracy on both halves of the eval split
collapse    weights drawn from U(-1, 1), as in the tutorial's part three: the loss of the first 20
            steps, and what a watch of the net says about them
pretrained  train the weights that come with the package, and put them there

The last three go into the pages of docs/ and into the package.
"""

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from reproduction import (
    accuracy,
    calibration,
    checkpoints,
    collapse,
    forgetting,
    initialization,
    ladder,
    mistakes,
    pretrained,
    processes,
    robustness,
    traps,
    weights,
)
from reproduction.compared import MOST, Compared, Scale
from reproduction.page import page
from reproduction.trainings import Results, train_all

from paddle_mnist.cli import Parser, run_command, write_table
from paddle_mnist.config import unknown_name
from paddle_mnist.data import Data
from paddle_mnist.device import require_paddle
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.files import write_atomically

CLAIMS = (
    *accuracy.CLAIMS,
    *ladder.CLAIMS,
    *initialization.CLAIMS,
    *checkpoints.CLAIMS,
    *traps.CLAIMS,
    *processes.CLAIMS,
    *weights.CLAIMS,
    *mistakes.CLAIMS,
    *calibration.CLAIMS,
    *robustness.CLAIMS,
)
INTO_DOCS = ("forgetting", "collapse", "pretrained")


def write_page(args, data: Data, chosen: Sequence) -> None:
    """Train what has no result yet, and write `REPRODUCTION.md` from all that there are.

    chosen: the claims that are looked at, and told; the page tells what is known of all.
    """
    scale = Scale(args.seeds, args.quick)
    folder = Path(args.output, "quick") if args.quick else Path(args.results)
    results = Results(folder / "trainings.json")
    output = Path(args.output).absolute()
    compared = [one for one in chosen if isinstance(one, Compared)]
    trainings = [training for one in compared for training in one.trainings(scale)]
    try:
        train_all(trainings, results, data, output, args.jobs)
        for one in chosen:
            if one not in compared:
                one.run(data, folder, output, scale)
    finally:  # what is done is told, even if the rest fails
        tell(args, chosen, results, folder, data, scale)


def tell(args, chosen, results: Results, folder: Path, data: Data, scale: Scale) -> None:
    """Print the tables of the chosen claims, and write the page."""
    from paddle_mnist import figures

    reports = {
        one.id: one.report(results, data, scale)
        if isinstance(one, Compared)
        else one.report(folder, data)
        for one in CLAIMS
    }
    for one in chosen:
        report = reports[one.id]
        print(json.dumps({one.id: one.figures(report)}) if args.json else one.table(report))
    where = folder / "REPRODUCTION.md" if args.quick else Path(args.page)
    pictures = (folder if args.quick else folder.parent) / "figures"
    drawn = {}
    for one in chosen:
        if one.draw and one.measured(reports[one.id]):
            drawn[f"reproduction-{one.id}"] = one.draw(reports[one.id], data)
    figures.save(drawn, pictures, [f"{name}.png" for name in drawn])
    there = {
        one.id: os.path.relpath(pictures / f"reproduction-{one.id}.png", where.parent)
        for one in CLAIMS
        if one.draw and one.measured(reports[one.id])
    }
    write_atomically(where, page(CLAIMS, reports, machine(), there).encode())


def machine() -> str:
    import numpy
    import paddle

    return (
        f"paddle {paddle.__version__}, numpy {numpy.__version__}, Python "
        f"{platform.python_version()}, {os.cpu_count()} CPU cores"
    )


def main(argv) -> None:
    parser = Parser(prog="tools/reproduce.py", description=__doc__)
    parser.add_argument("--only", default="", metavar="ID,ID", help="[all of the page]")
    parser.add_argument("--data", default="auto", metavar="PATH", help="MNIST [auto]")
    parser.add_argument("--output", default="work/output/reproduce", metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="[each table's own]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at once [1]")
    parser.add_argument("--quick", action="store_true", help="little data, one epoch: a rehearsal")
    parser.add_argument("--page", default="REPRODUCTION.md", metavar="FILE", help="[%(default)s]")
    parser.add_argument(
        "--results", default="docs/reproduction", metavar="FOLDER", help="[%(default)s]"
    )
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="of forgetting [3]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the first three [1]")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--docs", metavar="FOLDER", help="put tables and figures into the pages there"
    )
    args = parser.parse_args(argv)
    args.only = _ids(args.only)
    if not 0 <= args.seeds < MOST or args.jobs < 1:
        raise ConfigError(
            f"seeds is {args.seeds}, jobs is {args.jobs}; expected 0 to {MOST - 1}, and at least 1"
        )
    require_paddle()
    from paddle_mnist.data import open_data

    data = open_data(args.data)
    if data.name == "digits" and not args.quick:
        raise DataError(f"data is {data.source}; expected MNIST; name it with --data")
    if "pretrained" in args.only and (args.quick or data.name != "mnist"):
        raise DataError(
            f"data is {data.source}{', quick' * args.quick}; the package's weights are of all of "
            "MNIST: name it with --data, without --quick"
        )
    for name in INTO_DOCS:
        if name in args.only:
            measure(args, name, data.location)
    if chosen := [one for one in CLAIMS if one.id in args.only]:
        write_page(args, data, chosen)


def _ids(text: str) -> list[str]:
    claims = [one.id for one in CLAIMS]
    names = [name.strip() for name in text.split(",") if name.strip()] or claims
    for name in names:
        if name not in (*INTO_DOCS, *claims):
            raise ConfigError(unknown_name("--only", name, [*INTO_DOCS, *claims]))
    return names


def measure(args, claim: str, data: str) -> None:
    from paddle_mnist import figures

    drawn = {}
    if claim == "collapse":
        report = collapse.measured(data, args.seed)
        table = collapse.table(report)
    elif claim == "pretrained":
        report = pretrained.measured(data, Path(args.output), args.seed)
        table = pretrained.table(report)
    else:
        folder = Path(args.output, "forgetting")
        report = forgetting.measured(data, folder, args.epochs, args.seed)
        table, drawn = forgetting.table(report), {"forgetting": forgetting.figure(report)}
    print(json.dumps(report) if args.json else table)
    if args.docs:
        for path in sorted(Path(args.docs).glob("*.md")):
            write_table(path, f"reproduce {claim}", table)
        figures.save(drawn, Path(args.docs, "figures"), [f"{name}.png" for name in drawn])


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)

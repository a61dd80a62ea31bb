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
race        several processes that save to one file
mistakes    the eval images that most seeds of the best net get wrong
calibration  how sure the pretrained net is, and how sure it should be
robustness  its accuracy on images shifted, rotated, noisy, inverted
ladder      what makes the net better, one change at a time
finalists   which of these are the best recipe, and for how long
best        the best recipe, over ten seeds
leaders     whether what leads the ladder by one seed leads by more
half        the best recipe for half as long
fewest      how few images, each seen once, come to 98.6 %
default     what the recipe `default` reaches, over several seeds
costs       what an image of each of these trainings costs in time
forgetting  train on the digits 0 to 4, go on with 5 to 9, with and without old images replayed;
            accuracy on both halves of the eval split
collapse    weights drawn from U(-1, 1), as in the tutorial's part three: the loss of the first 20
            steps, and what a watch of the net says about them
pretrained  train the weights that come with the package, and put them there

The last three go into the pages of docs/ and into the package. What the page says of a recipe goes
into the READMEs' table of recipes, too.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_tables import write_table
from reproduction import (
    accuracy,
    calibration,
    checkpoints,
    collapse,
    costs,
    forgetting,
    initialization,
    ladder,
    mistakes,
    pretrained,
    processes,
    recipes,
    robustness,
    traps,
    weights,
)
from reproduction.compared import MOST, Compared, Scale
from reproduction.page import figures_of, page, rounded
from reproduction.shown import Shown
from reproduction.trainings import Results, train_all

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError, DataError, PaddleMnistError, unknown_name
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.system.devices import require_paddle
from paddle_mnist.system.files import write_atomically

CLAIMS = (
    *accuracy.CLAIMS,
    *ladder.CLAIMS,
    *recipes.CLAIMS,
    *costs.CLAIMS,
    *initialization.CLAIMS,
    *checkpoints.CLAIMS,
    *traps.CLAIMS,
    *processes.CLAIMS,
    *weights.CLAIMS,
    *mistakes.CLAIMS,
    *calibration.CLAIMS,
    *robustness.CLAIMS,
)
ROOT = Path(__file__).parents[1]
PAGE, FIGURES, RESULTS = (
    ROOT / name for name in ("REPRODUCTION.md", "docs/figures", "docs/reproduction")
)
INTO_DOCS = ("forgetting", "collapse", "pretrained")


def write_page(args, data: Data, chosen: Sequence) -> None:
    """Train what has no result yet, and write `REPRODUCTION.md` from all that there are.

    chosen: the claims that are looked at, and told; the page tells what is known of all.
    """
    scale = Scale(args.seeds, args.quick)
    output = Path(args.output).absolute()
    beside = output / ("quick" if args.quick else "anew") if args.quick or args.anew else None
    folder, pictures = beside or RESULTS, beside or FIGURES
    results = Results(folder / "trainings.json")
    compared = [one for one in chosen if isinstance(one, Compared)]
    trainings = [training for one in compared for training in one.trainings(scale)]
    try:
        train_all(trainings, results, data, beside or output, args.jobs)
        for one in chosen:
            if one not in compared:
                one.run(data, folder, output, scale)
    finally:  # what is done is told, even if the rest fails
        reports = found(results, data, scale)
        tell(args, chosen, reports)
        text = whole(results, reports, pictures)
        if beside:
            write_atomically(beside / "REPRODUCTION.md", text.encode())
        else:
            replace(PAGE, text)
            write_readmes(reports)
        draw(CLAIMS, reports, data, pictures)  # a row may be in several of them


def found(results: Results, data: Data, scale: Scale) -> dict[str, Any]:
    """What is known of each claim."""
    folder = results.path.parent
    shown = [one for one in CLAIMS if isinstance(one, Shown)]
    reports = {one.id: one.report(folder, data) for one in shown}
    seconds = costs.medians(reports["costs"])
    for one in CLAIMS:
        if one not in shown:
            reports[one.id] = one.report(results, data, scale, seconds)
    return reports


def tell(args, chosen: Sequence, reports: Mapping[str, Any]) -> None:
    for one in chosen:
        report = reports[one.id]
        figures = rounded(one.figures(report))
        print(json.dumps({one.id: figures}) if args.json else one.table(report))


def draw(chosen: Sequence, reports: Mapping[str, Any], data: Data, folder: Path) -> None:
    from paddle_mnist.plots.figure import save_figures

    drawn = {
        f"reproduction-{one.id}": one.draw(reports[one.id], data)
        for one in chosen
        if one.draw and one.measured(reports[one.id])
    }
    save_figures(drawn, folder, [f"{name}.png" for name in drawn])


def whole(results: Results, reports: Mapping[str, Any], pictures: Path) -> str:
    """The page. pictures: where its figures are, beside or below it."""
    base = pictures if pictures != FIGURES else PAGE.parent
    drawn = {
        one.id: (pictures / f"reproduction-{one.id}.png").relative_to(base).as_posix()
        for one in CLAIMS
        if one.draw and one.measured(reports[one.id])
    }
    return page(CLAIMS, reports, ", ".join(results.versions()) or "nothing is trained yet", drawn)


def replace(path: Path, text: str) -> None:
    """Write the page, unless it would lose what the one that is there knows."""
    if path.exists():
        lost = known(figures_of(path.read_text("utf-8"))) - known(figures_of(text))
        if lost:
            raise PaddleMnistError(
                f"{path}: left as it is, for this code has no result of "
                f"{', '.join(sorted(' '.join(filter(None, one)) for one in lost))}; measure these "
                "too, or with --anew beside it; if nothing asks for them any more, delete the page"
            )
    write_atomically(path, text.encode())


def write_readmes(reports: Mapping[str, Any]) -> None:
    """Put into the READMEs' table of recipes what the page's seeds reached."""
    for readme in recipes.FIGURES:
        for name, (claim, row) in recipes.MEASURED.items():
            if row in reports[claim]:
                text = recipes.figures(readme, name, reports)
                write_table(ROOT / readme, f"reproduce {name}", text)


def known(figures: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """What figures there are: of claims, of their rows, and of the seeds of these."""
    found = {(claim,) for claim, one in figures.items() if one}
    for claim, one in figures.items():
        rows = one if "seeds" not in one else {"": one}
        for row, report in rows.items():
            if isinstance(report, dict) and isinstance(report.get("seeds"), list):
                found |= {(claim, row, f"seed {seed}") for seed in report["seeds"]}
    return found


def main(argv) -> None:
    parser = Parser(prog="tools/reproduce.py", description=__doc__)
    parser.add_argument("--only", default="", metavar="ID,ID", help="[all of the page]")
    parser.add_argument("--data", default="auto", metavar="PATH", help="MNIST [auto]")
    parser.add_argument("--output", default="work/output/reproduce", metavar="FOLDER")
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        metavar="N",
        help="[each table's own, which its verdict takes]",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at once [1]")
    parser.add_argument("--quick", action="store_true", help="little data, one epoch: a rehearsal")
    parser.add_argument(
        "--anew",
        action="store_true",
        help="take no result of docs; all goes into OUTPUT/anew, and goes on from there",
    )
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="of forgetting [3]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the last three [1]")
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
    from paddle_mnist.mnist.cache import open_data

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
    from paddle_mnist.plots.figure import save_figures

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
        save_figures(drawn, Path(args.docs, "figures"), [f"{name}.png" for name in drawn])


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, log_to=sys.stderr))

#!/usr/bin/env python
"""Measure what the documents claim, with the real MNIST. Without --only: all of REPRODUCTION.md.

{claims}

These go into the pages of docs/ and into the package:

forgetting      train on the digits 0 to 4, then on 5 to 9, with and without replaying old images;
                accuracy on both halves of the eval split
continued       train further on 500, 3,000 and 20,000 new images, with the schedule of continued
                training and with the recipe's, with and without softening the net
collapse        weights drawn from U(-1, 1), as in the tutorial's part three: the loss of the first
                20 steps, and what a watch of the net says about them
detector        train what tells that a picture is probably not one digit, compare it with others,
                and put it into the package; to be made again after `pretrained`
pretrained      train the weights that come with the package, and put them there
figures         train the recipe `default`, and draw the figures of the READMEs

What the page says of a recipe goes into the READMEs and the pages on training, too.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_tables import write_table
from reproduction import (
    accuracy,
    calibration,
    checkpoint_files,
    costs,
    initialization,
    ladder,
    mistakes,
    processes,
    recipes,
    resuming,
    robustness,
    search,
    traps,
    weights,
)
from reproduction.claims import Claim, Report
from reproduction.comparison import MOST_SEEDS
from reproduction.into_docs import INTO_DOCS, measure_for_docs
from reproduction.page import all_figures, measured_figures, page, rounded
from reproduction.texts import Text, fill
from reproduction.trainings import train_missing
from reproduction.workspace import Scale, Workspace

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError, DataError, PaddleMnistError, unknown_name
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.system.devices import require_paddle
from paddle_mnist.system.files import write_atomically

NAMES, PATTERN = checkpoint_files.CLAIMS
CLAIMS = (
    *accuracy.CLAIMS,
    *ladder.CLAIMS,
    search.CLAIM,
    recipes.CLAIM,
    costs.CLAIM,
    initialization.CLAIM,
    NAMES,
    resuming.CLAIM,
    PATTERN,
    *traps.CLAIMS,
    *processes.CLAIMS,
    *weights.CLAIMS,
    mistakes.CLAIM,
    calibration.CLAIM,
    robustness.CLAIM,
)
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/reproduction"


@dataclass(frozen=True)
class Place:
    """Where the pages are, in the order of `Text`; all their figures as JSON; their pictures."""

    pages: tuple[Path, Path]
    figures: Path
    pictures: Path


PLACE = Place(
    (ROOT / "REPRODUCTION.md", ROOT / "docs/zh/reproduction.md"),
    RESULTS / "page.json",
    ROOT / "docs/figures",
)


def beside_place(folder: Path) -> Place:
    """Return a place beside the repository's own page."""
    pages = folder / "REPRODUCTION.md", folder / "REPRODUCTION.zh-CN.md"
    return Place(pages, folder / "page.json", folder)


def measure_and_write(args: argparse.Namespace, data: Data, chosen: Sequence[Claim]) -> None:
    """Measure what the chosen claims lack, unless `--page-only`, and write the page."""
    output = Path(args.output).absolute()
    beside = output / ("quick" if args.quick else "anew") if args.quick or args.anew else None
    scale = Scale(args.seeds, args.quick)
    workspace = Workspace(data, beside or RESULTS, beside or output, scale, args.jobs)
    place = beside_place(beside) if beside else PLACE
    try:
        if not args.page_only:
            measure(workspace, chosen)
    finally:  # what is measured is shown, even if the rest fails
        reports = all_reports(workspace)
        for claim in chosen:
            show(claim, reports[claim.id], args.json)
        write_pages(workspace, reports, place)
        if not beside:
            write_recipes(reports)
        draw(reports, data, place.pictures)


def measure(workspace: Workspace, chosen: Sequence[Claim]) -> None:
    """Train and measure what the claims lack."""
    trainings = [training for claim in chosen for training in claim.trainings(workspace.scale)]
    train_missing(trainings, workspace)
    for claim in chosen:
        claim.measure_missing(workspace)


def all_reports(workspace: Workspace) -> dict[str, Report]:
    """Return what is known of each claim."""
    seconds = costs.medians(costs.CLAIM.report(workspace, {}))
    return {claim.id: claim.report(workspace, seconds) for claim in CLAIMS}


def show(claim: Claim, report: Report, as_json: bool) -> None:
    figures = rounded(claim.figures(report))
    print(json.dumps({claim.id: figures}) if as_json else claim.table(report).en)


def draw(reports: Mapping[str, Report], data: Data, folder: Path) -> None:
    from reproduction.drawing import save_figures

    figures = {_picture(claim): claim.draw(reports[claim.id], data) for claim in _drawn(reports)}
    save_figures(figures, folder)


def _drawn(reports: Mapping[str, Report]) -> list[Claim]:
    """Return the claims that have a figure."""
    return [claim for claim in CLAIMS if claim.draw and claim.is_complete(reports[claim.id])]


def _picture(claim: Claim) -> str:
    return f"reproduction-{claim.id}"


def write_pages(workspace: Workspace, reports: Mapping[str, Report], place: Place) -> None:
    """Write the page in both languages, and all its figures as JSON."""
    replace(place.figures, all_figures(CLAIMS, reports))
    for path, text in zip(place.pages, page_text(workspace, reports, place)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())


def page_text(workspace: Workspace, reports: Mapping[str, Report], place: Place = PLACE) -> Text:
    """Return the page in both languages."""
    folders = [os.path.relpath(place.pictures, path.parent) for path in place.pages]
    pictures = {
        claim.id: Text(*(str(Path(folder, f"{_picture(claim)}.png")) for folder in folders))
        for claim in _drawn(reports)
    }
    versions = ", ".join(workspace.results.versions()) or "nothing is trained yet"
    return page(CLAIMS, reports, versions, pictures)


def replace(path: Path, text: str) -> None:
    """Write the page's figures, unless some of the present ones would be lost."""
    if path.exists():
        present = measured_figures(json.loads(path.read_text("utf-8")))
        lost = present - measured_figures(json.loads(text))
        if lost:
            missing = sorted(" ".join(filter(None, names)) for names in lost)
            raise PaddleMnistError(
                f"{path}: not replaced, because this code has no result of {', '.join(missing)}; "
                "measure these too, or all elsewhere with --anew; if they are no longer needed, "
                "delete the file"
            )
    write_atomically(path, text.encode())


def write_recipes(reports: Mapping[str, Report]) -> None:
    """Put what the seeds reached into the pages that list recipes."""
    for file in recipes.FIGURES:
        for name, (claim, row) in recipes.MEASURED.items():
            if row in reports[claim]:
                text = recipes.figures(file, name, reports)
                write_table(ROOT / file, f"reproduce {name}", text)


def description() -> str:
    """Return the help's text, with all claims."""
    return __doc__.format(
        claims="\n".join(f"{c.id:14}  {fill(c.id, 'heading').en}" for c in CLAIMS)
    )


def main(argv) -> None:
    parser = Parser(prog="tools/reproduce.py", description=description())
    parser.add_argument("--only", default="", metavar="ID,ID", help="[all of the page]")
    parser.add_argument("--data", default="auto", metavar="PATH", help="MNIST [auto]")
    parser.add_argument("--output", default="work/output/reproduce", metavar="FOLDER")
    parser.add_argument(
        "--seeds", type=int, default=0, metavar="N", help="[as many as each verdict needs]"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at once [1]")
    parser.add_argument("--quick", action="store_true", help="a quick run: little data, one epoch")
    parser.add_argument(
        "--anew",
        action="store_true",
        help="use no stored results; write all to OUTPUT/anew, and resume from there",
    )
    parser.add_argument(
        "--page-only",
        action="store_true",
        help="train and measure nothing: write the page and its figures from the stored results",
    )
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="of forgetting [3]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the last four [1]")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--docs", metavar="FOLDER", help="put tables and figures into the pages there"
    )
    args = parser.parse_args(argv)
    chosen = _ids(args.only)
    if not 0 <= args.seeds < MOST_SEEDS or args.jobs < 1:
        raise ConfigError(
            f"seeds is {args.seeds}, jobs is {args.jobs}; expected 0 to {MOST_SEEDS - 1}, and at "
            "least 1"
        )
    require_paddle()
    from paddle_mnist.mnist.cache import open_data

    data = open_data(args.data)
    if data.name == "digits" and not args.quick:
        raise DataError(f"data is {data.source}; expected MNIST; name it with --data")
    packaged = {"pretrained", "detector"}.intersection(chosen)
    if packaged and (args.quick or data.name != "mnist"):
        raise DataError(
            f"data is {data.source}{', quick' * args.quick}; the package's weights are of all of "
            "MNIST: name it with --data, without --quick"
        )
    for name in INTO_DOCS:
        if name in chosen:
            measure_for_docs(args, name, data)
    if claims := [claim for claim in CLAIMS if claim.id in chosen]:
        measure_and_write(args, data, claims)


def _ids(text: str) -> list[str]:
    known = [*INTO_DOCS, *(claim.id for claim in CLAIMS)]
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise ConfigError(unknown_name("--only", name, known))
    return chosen or known[len(INTO_DOCS) :]


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, prints_data=True))

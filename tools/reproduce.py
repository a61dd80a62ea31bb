#!/usr/bin/env python
"""Measure what the documents claim, with the real MNIST. Without --only: all of REPRODUCTION.md.

{claims}

Of these, `candidates` is a finished search: its results are stored, and nothing is trained for it.

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

The pages are written by hand; numbers and tables between marks are written here, and predicates
beside the sentences are checked (tools/reproduction/page.py).
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from reproduction import accuracy, charts, costs, demonstrations, initialization, ladder, mistakes
from reproduction import pretrained_net as net
from reproduction.claims import Claim, Report
from reproduction.comparison import MOST_SEEDS
from reproduction.into_docs import INTO_DOCS, measure_for_docs
from reproduction.page import (
    PAGES,
    STORED,
    all_figures,
    headings,
    predicates,
    problems,
    stored_page,
    write_pages,
)
from reproduction.trainings import train_missing
from reproduction.workspace import Scale, Workspace

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError, DataError, unknown_name
from paddle_mnist.mnist.images import Images, open_data
from paddle_mnist.system.devices import require_paddle
from paddle_mnist.system.files import write_atomically

CLAIMS = (
    *accuracy.CLAIMS,
    *ladder.CLAIMS,
    ladder.SEARCH,
    ladder.DEFAULT,
    costs.CLAIM,
    initialization.CLAIM,
    demonstrations.NAMES,
    demonstrations.RESUMED,
    demonstrations.PATTERN,
    net.AVERAGES,
    demonstrations.UNSTEPPED,
    *demonstrations.WEIGHTS,
    mistakes.CLAIM,
    net.CALIBRATION,
    net.ROBUSTNESS,
)
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/reproduction"
GLOSSARY = "docs/zh/tables.yaml"


def measure_and_write(args: argparse.Namespace, data: Images, chosen: Sequence[Claim]) -> int:
    """Measure what the chosen claims lack; write figures, pages and pictures, and check the pages.

    With `--quick` and `--anew`, below OUTPUT: copies of the pages, in the repository's layout.
    """
    output, root = Path(args.output).absolute(), ROOT
    if args.quick or args.anew:
        output = root = output / ("quick" if args.quick else "anew")
        for name in (*PAGES[0], GLOSSARY):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, root / name)
    scale = Scale(args.seeds, args.quick)
    workspace = Workspace(data, root / "docs/reproduction", output, scale, args.jobs)
    try:
        train_missing([one for claim in chosen for one in claim.trainings(scale)], workspace)
        for claim in chosen:
            claim.measure_missing(workspace)
    finally:  # what is measured is shown, even if the rest fails
        reports = all_reports(workspace)
        for claim in chosen:
            print(claim.table(reports[claim.id]))
        write_atomically(root / STORED, all_figures(CLAIMS, reports).encode())
        write_pages(stored_page(CLAIMS, root), root)
        draw(reports, data, root / "docs/figures")
    if root == ROOT:
        return check()
    for place, predicate, holds in predicates(stored_page(CLAIMS, root), root):
        if holds is False and not args.quick:
            print(f"{place}: {predicate} does not hold for these results", file=sys.stderr)
    return 0


def check() -> int:
    """Print what the pages say otherwise than the stored results; return 1 if there is anything."""
    lines = list(problems(stored_page(CLAIMS, ROOT), ROOT))
    print("\n".join(lines) or "numbers, tables and predicates of the pages are as measured")
    return 1 if lines else 0


def all_reports(workspace: Workspace) -> dict[str, Report]:
    """Return what is known of each claim."""
    seconds = costs.medians(costs.CLAIM.report(workspace, {}))
    return {claim.id: claim.report(workspace, seconds) for claim in CLAIMS}


def draw(reports: Mapping[str, Report], data: Images, folder: Path) -> None:
    figures = {
        f"reproduction-{claim.id}": claim.draw(reports[claim.id], data)
        for claim in CLAIMS
        if claim.draw and claim.is_complete(reports[claim.id])
    }
    charts.save_small(figures, folder)


def description() -> str:
    """Return the help's text, with all claims."""
    questions = headings(ROOT)
    return __doc__.format(claims="\n".join(f"{c.id:14}  {questions[c.id]}" for c in CLAIMS))


def parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(prog="tools/reproduce.py", description=description())
    parser.add_argument("--only", default="", metavar="ID,ID", help="[all of the page]")
    parser.add_argument("--data", default="auto", metavar="PATH", help="MNIST [auto]")
    parser.add_argument("--output", default="work/output/reproduce", metavar="FOLDER")
    parser.add_argument(
        "--seeds", type=int, default=0, metavar="N", help="[as many as each claim needs]"
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
        help="train and measure nothing: write the repository's pages from its stored results",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only check, without MNIST, that numbers, tables and predicates of the pages are what "
        "the stored results give",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the last four [1]")
    parser.add_argument(
        "--docs", metavar="FOLDER", help="put tables and figures into the pages there"
    )
    return parser


def main(argv) -> int:
    args = parser().parse_args(argv)
    chosen = _ids(args.only)
    if not 0 <= args.seeds < MOST_SEEDS or args.jobs < 1:
        raise ConfigError(
            f"seeds is {args.seeds}, jobs is {args.jobs}; expected 0 to {MOST_SEEDS - 1}, and at "
            "least 1"
        )
    if args.check:
        return check()
    claims = [claim for claim in CLAIMS if claim.id in chosen]
    documents = [name for name in INTO_DOCS if name in chosen]
    data = None if args.page_only else open_images(args, chosen)
    for name in documents:
        measure_for_docs(args, name, data)
    if claims and args.page_only:
        write_pages(stored_page(CLAIMS, ROOT), ROOT)
        return check()
    return measure_and_write(args, data, claims) if claims else 0


def open_images(args: argparse.Namespace, chosen: Sequence[str]) -> Images:
    """Open what `--data` names, if the chosen measurements may be of it."""
    require_paddle()
    data = open_data(args.data)
    if data.name == "digits" and not args.quick:
        raise DataError(f"data is {data.source}; expected MNIST; name it with --data")
    packaged = {"pretrained", "detector"}.intersection(chosen)
    if packaged and (args.quick or data.name != "mnist"):
        raise DataError(
            f"data is {data.source}{', quick' * args.quick}; the package's weights are of all of "
            "MNIST: name it with --data, without --quick"
        )
    return data


def _ids(text: str) -> list[str]:
    known = [*INTO_DOCS, *(claim.id for claim in CLAIMS)]
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise ConfigError(unknown_name("--only", name, known))
    return chosen or known[len(INTO_DOCS) :]


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, prints_data=True))

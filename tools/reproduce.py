#!/usr/bin/env python
"""Measure what the documents claim, with the real MNIST. Without --only: all of REPRODUCTION.md.

{claims}

Others go into the pages of docs/ and into the package:

forgetting      train on the digits 0 to 4, then on 5 to 9, with and without replaying old images;
                accuracy on both halves of the eval split
collapse        weights drawn from U(-1, 1), as in the tutorial's part three: the loss of the first
                20 steps, and what a watch of the net says about them
detector        train the net that detects pictures without a single digit, and put it into the
                package; train it again after `pretrained`
pretrained      train the weights that come with the package, and put them into it
figures         train the recipe `default`, and draw the figures of the READMEs

The pages are written by hand; numbers and tables between marks are written here, and predicates
beside the sentences are checked (tools/reproduction/page.py).
"""

import argparse
import io
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measured import ROOT
from detector import training as detector
from reproduction import accuracy, demonstrations, incremental, initialization, pretrained
from reproduction.claims import SEED, Claim, Experiment, Workspace
from reproduction.comparison import MOST_SEEDS
from reproduction.page import PAGES, headings, predicates, problems, stored_contents, write_pages
from reproduction.trainings import Row, train, train_missing

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError, DataError, unknown_name
from paddle_mnist.mnist.images import Images, open_data
from paddle_mnist.system.devices import require_paddle, zlib_is_broken
from paddle_mnist.system.files import write_atomically

README_FIGURES = ("curves.png", "feature_maps.png", "mistakes.png")
PALETTE = 256  # colours, which look like those of the whole figure


def draw_for_readmes(work: Workspace, folder: Path) -> dict[str, Any]:
    """Train the recipe `default`, and draw the figures of the READMEs."""
    from paddle_mnist.mnist.run_figures import plot_runs

    run, figures = folder / "run", work.root / "docs/figures"
    train("default", {"data": work.data.path, "seed": SEED, "log_every": 100}, run)
    plot_runs([run], str(figures), "cpu", README_FIGURES)
    for name in README_FIGURES:
        shrink(figures / name)
    return {"files": list(README_FIGURES)}


def shrink(path: Path) -> None:
    """Replace the colours of a PNG by a palette, unless Paddle breaks the zlib that does it."""
    if zlib_is_broken():
        return
    from PIL import Image

    data = io.BytesIO()
    with Image.open(path) as image:
        opaque = image.convert("RGB")
    palette = opaque.quantize(PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(data, "png", optimize=True)
    write_atomically(path, data.getvalue())


CLAIMS: tuple[Claim, ...] = (  # of REPRODUCTION.md
    *accuracy.OF_TUTORIAL,
    initialization.CLAIM,
    *demonstrations.CLAIMS,
    *accuracy.OF_RECIPES,
)
OTHER_CLAIMS: tuple[Claim, ...] = (  # of other pages, and of the package
    incremental.FORGOTTEN,
    initialization.COLLAPSED,
    Experiment("detector", detector.measure, detector.tabulate),
    pretrained.CLAIM,
    Experiment("figures", draw_for_readmes),
)
ALL = {claim.id: claim for claim in (*CLAIMS, *OTHER_CLAIMS)}
GLOSSARY = "docs/zh/tables.yaml"


def measure_and_write(work: Workspace, chosen: Sequence[Claim], again: bool) -> int:
    """Measure the chosen claims; write figures, pages and pictures, and check the pages.

    again: also measure experiments whose results are stored.
    """
    trainings: dict[str, tuple[Row, int]] = {}
    for claim in chosen:
        trainings.update(claim.trainings(work))
    try:
        train_missing(trainings, work)
        for claim in chosen:
            if again or not claim.report(work):
                claim.measure_into(work)
    finally:  # shows what was measured, even if the rest fails
        contents = stored_contents(ALL.values(), work)
        for claim in chosen:
            report = claim.report(work)
            print(claim.table(report))
        write_pages(contents, work.root)
    if work.root == ROOT:
        return check()
    for place, predicate, holds in predicates(contents, work.root):
        if holds is False and not work.is_quick:
            print(f"{place}: {predicate} does not hold for these results", file=sys.stderr)
    return 0


def check() -> int:
    """Print where the pages differ from the stored results; return 1 if they do."""
    lines = list(problems(stored_contents(ALL.values(), Workspace()), ROOT))
    print("\n".join(lines) or "numbers, tables and predicates of the pages are as measured")
    return 1 if lines else 0


def description() -> str:
    """Return the help's text, with all claims."""
    questions = headings(ROOT)
    return __doc__.format(claims="\n".join(f"{c.id:14}  {questions[c.id]}" for c in CLAIMS))


def parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(prog="tools/reproduce.py", description=description())
    parser.add_argument(
        "--only", default="", metavar="ID,ID", help="measure these, stored or not [all of the page]"
    )
    parser.add_argument("--data", default="auto", metavar="PATH", help="MNIST [auto]")
    parser.add_argument("--output", default="work/output/reproduce", metavar="FOLDER")
    parser.add_argument(
        "--seeds", type=int, default=0, metavar="N", help="[as many as each claim needs]"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at once [1]")
    parser.add_argument("--quick", action="store_true", help="a quick run: little data, one epoch")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="use no stored results; write all to OUTPUT/fresh, and resume from there",
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
    return parser


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    chosen = _chosen(args.only)
    if not 0 <= args.seeds < MOST_SEEDS or args.jobs < 1:
        raise ConfigError(
            f"seeds is {args.seeds}, jobs is {args.jobs}; expected 0 to {MOST_SEEDS - 1}, and at "
            "least 1"
        )
    if args.page_only:
        write_pages(stored_contents(ALL.values(), Workspace()), ROOT)
    if args.page_only or args.check:
        return check()
    data, output, root = open_images(args, chosen), Path(args.output).absolute(), ROOT
    if args.quick or args.fresh:  # with copies of the pages, in the repository's layout
        output = root = output / ("quick" if args.quick else "fresh")
        for name in (*PAGES[0], GLOSSARY):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, root / name)
    work = Workspace(root, data, output, args.seeds, args.jobs, args.quick)
    return measure_and_write(work, chosen, again=bool(args.only))


def open_images(args: argparse.Namespace, chosen: Sequence[Claim]) -> Images:
    """Open what `--data` names, if the chosen measurements may be of it."""
    require_paddle()
    data = open_data(args.data)
    if data.name == "digits" and not args.quick:
        raise DataError(f"data is {data.source}; expected MNIST; name it with --data")
    packaged = {"pretrained", "detector"}.intersection(claim.id for claim in chosen)
    if packaged and (args.quick or data.name != "mnist"):
        raise DataError(
            f"data is {data.source}{', quick' * args.quick}; the package's weights are of all of "
            "MNIST: name it with --data, without --quick"
        )
    return data


def _chosen(text: str) -> Sequence[Claim]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in ALL:
            raise ConfigError(unknown_name("--only", name, [*ALL]))
    return [ALL[name] for name in names] or CLAIMS


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, prints_data=True))

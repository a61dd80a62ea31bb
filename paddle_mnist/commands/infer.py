"""Read the digits in pictures: photographs or drawings, dark on light or light on dark.

By default, this command uses the weights that come with the package (pretrained). Each picture gets
a score that says how much it looks like a single MNIST digit. Pictures that are probably not a
digit, contain several digits (without --many) or cannot be opened get a reason instead of a digit.
Exit code 8: some pictures could not be read.
"""

import csv
import functools
import io
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._train_options import add_device_option
from paddle_mnist.commands._weights import KINDS, add_weights_arguments, named_weights
from paddle_mnist.errors import ConfigError, PicturesError
from paddle_mnist.system.devices import require_paddle

if TYPE_CHECKING:
    from paddle_mnist.mnist.pictures import Reading

log = logging.getLogger("paddle_mnist")


@command(prints_data=True)
def main(argv: Sequence[str]) -> None:
    """Read the pictures and print their digits; return the exit code."""
    args = _parser().parse_args(argv)
    if not (args.pictures or args.example):
        raise ConfigError("no picture is given; expected files or folders, or --example")
    named = named_weights(args)
    require_paddle(hide_warnings=True)
    from tqdm import tqdm

    from paddle_mnist.mnist.pictures import read_pictures
    from paddle_mnist.mnist.pictures.open import pictures_in
    from paddle_mnist.mnist.predictor import open_predictor
    from paddle_mnist.mnist.pretrained import EXAMPLE

    predictor = open_predictor(*named, args.net, device=args.device)
    if not (predictor.reads_digits or args.unchecked):
        dataset = predictor.about["dataset"]
        log.warning(
            "trained on %s, for which there is no score: pictures of other things are not rejected",
            dataset,
        )
    files = list(pictures_in(args.pictures))
    if args.example:
        files.insert(0, str(EXAMPLE))
    csv_lines = functools.partial(_csv_lines, args.many)
    write = None if args.json else csv_lines if args.csv else _table_line
    if write:
        columns = (*COLUMNS, *BOX_COLUMNS) if args.many else COLUMNS
        print(",".join(columns) if args.csv else HEADER)
    # Lines on the same terminal show the progress as well.
    hidden = not sys.stderr.isatty() or (write is not None and sys.stdout.isatty())
    readings = []
    reading_files = read_pictures(predictor, files, args.many, not args.unchecked)
    for reading in tqdm(reading_files, total=len(files), unit="picture", disable=hidden):
        readings.append(reading)
        if write:
            print(write(reading), flush=True)
    if args.json:
        print(json.dumps([reading.as_dict() for reading in readings], indent=1))
    if args.show:
        _write_sheet(args.show, readings, args.many)
    failed = sum(reading.error is not None for reading in readings)
    if failed:
        raise PicturesError(f"{failed} of {len(readings)} pictures could not be read; see above")


def _parser() -> Parser:
    parser = Parser("paddle-mnist infer", __doc__, "photo.jpg")
    parser.add_argument(
        "pictures", nargs="*", metavar="PICTURE", help="files, folders, patterns, or - for stdin"
    )
    parser.add_argument(
        "--example", action="store_true", help="read the picture that comes with the package"
    )
    add_weights_arguments(parser, "pretrained", f"{KINDS}, an exported model", first=False)
    add_device_option(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list")
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    parser.add_argument(
        "--many", action="store_true", help="read all digits of a picture, in reading order"
    )
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="return a digit also for pictures that are probably not a digit",
    )
    parser.add_argument(
        "--show",
        metavar="FILE.png",
        help="write a picture of the inputs of the net or, with --many, of the boxes",
    )
    return parser


def _write_sheet(path: str, readings: Sequence["Reading"], many: bool) -> None:
    """Write one picture with the net's inputs, or with the digits found on each page."""
    from paddle_mnist.mnist.pictures.show import ON_A_SHEET, PAGES_ON_A_SHEET, pages, sheet
    from paddle_mnist.system.files import write_atomically

    png = io.BytesIO()
    (pages if many else sheet)(readings).save(png, "PNG")
    write_atomically(Path(path), png.getvalue())
    shown = PAGES_ON_A_SHEET if many else ON_A_SHEET
    if len(readings) > shown:
        print(f"{path}: the first {shown} of {len(readings)}", file=sys.stderr)


HEADER = "digit  probability  score  file"


def _table_line(reading: "Reading") -> str:
    score = "    -" if reading.score is None else f"{reading.score:5.2f}"
    if reading.error:
        return f"    -            -  {score}  {reading.file}: {reading.error}"
    note = f" ({reading.note})" if reading.note else ""
    # A number is only as reliable as its least probable digit.
    digits = reading.digits or (reading,)
    probability = min(digit.probability for digit in digits if digit.probability is not None)
    return f"{reading.text:>5}  {probability:11.4f}  {score}  {reading.file}{note}"


COLUMNS = ("file", "digit", "probability", "error", "score")
BOX_COLUMNS = ("left", "top", "width", "height")


def _csv_lines(many: bool, reading: "Reading") -> str:
    """Return the line of a picture, or one for each of its digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for digit in reading.digits or (reading,):
        values = digit.as_dict()
        cells = [values[name] for name in COLUMNS]
        if many:
            cells += values["box"] or [None] * len(BOX_COLUMNS)
        writer.writerow(cells)
    return text.getvalue().rstrip("\n")

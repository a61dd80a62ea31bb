"""Read the digits in pictures: photographs or drawings, dark on light or light on dark.

Without --model, --checkpoint and --run the weights that come with the package (pretrained) read
them. Exit code 8: some could not be read.
"""

import csv
import io
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from paddle_mnist.commands import Parser, program_name, run_command
from paddle_mnist.errors import ConfigError, PicturesError
from paddle_mnist.system.devices import require_paddle

log = logging.getLogger("paddle_mnist")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Read the pictures and print their digits; return the exit code."""
    return run_command(_infer, argv, log_to=sys.stderr)


def _infer(argv: Sequence[str]) -> None:
    args = _parser().parse_args(argv)
    if args.model and args.run:
        raise ConfigError("--model and --run are given; expected one of them; --help tells")
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle warns when it exports its softmax
    require_paddle()
    from paddle_mnist.mnist.infer import pictures_in, read_pictures

    predictor = _predictor(args)
    write = None if args.json else _csv_line if args.csv else _table_line
    if write:
        print("file,digit,probability,error" if args.csv else "digit  probability  file")
    readings = []
    for reading in read_pictures(predictor, pictures_in(args.pictures)):
        readings.append(reading)
        if write:
            print(write(reading), flush=True)
    if args.json:
        print(json.dumps([reading.as_dict() for reading in readings], indent=1))
    if args.show:
        _write_sheet(args.show, readings)
    failed = sum(reading.error is not None for reading in readings)
    if failed:
        raise PicturesError(f"{failed} of {len(readings)} pictures could not be read; see above")


def _parser() -> Parser:
    parser = Parser(prog=program_name("infer"), description=__doc__)
    parser.add_argument(
        "pictures", nargs="+", metavar="PICTURE", help="files, folders, patterns, or - for stdin"
    )
    net = parser.add_mutually_exclusive_group()
    net.add_argument("--model", metavar="FOLDER", help=f"what {program_name('export')} wrote")
    net.add_argument(
        "--checkpoint",
        "-k",
        metavar="PATH",
        help="latest, best, pretrained, a run, a checkpoint, or a .pdparams [pretrained]",
    )
    parser.add_argument(
        "--run",
        help="run directory of latest and best [newest in work/output]; alone: what it ended with",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu:0 [auto]")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON list")
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    parser.add_argument("--show", metavar="FILE.png", help="write a picture of what the net saw")
    return parser


def _predictor(args):
    """Return the predictor of the model, run or checkpoint that the options name."""
    from paddle_mnist.mnist.infer import pretrained_predictor, weights_predictor
    from paddle_mnist.mnist.predictor import Predictor
    from paddle_mnist.mnist.pretrained import find_weights

    if args.model:
        predictor = Predictor(args.model, args.device)
    elif args.checkpoint in (None, "pretrained") and not args.run:
        log.info("pretrained weights; for those of a run: --checkpoint")
        predictor = pretrained_predictor(device=args.device)
    else:
        weights = find_weights(args.checkpoint, args.run)
        log.info("weights: %s", weights.path)
        predictor = weights_predictor(weights, device=args.device)
    if "probabilities" not in predictor.outputs:
        raise ConfigError(
            f"{args.model}: gives {', '.join(predictor.outputs)}; expected probabilities among "
            "them; export it with --outputs probabilities"
        )
    return predictor


def _write_sheet(path: str, readings) -> None:
    """Write a picture of what the net saw in each picture."""
    from paddle_mnist.mnist.infer import ON_A_SHEET, sheet
    from paddle_mnist.system.files import write_atomically

    png = io.BytesIO()
    sheet(readings).save(png, "PNG")
    write_atomically(Path(path), png.getvalue())
    if len(readings) > ON_A_SHEET:
        print(f"{path}: the first {ON_A_SHEET} of {len(readings)}", file=sys.stderr)


def _csv_line(reading) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(reading.as_dict().values())
    return text.getvalue()


def _table_line(reading) -> str:
    if reading.error:
        return f"    -            -  {reading.file}: {reading.error}"
    note = f" ({reading.note})" if reading.note else ""
    return f"{reading.digit:5}  {reading.probability:11.4f}  {reading.file}{note}"

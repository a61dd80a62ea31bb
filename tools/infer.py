#!/usr/bin/env python
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
from pathlib import Path

from paddle_mnist.commands.cli import Parser, run_command
from paddle_mnist.errors import ConfigError, PicturesError
from paddle_mnist.system.devices import require_paddle

log = logging.getLogger("paddle_mnist")


def main(argv) -> None:
    parser = Parser(prog="tools/infer.py", description=__doc__)
    parser.add_argument(
        "pictures", nargs="+", metavar="PICTURE", help="files, folders, patterns, or - for stdin"
    )
    net = parser.add_mutually_exclusive_group()
    net.add_argument("--model", metavar="FOLDER", help="what tools/export_model.py wrote")
    net.add_argument(
        *("--checkpoint", "-k"),
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
    args = parser.parse_args(argv)
    if args.model and args.run:
        raise ConfigError("--model and --run are given; expected one of them; --help tells")
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle warns when it exports its softmax
    require_paddle()
    from paddle_mnist.mnist.infer import (
        ON_A_SHEET,
        pictures_in,
        pretrained_predictor,
        read_pictures,
        sheet,
        weights_predictor,
    )
    from paddle_mnist.mnist.predictor import Predictor
    from paddle_mnist.system.files import write_atomically
    from paddle_mnist.training.run_directory import find_weights

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
    readings = []
    write = None if args.json else csv_line if args.csv else table_line
    if write:
        print("file,digit,probability,error" if args.csv else "digit  probability  file")
    for reading in read_pictures(predictor, pictures_in(args.pictures)):
        readings.append(reading)
        if write:
            print(write(reading), flush=True)
    if args.json:
        print(json.dumps([reading.as_dict() for reading in readings], indent=1))
    if args.show:
        data = io.BytesIO()
        sheet(readings).save(data, "PNG")
        write_atomically(Path(args.show), data.getvalue())
        if len(readings) > ON_A_SHEET:
            print(f"{args.show}: the first {ON_A_SHEET} of {len(readings)}", file=sys.stderr)
    failed = sum(reading.error is not None for reading in readings)
    if failed:
        raise PicturesError(f"{failed} of {len(readings)} pictures could not be read; see above")


def csv_line(reading) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(reading.as_dict().values())
    return text.getvalue()


def table_line(one) -> str:
    if one.error:
        return f"    -            -  {one.file}: {one.error}"
    note = f" ({one.note})" if one.note else ""
    return f"{one.digit:5}  {one.probability:11.4f}  {one.file}{note}"


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)

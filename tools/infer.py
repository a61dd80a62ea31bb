#!/usr/bin/env python
"""Read the digits in pictures: photographs or drawings, dark on light or light on dark.

Without --model the weights that come with the package do it. Exit code 8: some could not be read.
"""

import csv
import io
import json
import sys
from pathlib import Path

from paddle_mnist.cli import Parser, run_command
from paddle_mnist.device import require_paddle
from paddle_mnist.errors import ConfigError, PicturesError


def main(argv) -> None:
    parser = Parser(prog="tools/infer.py", description=__doc__)
    parser.add_argument(
        "pictures", nargs="+", metavar="PICTURE", help="files, folders, patterns, or - for stdin"
    )
    parser.add_argument("--model", metavar="FOLDER", help="what tools/export_model.py wrote")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu:0 [auto]")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON list")
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    parser.add_argument("--show", metavar="FILE.png", help="write a picture of what the net saw")
    args = parser.parse_args(argv)
    require_paddle()
    from paddle_mnist.files import write_atomically
    from paddle_mnist.infer import pictures_in, pretrained_predictor, read_pictures, sheet
    from paddle_mnist.predictor import Predictor

    predictor = Predictor(args.model, args.device) if args.model else pretrained_predictor()
    if "probabilities" not in predictor.outputs:
        raise ConfigError(
            f"{args.model}: gives {', '.join(predictor.outputs)}; expected probabilities among "
            "them; export it with --outputs probabilities"
        )
    readings = list(read_pictures(predictor, pictures_in(args.pictures)))
    print(as_json(readings) if args.json else as_csv(readings) if args.csv else table(readings))
    if args.show and readings:
        data = io.BytesIO()
        sheet(readings).save(data, "PNG")
        write_atomically(Path(args.show), data.getvalue())
    failed = sum(reading.error is not None for reading in readings)
    if failed or not readings:
        raise PicturesError(f"{failed} of {len(readings)} pictures could not be read; see above")


def as_json(readings) -> str:
    return json.dumps([reading.as_dict() for reading in readings], indent=1)


def as_csv(readings) -> str:
    text = io.StringIO()
    rows = csv.DictWriter(text, ["file", "digit", "probability", "error"], lineterminator="\n")
    rows.writeheader()
    rows.writerows(reading.as_dict() for reading in readings)
    return text.getvalue().rstrip()


def table(readings) -> str:
    lines = ["digit  probability  file"]
    for one in readings:
        if one.error:
            lines.append(f"    -            -  {one.file}: {one.error}")
        else:
            note = f" ({one.note})" if one.note else ""
            lines.append(f"{one.digit:5}  {one.probability:11.4f}  {one.file}{note}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)

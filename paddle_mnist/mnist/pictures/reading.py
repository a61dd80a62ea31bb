"""Reads the digits in picture files: a `Reading` for each, with the digit or the reason."""

import functools
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from paddle_mnist.errors import DataError, summary
from paddle_mnist.mnist.pictures.detector import THRESHOLD, packaged_answers
from paddle_mnist.mnist.pictures.digits import Candidate, read_digits
from paddle_mnist.mnist.pictures.open import MAX_BYTES, STDIN
from paddle_mnist.mnist.pictures.shapes import Box
from paddle_mnist.mnist.predictor import DigitPredictor
from paddle_mnist.system.environment import usable_cpus

log = logging.getLogger("paddle_mnist")

FILES_HELD = 64  # pictures
UNSURE = 0.6  # a probability below it
WIDE_THRESHOLD = 0.75  # the least score of a digit wider than high: digits that touch are so, too
# MNIST's 1s have short flags or none, so that others look like a 7. From this probability of a 1
# a 7 is read as 1; of the 5,175 7s of MNIST's training images 21 have a higher one.
FLAGGED = 0.1
NET, RULE = "net", "rule for 7 and 1"  # what decides which digit is given


@dataclass(frozen=True)
class Reading:
    """The digit that was read in a picture or a part of it, or the reason why none was.

    digit, probability: None where there is an error. decided_by: NET, or RULE where the net finds a
    7 more probable than the 1 that is given; None without a digit. note: what is doubtful. kind: of
    the error, that of a `PictureError`, "shapes" or "digit".
    score: how much it looks like one digit, 0 to 1; below `detector.THRESHOLD` no digit is given,
    unless that was asked for. None where nothing was found, or the score was not asked for.
    pixels: uint8 [28, 28], the net's input; None if there was none.
    box: where it is in the picture, in pixels.
    digits: of `read_pictures(..., many=True)`, a reading for each shape, in reading order; digit,
    probability and score are then those of the only one, or None.
    """

    file: str
    digit: Optional[int] = None
    probability: Optional[float] = None
    error: Optional[str] = None
    note: str = ""
    pixels: Optional[np.ndarray] = None
    score: Optional[float] = None
    box: Optional[Box] = None
    digits: Optional[tuple["Reading", ...]] = None
    kind: str = ""
    decided_by: Optional[str] = None

    @property
    def text(self) -> str:
        """The digits that were read, in reading order; "?" for each shape without one."""
        readings = (self,) if self.digits is None else self.digits
        return "".join("?" if reading.digit is None else str(reading.digit) for reading in readings)

    def as_dict(self) -> dict[str, Any]:
        """Return what the command `infer --json` prints."""
        names = ("file", "digit", "probability", "decided_by", "error", "score")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        values["box"] = self.box and [self.box.left, self.box.top, self.box.width, self.box.height]
        if self.digits is not None:
            values["text"] = self.text
            values["digits"] = [
                {name: value for name, value in digit.as_dict().items() if name != "file"}
                for digit in self.digits
            ]
        return values


def _reading(
    file: str, digit: Candidate, probabilities: np.ndarray, score: Optional[float]
) -> Reading:
    """Return the reading of a digit. probabilities: float32 [10]. score: see `Reading`."""
    if digit.shapes > 1:
        error = f"{digit.shapes} shapes; expected one digit; infer --many (many=True) reads each"
        return Reading(file, error=error, pixels=digit.pixels, kind="shapes")
    kept = None if score is None else float(score)
    seen = Reading(file, pixels=digit.pixels, score=kept, box=digit.box)
    is_wide = digit.box is not None and digit.box.width > digit.box.height
    least = WIDE_THRESHOLD if is_wide else THRESHOLD
    if score is not None and digit.is_mark:
        error = "probably a comma: small, and below the middle of the row"
        return replace(seen, error=error, kind="digit")
    if score is not None and score < least:
        form = "a digit that is wider than high" if is_wide else "a digit"
        error = f"probably not one digit (score {score:.2f}; {form} has {least} or more)"
        if digit.is_huge:
            error += "; if this is a sheet, photograph the paper alone, or on a darker desk"
        return replace(seen, error=error, kind="digit")
    best, second = np.argsort(probabilities)[::-1][:2]
    decided_by = NET
    if score is not None and best == 7 and probabilities[1] > FLAGGED:
        best, second, decided_by = 1, 7, RULE
    probability = float(probabilities[best])
    note = f"unsure: {best} or {second}" if probability < UNSURE else ""
    if digit.is_huge and digit.has_sheet:
        note = "very large: perhaps a whole sheet, not a digit"
    return replace(seen, digit=int(best), probability=probability, note=note, decided_by=decided_by)


def _together(file: str, readings: Sequence[Reading]) -> Reading:
    """Return the reading of a picture with many digits."""
    digits = tuple(readings)
    if len(digits) == 1:
        return replace(digits[0], digits=digits)
    refused = sum(digit.error is not None for digit in digits)
    if refused == len(digits):
        error = f"{refused} shapes, and probably none of them is one digit"
        return Reading(file, error=error, digits=digits)
    note = f"{refused} of {len(digits)} shapes: probably not one digit" if refused else ""
    return Reading(file, note=note, digits=digits)


def read_pictures(
    predictor: DigitPredictor, files: Iterable[str], many: bool = False, check: bool = True
) -> Iterator[Reading]:
    """Yield a `Reading` for each file, in order, with the reason for a picture that is not read.

    At most FILES_HELD files are held at a time; a thread for each CPU opens them.

    many: read every digit of a picture, in reading order, instead of refusing several.
    check: refuse shapes that are probably not a digit. There are no scores without it, and none
        for a model that was not trained on digits.
    """
    check = check and predictor.reads_digits
    files = iter(files)
    with ThreadPoolExecutor(usable_cpus()) as pool:  # NumPy and Pillow work side by side
        while chunk := list(itertools.islice(files, FILES_HELD)):
            per_file = list(pool.map(functools.partial(_digits, many=many), chunk))
            digits = [
                digit for content in per_file if isinstance(content, list) for digit in content
            ]
            answers = iter(_answers(predictor, digits, check))
            for file, content in zip(chunk, per_file):
                if isinstance(content, DataError):
                    yield Reading(file, error=str(content), kind=getattr(content, "kind", ""))
                    continue
                readings = [_reading(file, digit, *next(answers)) for digit in content]
                yield _together(file, readings) if many else readings[0]


def _answers(
    predictor: DigitPredictor, digits: Sequence[Candidate], check: bool
) -> Iterable[tuple[np.ndarray, Optional[float]]]:
    """Return the probabilities of each digit, and its score."""
    if not digits:
        return []
    pixels = np.stack([digit.pixels for digit in digits])
    if not check:
        return zip(predictor.run(pixels)["probabilities"], itertools.repeat(None))
    probabilities, scores = packaged_answers(pixels)
    if not predictor.is_pretrained:
        probabilities = predictor.run(pixels)["probabilities"]
    return zip(probabilities, scores)


def _digits(file: str, many: bool) -> Union[list[Candidate], DataError]:
    """Return the digits in a picture, or the one, or the reason why none is found."""
    try:
        picture = sys.stdin.buffer.read(MAX_BYTES + 1) if file == STDIN else Path(file)
        return read_digits(picture, many)
    except DataError as error:
        return error
    except MemoryError:
        return DataError("too large for this machine's memory; make it smaller")
    except Exception as error:  # unforeseen; one picture must not end the others
        log.debug("%s cannot be read", file, exc_info=True)
        return DataError(f"cannot be read ({summary(error)}); report this")

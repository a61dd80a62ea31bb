"""`Reading`: the digit that was read in a picture, or the reason why none was."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np

from paddle_mnist.mnist.detector import THRESHOLD
from paddle_mnist.mnist.pictures import Digit
from paddle_mnist.mnist.shapes import Box

STDIN = "-"
UNSURE = 0.6  # a probability below it
WIDE_THRESHOLD = 0.8  # the least score of a digit wider than high: digits that touch are so, too
# MNIST's 1s have short flags or none, so that others look like a 7. From this probability of a 1
# a 7 is read as 1; of the 5,175 7s of MNIST's training images 32 have a higher one.
FLAGGED = 0.05


@dataclass(frozen=True)
class Reading:
    """The digit that was read in a picture or a part of it, or the reason why none was.

    digit, probability: None where there is an error. note: what is doubtful.
    score: how much it looks like one digit, 0 to 1; below `detector.THRESHOLD` no digit is given,
    unless that was asked for. None where nothing was found, or the score was not asked for.
    pixels: uint8 [28, 28], what the net saw; None where it saw nothing.
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

    @property
    def text(self) -> str:
        """The digits that were read, in reading order; "?" for each shape that is none."""
        readings = (self,) if self.digits is None else self.digits
        return "".join("?" if reading.digit is None else str(reading.digit) for reading in readings)

    def as_dict(self) -> dict[str, Any]:
        """Return what the command `infer --json` prints."""
        values: dict[str, Any] = {
            name: getattr(self, name) for name in ("file", "digit", "probability", "error", "score")
        }
        values["box"] = self.box and [self.box.left, self.box.top, self.box.width, self.box.height]
        if self.digits is not None:
            values["text"] = self.text
            values["digits"] = [
                {name: value for name, value in digit.as_dict().items() if name != "file"}
                for digit in self.digits
            ]
        return values


def reading(
    file: str, digit: Digit, probabilities: np.ndarray, score: Optional[float] = None
) -> Reading:
    """Return the reading of a digit. probabilities: float32 [10]. score: see `Reading`."""
    if digit.shapes > 1:
        error = f"{digit.shapes} shapes; expected one digit; --many (many=True) reads each"
        return Reading(file, error=error, pixels=digit.pixels)
    kept = None if score is None else float(score)
    seen = Reading(file, pixels=digit.pixels, score=kept, box=digit.box)
    is_wide = digit.box is not None and digit.box.width > digit.box.height
    least = WIDE_THRESHOLD if is_wide else THRESHOLD
    if score is not None and digit.is_mark:
        return replace(seen, error="probably a comma: small, and below the middle of the row")
    if score is not None and score < least:
        form = "one wider than high" if is_wide else "a digit"
        error = f"probably not one digit (score {score:.2f}; {form} has {least} or more)"
        if digit.is_huge:
            error += "; if this is a sheet, photograph the paper alone, or on a darker desk"
        return replace(seen, error=error)
    best, second = np.argsort(probabilities)[::-1][:2]
    if score is not None and best == 7 and probabilities[1] > FLAGGED:
        best, second = 1, 7
    probability = float(probabilities[best])
    note = f"unsure: {best} or {second}" if probability < UNSURE else ""
    if digit.is_huge:
        note = "very large: perhaps a whole sheet, not a digit"
    return replace(seen, digit=int(best), probability=probability, note=note)


def together(file: str, readings: Sequence[Reading]) -> Reading:
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

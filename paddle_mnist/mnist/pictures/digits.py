"""Finds what may be a digit in a picture, as images of MNIST's format."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

import numpy as np

from paddle_mnist.errors import PictureError
from paddle_mnist.mnist.pictures.ink import find_ink
from paddle_mnist.mnist.pictures.normalize import cut_out, in_mnist_format
from paddle_mnist.mnist.pictures.open import OPENED_SIDE, Picture, open_picture, scaling
from paddle_mnist.mnist.pictures.shapes import FAINTEST, FAINTEST_ON_PAGE, Box, Shape, find_shapes
from paddle_mnist.mnist.pictures.sheet import find_sheet

WORKING_SIDE = 256  # pixels, of pictures with one digit
PAGE_SIDE = OPENED_SIDE  # of those with several
LARGEST_DIGIT = 0.6  # its box, of the picture or the sheet; what is larger is doubtful


@dataclass(frozen=True)
class Candidate:
    """A picture, or a part of it, as an image of MNIST's format: what may be a digit.

    pixels: uint8 [28, 28], white on black.
    shapes: how many shapes it shows; 1 for a single digit.
    box: where it is, in pixels of the picture; None if that is not known.
    is_huge: whether its box takes up more of the picture or the sheet than a digit's usually does.
    is_mark: whether it is probably a comma, by its size and its place in the row.
    has_sheet: whether a sheet of paper was found in the picture.
    """

    pixels: np.ndarray
    shapes: int
    box: Optional[Box] = None
    is_huge: bool = False
    is_mark: bool = False
    has_sheet: bool = False


def read_digits(picture: Union[str, Path, bytes], many: bool = False) -> list[Candidate]:
    """Read the digit in a file, or in a file's bytes. Raises DataError, in one line.

    If there are several shapes, `shapes` of the only answer says how many, and its pixels show all.
    An image that has MNIST's format already is taken as it is.
    many: return each shape as a digit, in reading order: rows from the top, each from the left.
    """
    opened = open_picture(picture)
    pixels = in_mnist_format(opened.brightness)
    if pixels is not None and len(shapes := find_shapes(pixels / np.float32(255))) == 1:
        return [Candidate(pixels, 1, shapes[0].box)]
    sheet = find_sheet(opened)
    if sheet is not None:
        with contextlib.suppress(PictureError):  # the sheet is blank, or not a sheet
            return _digits_on(sheet, many, True)
    return _digits_on(opened, many, sheet is not None)


def _digits_on(surface: Picture, many: bool, has_sheet: bool) -> list[Candidate]:
    """Return the digits on a sheet, or in a whole picture. many: see `read_digits`."""
    for side in [PAGE_SIDE] if many else [WORKING_SIDE, PAGE_SIDE]:  # small shapes need more pixels
        ink = find_ink(surface.brightness, side)
        shapes = find_shapes(ink, FAINTEST_ON_PAGE if many else FAINTEST)
        if len(shapes) == 1:
            break
    if not many and len(shapes) != 1:
        height, width = ink.shape
        everything = Shape(Box(0, 0, width, height), ink > 0.5)
        return [Candidate(cut_out(ink, everything), len(shapes))]
    to_file = surface.to_file @ scaling(ink.shape, surface.brightness.shape)
    return [
        Candidate(
            cut_out(ink, shape),
            1,
            shape.box.transformed(to_file),
            shape.mask.size > LARGEST_DIGIT * ink.size,
            shape.is_mark,
            has_sheet,
        )
        for shape in shapes
    ]

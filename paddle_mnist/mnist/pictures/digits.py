"""Finds the digits in a picture, and returns each as an image of MNIST's format."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

import cv2
import numpy as np

from paddle_mnist.errors import PictureError
from paddle_mnist.mnist.pictures.normalize import cut_out, in_mnist_format
from paddle_mnist.mnist.pictures.open import OPENED_SIDE, Picture, open_picture
from paddle_mnist.mnist.pictures.paper import find_ink, find_sheet, otsu
from paddle_mnist.mnist.pictures.shapes import FAINTEST, FAINTEST_ON_PAGE, Box, Shape, find_shapes

WORKING_SIDE = 256  # of pictures with one digit; larger ones are scaled down first
PAGE_SIDE = OPENED_SIDE  # of those with several
LARGEST_DIGIT = 0.6  # its box, of the picture or the sheet; what is larger is doubtful

# Brightness, and the perspective from its pixels to those of the file, float [3, 3]
Surface = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Digit:
    """A picture, or a part of it, as an image of MNIST's format.

    pixels: uint8 [28, 28], white on black.
    shapes: how many shapes it shows; 1 for a single digit.
    box: where it is, in pixels of the picture; None if that is not known.
    is_huge: whether its box takes up more of the picture or the sheet than a digit's usually does.
    is_mark: whether it is probably a comma, by its size and its place in the row.
    """

    pixels: np.ndarray
    shapes: int
    box: Optional[Box] = None
    is_huge: bool = False
    is_mark: bool = False


def read_digit(picture: Union[str, Path, bytes]) -> Digit:
    """Read the digit in a file, or in a file's bytes. Raises DataError, in one line.

    If there are several shapes, `shapes` of the answer says how many, and its pixels show all.
    An image that is of MNIST's format already is taken as it is.
    """
    return read_digits(picture, many=False)[0]


def read_digits(picture: Union[str, Path, bytes], many: bool = True) -> list[Digit]:
    """Read every digit in a file, or in a file's bytes, in reading order. Raises DataError.

    They are found as shapes: rows from the top, each from the left.
    many: False: several shapes are one `Digit`, as of `read_digit`.
    """
    opened = open_picture(picture)
    pixels = in_mnist_format(opened.brightness)
    if pixels is not None and len(shapes := find_shapes(pixels / np.float32(255))) == 1:
        return [Digit(pixels, 1, shapes[0].box)]
    surfaces = _surfaces(opened)
    for side in [PAGE_SIDE] if many else [WORKING_SIDE, PAGE_SIDE]:  # small shapes need more pixels
        drawing = _find(surfaces, side, FAINTEST_ON_PAGE if many else FAINTEST)
        if many or len(drawing.shapes) == 1:
            return drawing.digits()
    height, width = drawing.ink.shape
    everything = Shape(Box(0, 0, width, height), drawing.ink > otsu(drawing.ink))
    return [Digit(cut_out(drawing.ink, everything), len(drawing.shapes))]


@dataclass(frozen=True)
class _Drawing:
    """The ink of a picture or of a sheet in it, and the shapes in reading order.

    to_picture: float [3, 3], the perspective from pixels of the ink to those of the file.
    """

    ink: np.ndarray
    shapes: list[Shape]
    to_picture: np.ndarray

    def digits(self) -> list[Digit]:
        """Return each shape as an image."""
        return [
            Digit(
                cut_out(self.ink, shape),
                1,
                shape.box.moved(self.to_picture),
                shape.mask.size > LARGEST_DIGIT * self.ink.size,
                shape.is_mark,
            )
            for shape in self.shapes
        ]


def _surfaces(picture: Picture) -> list[Surface]:
    """Return the sheet in a picture, laid flat, if one is found, and then all of the picture."""
    brightness = picture.brightness
    to_file = _scaling(brightness.shape, (picture.height, picture.width))
    sheet = find_sheet(brightness)
    sheets = [] if sheet is None else [(sheet[0], to_file @ np.linalg.inv(sheet[1]))]
    return [*sheets, (brightness, to_file)]


def _find(surfaces: Sequence[Surface], side: int, faintest: float) -> _Drawing:
    """Find the shapes on the first surface that has ink on it, scaled down to so many pixels."""
    *sheets, everything = surfaces
    for surface in sheets:
        with contextlib.suppress(PictureError):  # the sheet is blank, or no sheet
            return _find_on(surface, side, faintest)
    return _find_on(everything, side, faintest)


def _find_on(surface: Surface, side: int, faintest: float) -> _Drawing:
    brightness, to_file = surface
    scale = min(1, side / max(brightness.shape))
    scaled = cv2.resize(brightness, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    ink = find_ink(scaled, side)
    return _Drawing(
        ink, find_shapes(ink, faintest), to_file @ _scaling(ink.shape, brightness.shape)
    )


def _scaling(shape: tuple[int, ...], larger: tuple[int, ...]) -> np.ndarray:
    """Return the scaling from an image [H, W] to a larger one, float [3, 3]."""
    return np.diag([larger[1] / shape[1], larger[0] / shape[0], 1])

"""Reads a user's picture of a digit as an image of MNIST's format."""

import io
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from scipy import ndimage

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.digit_normalization import cut_out, in_mnist_format
from paddle_mnist.mnist.ink import MIN_SIDE, find_ink
from paddle_mnist.mnist.shapes import Box, Shape, find_shapes

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MAX_BYTES = 64 << 20  # of a file
MAX_PIXELS = 64 << 20  # of a picture, as its header says
WORKING_SIDE = 256  # larger pictures are scaled down first
PAGE_SIDE = 1024  # those with several digits less
ORIENTATION = 0x0112  # in EXIF
MAX_ASPECT_RATIO = 16
GREY = np.array([0.299, 0.587, 0.114], np.float32)  # red, green, blue: ITU-R BT.601

_OPENING = threading.Lock()  # `catch_warnings` changes what holds for all threads


@dataclass(frozen=True)
class Picture:
    """A picture's brightness, and the size it had.

    brightness: float32 [H, W] in 0..1, upright, without transparency.
    width, height: pixels of the file, upright; H and W may be fewer.
    """

    brightness: np.ndarray
    width: int
    height: int


@dataclass(frozen=True)
class Digit:
    """A picture, or a part of it, as an image of MNIST's format.

    pixels: uint8 [28, 28], white on black.
    shapes: how many shapes it shows; 1 for a single digit.
    box: where it is, in pixels of the picture; None if that is not known.
    """

    pixels: np.ndarray
    shapes: int
    box: Optional[Box] = None


def read_digit(picture: Union[str, Path, bytes]) -> Digit:
    """Read the digit in a file, or in a file's bytes. Raises DataError, in one line.

    If there are several shapes, `shapes` of the answer says how many, and its pixels show all.
    An image that is of MNIST's format already is taken as it is.
    """
    data = _read_bytes(picture)
    opened = open_picture(data)
    pixels = in_mnist_format(opened.brightness)
    if pixels is not None and len(shapes := find_shapes(pixels / np.float32(255))) == 1:
        return Digit(pixels, 1, shapes[0].box)
    drawing = _find(opened, WORKING_SIDE)
    if len(drawing.shapes) == 1:
        return drawing.digits()[0]
    page = _find(open_picture(data, PAGE_SIDE), PAGE_SIDE)  # small shapes need more pixels
    return page.digits()[0] if len(page.shapes) == 1 else drawing.together(len(page.shapes))


def read_digits(picture: Union[str, Path, bytes]) -> list[Digit]:
    """Read every digit in a file, or in a file's bytes, in reading order. Raises DataError.

    They are found as shapes: rows from the top, each from the left. One digit is read as by
    `read_digit`.
    """
    data = _read_bytes(picture)
    page = _find(open_picture(data, PAGE_SIDE), PAGE_SIDE)
    return page.digits() if len(page.shapes) > 1 else [read_digit(data)]


def read_picture(picture: Union[str, Path, bytes]) -> np.ndarray:
    """Read a picture's brightness: float32 [H, W] in 0..1, upright, without transparency.

    If the colours differ but not the brightness, the channel that differs most is returned.
    Raises DataError for anything but a single picture, and for one that is too large.
    """
    return open_picture(picture).brightness


def open_picture(picture: Union[str, Path, bytes], side: int = WORKING_SIDE) -> Picture:
    """Read a picture as `read_picture` does, with its size.

    side: of a larger picture the longer side is scaled down to so many pixels.
    """
    data = _read_bytes(picture)
    if len(data) > MAX_BYTES:
        raise DataError(f"more than {MAX_BYTES:,} bytes; make it smaller")
    if not data:
        raise DataError("0 bytes; expected a picture")
    if b"<svg" in data[:1000].lower():
        raise DataError("an SVG drawing; expected pixels; save it as PNG")
    try:
        with _OPENING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large pictures, which are refused below
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = _upright_size(image)
                return Picture(_brightness(_check_picture(image, side), side), width, height)
    except UnidentifiedImageError as error:
        raise DataError(f"not a picture; expected one of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"more pixels than {MAX_PIXELS:,}; make it smaller") from error
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError) as error:
        raise DataError(f"damaged or cut off ({error}); expected a whole picture") from error


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height as the camera's note of how to turn the picture makes them."""
    on_its_side = image.getexif().get(ORIENTATION) in (5, 6, 7, 8)
    return image.size[::-1] if on_its_side else image.size


def _read_bytes(picture: Union[str, Path, bytes]) -> bytes:
    if isinstance(picture, bytes):
        return picture
    path = Path(picture)
    try:
        if path.is_dir():
            raise DataError(f"a folder without pictures; expected some of {', '.join(SUFFIXES)}")
        if not path.is_file() and path.exists():
            raise DataError("a pipe or a device; expected a file")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{error.strerror}; expected a picture") from error


def _check_picture(image: Image.Image, side: int) -> Image.Image:
    """Raise DataError for a picture that is too large, too small, too narrow, or one of several."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise DataError(f"{width:,} x {height:,} pixels; expected at most {MAX_PIXELS:,}")
    if min(width, height) < MIN_SIDE or max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise DataError(
            f"{width:,} x {height:,} pixels; expected at least {MIN_SIDE} x {MIN_SIDE}, one "
            f"side at most {MAX_ASPECT_RATIO} times the other"
        )
    # MPO: a JPEG from a phone, with a second picture that holds depth or brightness.
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if frames > 1:
        raise DataError(f"{frames} pictures in one file; expected one; save the one you mean")
    image.draft(None, (side, side))  # a JPEG is scaled down while it is decoded
    return image


def _brightness(image: Image.Image, side: int) -> np.ndarray:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":  # 16 bits and more
        return _high_depth_brightness(image, side)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image.thumbnail((side, side), Image.Resampling.BOX)
        image = _on_background(image)
    image = image.convert("RGB")
    image.thumbnail((side, side), Image.Resampling.BOX)
    channels = np.asarray(image, np.float32) / 255
    grey = channels @ GREY
    spread = [channel.std() for channel in np.moveaxis(channels, -1, 0)]
    return channels[..., np.argmax(spread)] if max(spread) > 2 * grey.std() else grey


def _high_depth_brightness(image: Image.Image, side: int) -> np.ndarray:
    """Return the brightness of pixels that are floats, or integers of 16 bits or more.

    Of the bits of integers often fewer are used; the largest value tells how many.
    """
    image = image.convert("F")
    image.thumbnail((side, side), Image.Resampling.BOX)
    values = np.asarray(image)
    if not np.isfinite(values).all():
        raise DataError("holds values that are not finite; expected brightness")
    top = next((2**bits - 1 for bits in (1, 8, 10, 12, 14, 16) if values.max() < 2**bits), None)
    return np.clip(values / (top or values.max()), 0, 1)


def _on_background(image: Image.Image) -> Image.Image:
    """Put an RGBA image on an opaque background.

    If the opaque part is a sheet with strokes on it, the background has the colour of the sheet's
    edge; if it is strokes alone, black or white, whichever differs more from them.
    """
    pixels = np.asarray(image, np.float64)
    light, opaque = pixels[..., :3].mean(axis=2), pixels[..., 3] > 127
    if not opaque.any():
        raise DataError("blank: all of it is transparent; expected a digit")
    low, high = np.percentile(light[opaque], [2, 98])
    if high - low > 100:
        edge = opaque & ~ndimage.binary_erosion(opaque, iterations=3)
        colour = np.median(pixels[edge][:, :3], axis=0)
    else:
        colour = np.full(3, 0 if light[opaque].mean() > 127 else 255)
    background = Image.new("RGBA", image.size, (*(int(value) for value in colour), 255))
    return Image.alpha_composite(background, image)


@dataclass(frozen=True)
class _Drawing:
    """The ink of a picture, and the shapes in it in reading order."""

    picture: Picture
    ink: np.ndarray
    shapes: list[Shape]

    def digits(self) -> list[Digit]:
        """Return each shape as an image."""
        across = self.picture.width / self.ink.shape[1]
        down = self.picture.height / self.ink.shape[0]
        return [
            Digit(cut_out(self.ink, [shape]), 1, shape.box.scaled(across, down))
            for shape in self.shapes
        ]

    def together(self, count: int) -> Digit:
        """Return all shapes as one image that says it shows `count`."""
        return self.digits()[0] if count == 1 else Digit(cut_out(self.ink, self.shapes), count)


def _find(picture: Picture, side: int) -> _Drawing:
    ink = find_ink(picture.brightness, side)
    return _Drawing(picture, ink, find_shapes(ink))

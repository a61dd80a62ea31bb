"""Reads a user's picture of a digit as an image of MNIST's format."""

import contextlib
import io
import struct
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from paddle_mnist.errors import DataError, PaddleMnistError, PictureError, summary
from paddle_mnist.mnist.digit_normalization import cut_out, in_mnist_format
from paddle_mnist.mnist.ink import MIN_SIDE, SHEET_RIM, find_ink, find_sheet, otsu
from paddle_mnist.mnist.opencv import cv2
from paddle_mnist.mnist.shapes import Box, Shape, find_shapes

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
UNREAD = {  # how files begin; all but PDF after the length of their first part
    b"ftyphei": "HEIC",
    b"ftyphev": "HEIC",
    b"ftypmif1": "HEIF",
    b"ftypmsf1": "HEIF",
    b"ftypavi": "AVIF",
    b"%PDF-": "PDF",
}
UNREAD_SUFFIXES = (".heic", ".heif", ".avif", ".pdf")
# What Pillow raises for damaged files
DAMAGE = (OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, struct.error)
MAX_BYTES = 64 << 20  # of a file
MAX_PIXELS = 64 << 20  # of a picture, as its header says
WORKING_SIDE = 256  # of pictures with one digit; larger ones are scaled down first
PAGE_SIDE = 1024  # of those with several
ORIENTATION = 0x0112  # in EXIF
MAX_ASPECT_RATIO = 16
LARGEST_DIGIT = 0.6  # its box, of the picture or the sheet; what is larger is doubtful
UNIT = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])
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
    is_huge: whether its box takes up more of the picture or the sheet than a digit's usually does.
    is_mark: whether it is probably a comma, by its size and its place in the row.
    """

    pixels: np.ndarray
    shapes: int
    box: Optional[Box] = None
    is_huge: bool = False
    is_mark: bool = False


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Raise an error that nobody foresaw as a DataError: one picture must not end the others."""
    try:
        yield
    except (PaddleMnistError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"cannot be read ({summary(error)}); report this") from error


def read_digit(picture: Union[str, Path, bytes]) -> Digit:
    """Read the digit in a file, or in a file's bytes. Raises DataError, in one line.

    If there are several shapes, `shapes` of the answer says how many, and its pixels show all.
    An image that is of MNIST's format already is taken as it is.
    """
    return read_digits(picture, many=False)[0]


@_errors_in_one_line()
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
        drawing = _find(surfaces, side)
        if many or len(drawing.shapes) == 1:
            return drawing.digits()
    height, width = drawing.ink.shape
    everything = Shape(Box(0, 0, width, height), drawing.ink > otsu(drawing.ink))
    return [Digit(cut_out(drawing.ink, everything), len(drawing.shapes))]


def open_picture(picture: Union[str, Path, bytes]) -> Picture:
    """Read a picture's brightness; of a larger one the longer side is scaled down to PAGE_SIDE.

    If the colours differ but not the brightness, the channel that differs most is returned.
    Raises DataError for anything but a single picture, and for one that is too large.
    """
    data = _read_bytes(picture)
    if len(data) > MAX_BYTES:
        raise PictureError(f"more than {MAX_BYTES:,} bytes; make it smaller", "size")
    if not data:
        raise PictureError("0 bytes; expected a picture", "empty")
    if b"<svg" in data[:1000].lower():
        raise PictureError("an SVG drawing; expected pixels; save it as PNG", "format")
    try:
        with _OPENING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large pictures, which are refused below
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = _upright_size(image)
                return Picture(_brightness(_check_picture(image)), width, height)
    except UnidentifiedImageError as error:
        for beginning, kind in UNREAD.items():
            if data.startswith(beginning, 0 if kind == "PDF" else 4):
                raise PictureError(f"a {kind} file; save it as JPEG", "format") from error
        raise PictureError(
            f"not a picture; expected one of {', '.join(FORMATS)}", "format"
        ) from error
    except Image.DecompressionBombError as error:
        raise PictureError(f"more pixels than {MAX_PIXELS:,}; make it smaller", "size") from error
    except DAMAGE as error:
        raise PictureError(
            f"damaged or cut off ({error}); expected a whole picture", "damaged"
        ) from error


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


def _check_picture(image: Image.Image) -> Image.Image:
    """Raise DataError for a picture that is too large, too small, too narrow, or one of several."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise PictureError(
            f"{width:,} x {height:,} pixels; expected at most {MAX_PIXELS:,}", "size"
        )
    if min(width, height) < MIN_SIDE or max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise PictureError(
            f"{width:,} x {height:,} pixels; expected at least {MIN_SIDE} x {MIN_SIDE}, one "
            f"side at most {MAX_ASPECT_RATIO} times the other",
            "size",
        )
    # MPO: a JPEG from a phone, with a second picture that holds depth or brightness.
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if frames > 1:
        raise PictureError(
            f"{frames} pictures in one file; expected one; save the one you mean", "frames"
        )
    image.draft(None, (PAGE_SIDE, PAGE_SIDE))  # a JPEG is scaled down while it is decoded
    return image


def _brightness(image: Image.Image) -> np.ndarray:
    image = ImageOps.exif_transpose(image)
    is_deep = image.mode.startswith("I") or image.mode == "F"  # 16 bits and more
    has_alpha = image.mode.lower() in ("rgba", "la", "pa") or "transparency" in image.info
    image = image.convert("F" if is_deep else "RGBA" if has_alpha else "RGB")
    image.thumbnail((PAGE_SIDE, PAGE_SIDE), Image.Resampling.BOX)
    if is_deep:
        return _of_high_depth(np.asarray(image))
    if has_alpha:
        image = _on_background(image).convert("RGB")
    channels = np.asarray(image, np.float32) / 255
    grey = channels @ GREY
    spread = channels.std(axis=(0, 1))
    return channels[..., np.argmax(spread)] if max(spread) > 2 * grey.std() else grey


def _of_high_depth(values: np.ndarray) -> np.ndarray:
    """Return the brightness of pixels that are floats, or integers of 16 bits or more."""
    if not np.isfinite(values).all():
        raise DataError("holds values that are not finite; expected brightness")
    brightness: np.ndarray = np.clip(values / max(values.max(), 1), 0, 1)
    return brightness


def _on_background(image: Image.Image) -> Image.Image:
    """Put an RGBA image on an opaque background.

    If the opaque part is a sheet with strokes on it, the background has the sheet's colour; if it
    is strokes alone, black or white, whichever differs more from them.
    """
    pixels = np.asarray(image)
    opaque = pixels[pixels[..., 3] > 127][:, :3]
    if not len(opaque):
        raise PictureError("blank: all of it is transparent; expected a digit", "blank")
    low, high = np.percentile(opaque.mean(axis=1), [2, 98])
    if high - low > 100:
        colour = np.median(opaque, axis=0)
    else:
        colour = np.full(3, 0 if low + high > 255 else 255)
    background = Image.new("RGBA", image.size, (*(int(value) for value in colour), 255))
    return Image.alpha_composite(background, image)


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


def _surfaces(picture: Picture) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the sheet in a picture, laid flat, if one is found, and then all of the picture.

    With each comes the perspective from its pixels to those of the file, float [3, 3].
    """
    brightness = picture.brightness
    to_file = _scaling(brightness.shape, (picture.height, picture.width))
    sheet = find_sheet(brightness)
    if sheet is None:
        return [(brightness, to_file)]
    lengths = np.linalg.norm(sheet - np.roll(sheet, -1, axis=0), axis=1)
    extent = np.ceil((lengths[:2] + lengths[2:]) / 2)
    upright = UNIT * extent + (2 * UNIT - 1) * SHEET_RIM * extent.max()
    matrix = cv2.getPerspectiveTransform(sheet, upright.astype(np.float32))
    flat = cv2.warpPerspective(brightness, matrix, extent.astype(int).tolist())
    return [(flat, to_file @ np.linalg.inv(matrix)), (brightness, to_file)]


def _find(surfaces: Sequence[tuple[np.ndarray, np.ndarray]], side: int) -> _Drawing:
    """Find the shapes on the first surface that has ink on it, scaled down to so many pixels."""
    *sheets, everything = surfaces
    for brightness, to_file in sheets:
        with contextlib.suppress(DataError):  # nothing is on it
            return _find_on(brightness, to_file, side)
    return _find_on(*everything, side)


def _find_on(brightness: np.ndarray, to_file: np.ndarray, side: int) -> _Drawing:
    scale = min(1, side / max(brightness.shape))
    scaled = cv2.resize(brightness, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    ink = find_ink(scaled, side)
    return _Drawing(ink, find_shapes(ink), to_file @ _scaling(ink.shape, brightness.shape))


def _scaling(shape: tuple[int, ...], larger: tuple[int, ...]) -> np.ndarray:
    """Return the scaling from an image [H, W] to a larger one, float [3, 3]."""
    return np.diag([larger[1] / shape[1], larger[0] / shape[0], 1])

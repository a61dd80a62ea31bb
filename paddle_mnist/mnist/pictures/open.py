"""Opens picture files: upright, in grey, without transparency."""

import contextlib
import glob
import io
import struct
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Union

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from paddle_mnist.errors import DataError, PictureError
from paddle_mnist.system.regular_files import open_to_read

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
STDIN = "-"
MAX_BYTES = 64 << 20  # of a file
MAX_PIXELS = 64 << 20  # of a picture, as its header says
MIN_SIDE = 8  # pixels
MAX_ASPECT_RATIO = 16
OPENED_SIDE = 1024  # pixels; larger pictures are scaled down
ORIENTATION = 0x0112  # in EXIF
GREY = np.array([0.299, 0.587, 0.114], np.float32)  # red, green, blue: ITU-R BT.601

_OPENING = threading.Lock()  # `catch_warnings` changes the filters of all threads


@dataclass(frozen=True)
class Picture:
    """A picture, or a sheet of paper in one.

    brightness: float32 [H, W] in 0..1, upright, without transparency.
    to_file: float [3, 3], the perspective from its pixels to those of the upright file.
    """

    brightness: np.ndarray
    to_file: np.ndarray


def scaling(shape: tuple[int, ...], larger: tuple[int, ...]) -> np.ndarray:
    """Return the scaling from an image [H, W] to a larger one, float [3, 3]."""
    return np.diag([larger[1] / shape[1], larger[0] / shape[0], 1])


def pictures_in(names: Iterable[str]) -> Iterator[str]:
    """Yield the files that names stand for: files, folders and all below them, patterns, "-".

    Hidden files in a folder, such as `._x.jpg` of macOS, are left out.
    """
    for name in names:
        try:
            yield from _pictures_of(name) or [name]  # a missing file gets a line of its own
        except OSError:  # a name too long, no access to a folder: reported when it is read
            yield name


def _pictures_of(name: str) -> list[str]:
    path = Path(name)
    if name == STDIN or path.is_file():
        return [name]
    if path.is_dir():
        files = (p for p in path.rglob("*") if "/." not in f"/{p.relative_to(path).as_posix()}")
        suffixes = (*SUFFIXES, *UNREAD_SUFFIXES)
        return [str(p) for p in sorted(files) if p.suffix.lower() in suffixes and p.is_file()]
    return sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []


def open_picture(picture: Union[str, Path, bytes]) -> Picture:
    """Read a picture's brightness; scale the longer side down to OPENED_SIDE if it is longer.

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
        with _opened(data) as image:
            shape = image.size[::-1]
            if image.getexif().get(ORIENTATION) in (5, 6, 7, 8):  # it lies on its side
                shape = image.size
            image.draft(None, (OPENED_SIDE, OPENED_SIDE))  # decodes a JPEG at a smaller scale
            brightness = _brightness(image)
            return Picture(brightness, scaling(brightness.shape, shape))
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


def _opened(data: bytes) -> Image.Image:
    """Return a picture of which the header and EXIF are read; see `_check`, which raises."""
    with _without_warnings():
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check(image)
    if image.format == "PNG":
        image.load()  # EXIF may follow the pixels
    with _without_warnings():
        image.getexif()
    return image


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings about large pictures, which are refused here, and damaged EXIF.

    Decoding warns of nothing, so it happens outside, in several threads at once.
    """
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _read_bytes(picture: Union[str, Path, bytes]) -> bytes:
    if isinstance(picture, bytes):
        return picture
    path = Path(picture)
    try:
        if path.is_dir():
            raise DataError(f"a folder without pictures; expected files in {', '.join(SUFFIXES)}")
        with open_to_read(path) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{error.strerror}; expected a picture") from error


def _check(image: Image.Image) -> None:
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


def _brightness(image: Image.Image) -> np.ndarray:
    image = ImageOps.exif_transpose(image)
    is_deep = image.mode.startswith("I") or image.mode == "F"  # 16 bits and more
    has_alpha = image.mode.lower() in ("rgba", "la", "pa") or "transparency" in image.info
    image = image.convert("F" if is_deep else "RGBA" if has_alpha else "RGB")
    image.thumbnail((OPENED_SIDE, OPENED_SIDE), Image.Resampling.BOX)
    values = np.asarray(image, np.float32)
    if is_deep:
        if not np.isfinite(values).all():
            raise PictureError("holds values that are not finite; expected brightness", "damaged")
        brightness: np.ndarray = np.clip(values / max(values.max(), 1), 0, 1)
        return brightness
    channels = values[..., :3] / 255
    if has_alpha:
        alpha = values[..., 3:] / 255
        if alpha.max() < 0.5:
            raise PictureError("blank: all of it is transparent; expected a digit", "blank")
        # Behind dark strokes it becomes white, and black behind light ones or around a sheet.
        background = float(np.average(channels.mean(axis=2), weights=alpha[..., 0]) < 0.5)
        channels = background + alpha * (channels - background)
    grey = channels @ GREY
    spread = channels.std(axis=(0, 1))
    return channels[..., np.argmax(spread)] if max(spread) > 2 * grey.std() else grey

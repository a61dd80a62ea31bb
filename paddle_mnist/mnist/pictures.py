"""Converts a user's picture of a digit to 28 x 28 pixels, as the images of MNIST were made.

Those were scaled to fit into 20 x 20 pixels, keeping their proportions, and placed in 28 x 28 with
their centre of mass in the middle (LeCun, Cortes, Burges, "The MNIST database of handwritten
digits").
"""

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Union

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from scipy import ndimage

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import SIZE

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MAX_BYTES = 64 << 20  # of a file
MAX_PIXELS = 64 << 20  # of a picture, as its header says
WORKING_SIDE = 256  # larger pictures are scaled down first
MIN_SIDE, MAX_ASPECT_RATIO = 8, 16

BOX = 20  # pixels, the side of the box into which a digit is scaled
MIN_CONTRAST = 0.08  # of the ink; black to white is 1
MIN_SHAPE_AREA = 0.04  # of the largest shape's area; what is smaller is dirt
MIN_DIGIT_AREA = 0.15  # of the largest shape's area; what is smaller is no second digit
MIN_STROKE, MAX_STROKE = 2.0, 4.5  # pixels in the box, as most strokes in MNIST are


@dataclass(frozen=True)
class Digit:
    """A picture as an image of MNIST's format.

    pixels: uint8 [28, 28], white on black.
    shapes: how many shapes lie side by side in the picture; 1 for a single digit.
    """

    pixels: np.ndarray
    shapes: int


def read_digit(picture: Union[str, Path, bytes]) -> Digit:
    """Read the digit in a file, or in a file's bytes. Raises DataError, in one line."""
    return find_digit(read_picture(picture))


def read_picture(picture: Union[str, Path, bytes]) -> np.ndarray:
    """Read a picture's brightness: float64 [H, W] in 0..1, upright, without transparency.

    If the colours differ but not the brightness, the channel that differs most is returned.
    Raises DataError for anything but a single picture, and for one that is too large.
    """
    data = picture if isinstance(picture, bytes) else _read_bytes(Path(picture))
    if len(data) > MAX_BYTES:
        raise DataError(f"more than {MAX_BYTES:,} bytes; make it smaller")
    if not data:
        raise DataError("0 bytes; expected a picture")
    if b"<svg" in data[:1000].lower():
        raise DataError("an SVG drawing; expected pixels; save it as PNG")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large pictures, which are refused below
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return _brightness(_check_picture(image))
    except UnidentifiedImageError as error:
        raise DataError(f"not a picture; expected one of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"more pixels than {MAX_PIXELS:,}; make it smaller") from error
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError) as error:
        raise DataError(f"damaged or cut off ({error}); expected a whole picture") from error


def _read_bytes(path: Path) -> bytes:
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
    image.draft(None, (WORKING_SIDE, WORKING_SIDE))  # a JPEG is scaled down while it is decoded
    return image


def _brightness(image: Image.Image) -> np.ndarray:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":  # 16 bits and more
        return _high_depth_brightness(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image.thumbnail((WORKING_SIDE, WORKING_SIDE), Image.Resampling.BOX)
        image = _on_background(image)
    image = image.convert("RGB")
    image.thumbnail((WORKING_SIDE, WORKING_SIDE), Image.Resampling.BOX)
    channels = np.asarray(image, np.float64) / 255
    grey = channels @ [0.299, 0.587, 0.114]  # ITU-R BT.601
    spread = channels.reshape(-1, 3).std(axis=0)
    return channels[..., spread.argmax()] if spread.max() > 2 * grey.std() else grey


def _high_depth_brightness(image: Image.Image) -> np.ndarray:
    """Return the brightness of pixels that are floats, or integers of 16 bits or more.

    Of the bits of integers often fewer are used; the largest value tells how many.
    """
    image = image.convert("F")
    image.thumbnail((WORKING_SIDE, WORKING_SIDE), Image.Resampling.BOX)
    values = np.asarray(image, np.float64)
    if not np.isfinite(values).all():
        raise DataError("holds values that are not finite; expected brightness")
    top = next((2.0**bits - 1 for bits in (1, 8, 10, 12, 14, 16) if values.max() < 2**bits), None)
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


def find_digit(brightness: np.ndarray) -> Digit:
    """Find the digit on a picture, dark on light or light on dark. Raises DataError if blank.

    brightness: floats [H, W] in 0..1.
    """
    ink = _ink(np.asarray(brightness, np.float64))
    shapes, count = ndimage.label(ink > _otsu(ink), np.ones((3, 3)))
    areas = ndimage.sum_labels(np.ones_like(ink), shapes, range(1, count + 1))
    kept = np.flatnonzero(areas >= MIN_SHAPE_AREA * areas.max()) + 1
    mask = np.isin(shapes, kept)
    large = [number for number in kept if areas[number - 1] >= MIN_DIGIT_AREA * areas.max()]
    with_edges = ndimage.binary_dilation(mask, iterations=2)  # soft edges are part of the strokes
    ink = np.where(with_edges, ink, 0) / np.percentile(ink[mask], 75)
    rows, columns = (np.flatnonzero(with_edges.any(axis=axis)) for axis in (1, 0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    pixels = _to_mnist_format(np.clip(ink[box], 0, 1), mask[box])
    return Digit(pixels, shapes=_count_side_by_side(shapes, large))


def _ink(brightness: np.ndarray) -> np.ndarray:
    """Return how much darker or lighter than the background each pixel is, in 0..1.

    Darker or lighter: whichever the digit is. The background is a plane fitted to the picture's
    border, because light often comes from one side.
    """
    height, width = brightness.shape
    if min(height, width) < MIN_SIDE:
        raise DataError(f"{width} x {height} pixels; expected at least {MIN_SIDE} x {MIN_SIDE}")
    if max(height, width) < WORKING_SIDE / 2:  # pixels are too coarse to measure strokes
        factor = WORKING_SIDE // max(height, width)
        image = Image.fromarray(brightness.astype(np.float32), "F")
        image = image.resize((width * factor, height * factor), Image.Resampling.BICUBIC)
        brightness = np.asarray(image, np.float64)
        height, width = brightness.shape
    smooth = ndimage.gaussian_filter(brightness, max(height, width) / 150)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    edge = max(1, round(min(height, width) * 0.06))
    border = np.ones_like(smooth, bool)
    border[edge:-edge, edge:-edge] = False
    terms = np.stack([np.ones_like(x), x, y], axis=-1)
    used = border
    for _ in range(3):  # leave out what is not background: a digit at the border, a frame
        plane, *_ = np.linalg.lstsq(terms[used], smooth[used], rcond=None)
        deviation = smooth - terms @ plane
        used = border & (np.abs(deviation) <= 2.5 * np.abs(deviation[used]).mean() + 0.01)
        if used.sum() < 0.3 * border.sum():
            break
    noise = deviation[used if used.any() else border].std()
    ink = deviation if _is_light(deviation) else -deviation
    ink = np.clip(ink - 2 * noise, 0, None)
    contrast = np.percentile(ink, 99.5)
    if contrast < max(MIN_CONTRAST, 2 * noise):
        raise DataError("blank; expected a digit, darker or lighter than what it is drawn on")
    return np.clip(ink / contrast, 0, 1)


def _is_light(deviation: np.ndarray) -> bool:
    """Return whether what deviates most is lighter than the background."""
    return (np.clip(deviation, 0, None) ** 2).sum() > (np.clip(deviation, None, 0) ** 2).sum()


def _otsu(ink: np.ndarray) -> float:
    """Return the threshold that separates two classes best.

    Otsu, "A threshold selection method from gray-level histograms", 1979.
    """
    counts, edges = np.histogram(ink, 128, (0, 1))
    centres = (edges[:-1] + edges[1:]) / 2
    below, total = np.cumsum(counts), counts.sum()
    sums = np.cumsum(counts * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (sums[-1] * below / total - sums) ** 2 / (below * (total - below))
    return float(edges[1:][np.nanargmax(between)])


def _count_side_by_side(shapes: np.ndarray, large: list[int]) -> int:
    """Count the large shapes that lie side by side, with no column in common."""
    spans = []
    for number in large:
        columns = np.flatnonzero((shapes == number).any(axis=0))
        spans.append((columns[0], columns[-1]))
    count, end = 0, -1
    for first, last in sorted(spans):
        count += int(first > end)
        end = max(end, last)
    return count


def _to_mnist_format(ink: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Scale and centre a digit: [H, W] in 0..1 -> uint8 [28, 28]. mask: bool [H, W], the ink."""
    scale = BOX / max(ink.shape)
    # The mean distance to the edge in a line of width w is w / 4.
    stroke = 4 * ndimage.distance_transform_edt(np.pad(mask, 1))[np.pad(mask, 1)].mean() * scale
    if stroke < MIN_STROKE:
        reach = max(1, round((MIN_STROKE - stroke) / scale / 2))
        ink = ndimage.grey_dilation(np.pad(ink, reach), footprint=_disc(reach))
    elif stroke > MAX_STROKE:
        reach = max(1, round((stroke - MAX_STROKE) / scale / 2))
        ink = ndimage.grey_erosion(ink, footprint=_disc(reach))
    scale = BOX / max(ink.shape)
    height, width = (max(1, round(side * scale)) for side in ink.shape)
    image = Image.fromarray(ink.astype(np.float32), "F")
    small = np.clip(np.asarray(image.resize((width, height), Image.Resampling.BOX)), 0, 1)
    small = small / max(small.max(), 1e-6)
    centre = ndimage.center_of_mass(small)
    top, left = (
        int(np.clip(round(SIZE / 2 - 0.5 - position), 0, SIZE - side))
        for position, side in zip(centre, small.shape)
    )
    pixels = np.zeros((SIZE, SIZE))
    pixels[top : top + height, left : left + width] = small
    return np.rint(pixels * 255).astype(np.uint8)


def _disc(reach: int) -> np.ndarray:
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    return x**2 + y**2 <= reach**2 + 0.5

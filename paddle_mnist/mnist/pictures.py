"""A user's picture of a digit, made into 28 x 28 pixels as MNIST's were made.

Those were scaled to fit 20 x 20 pixels with their proportions kept, and put into 28 x 28 with their
centre of mass in the middle (LeCun, Cortes, Burges, "The MNIST database of handwritten digits").
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
MOST_BYTES = 64 << 20  # of a file
MOST_PIXELS = 64 << 20  # of a picture, as its header says
WORKING_SIDE = 256  # larger pictures are made smaller first
LEAST_SIDE, MOST_SLENDER = 8, 16

BOX = 20  # pixels, of the SIZE that an image has
FAINTEST = 0.08  # of the ink's contrast, black to white being 1
SPECK = 0.04  # of the largest shape's area: less is dirt
BESIDE = 0.15  # of the largest shape's area: a second digit has at least as much
THINNEST, THICKEST = 2.0, 4.5  # pixels of a stroke in the box, as most of MNIST's are


@dataclass(frozen=True)
class Digit:
    """pixels: uint8 [28, 28], white on black. shapes: how many lie side by side; 1 for a digit."""

    pixels: np.ndarray
    shapes: int


def read_digit(picture: Union[str, Path, bytes]) -> Digit:
    """The digit in a file, or in a file's bytes. Raises DataError, in one line."""
    return find_digit(read_picture(picture))


def read_picture(picture: Union[str, Path, bytes]) -> np.ndarray:
    """A picture's brightness, float64 [H, W] in 0..1, upright, nothing transparent in it.

    Of one whose colours change and whose brightness does not, the channel that changes most.
    Raises DataError for what is not one picture, or too large a one.
    """
    data = picture if isinstance(picture, bytes) else _bytes(Path(picture))
    if len(data) > MOST_BYTES:
        raise DataError(f"more than {MOST_BYTES:,} bytes; make it smaller")
    if not data:
        raise DataError("0 bytes; expected a picture")
    if b"<svg" in data[:1000].lower():
        raise DataError("an SVG drawing; expected pixels; save it as PNG")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large ones; refused below
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return _brightness(_checked(image))
    except UnidentifiedImageError as error:
        raise DataError(f"not a picture; expected one of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"more pixels than {MOST_PIXELS:,}; make it smaller") from error
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError) as error:
        raise DataError(f"damaged or cut off ({error}); expected a whole picture") from error


def _bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise DataError(f"a folder without pictures; expected some of {', '.join(SUFFIXES)}")
        if not path.is_file() and path.exists():
            raise DataError("a pipe or a device; expected a file")
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DataError(f"{error.strerror}; expected a picture") from error


def _checked(image: Image.Image) -> Image.Image:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise DataError(f"{width:,} x {height:,} pixels; expected at most {MOST_PIXELS:,}")
    if min(width, height) < LEAST_SIDE or max(width, height) > MOST_SLENDER * min(width, height):
        raise DataError(
            f"{width:,} x {height:,} pixels; expected at least {LEAST_SIDE} x {LEAST_SIDE}, one "
            f"side at most {MOST_SLENDER} times the other"
        )
    # Telephones put a second picture, of depth or brightness, into their JPEGs: an MPO.
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if frames > 1:
        raise DataError(f"{frames} pictures in one file; expected one; save the one you mean")
    image.draft(None, (WORKING_SIDE, WORKING_SIDE))  # a JPEG is made smaller while it is read
    return image


def _brightness(image: Image.Image) -> np.ndarray:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":  # 16 bits and more
        return _deep(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image.thumbnail((WORKING_SIDE, WORKING_SIDE), Image.Resampling.BOX)
        image = _grounded(image)
    image = image.convert("RGB")
    image.thumbnail((WORKING_SIDE, WORKING_SIDE), Image.Resampling.BOX)
    channels = np.asarray(image, np.float64) / 255
    grey = channels @ [0.299, 0.587, 0.114]  # ITU-R BT.601
    spread = channels.reshape(-1, 3).std(axis=0)
    return channels[..., spread.argmax()] if spread.max() > 2 * grey.std() else grey


def _deep(image: Image.Image) -> np.ndarray:
    """Of whole numbers of 16 bits or more, of which often fewer are used, or of floats."""
    image = image.convert("F")
    image.thumbnail((WORKING_SIDE, WORKING_SIDE), Image.Resampling.BOX)
    values = np.asarray(image, np.float64)
    if not np.isfinite(values).all():
        raise DataError("holds values that are not finite; expected brightness")
    top = next((2.0**bits - 1 for bits in (1, 8, 10, 12, 14, 16) if values.max() < 2**bits), None)
    return np.clip(values / (top or values.max()), 0, 1)


def _grounded(image: Image.Image) -> Image.Image:
    """RGBA, put on a ground: that of the sheet, if what is opaque is one with something on it;
    else one unlike the strokes."""
    pixels = np.asarray(image, np.float64)
    light, opaque = pixels[..., :3].mean(axis=2), pixels[..., 3] > 127
    if not opaque.any():
        raise DataError("blank: all of it is transparent; expected a digit")
    low, high = np.percentile(light[opaque], [2, 98])
    if high - low > 100:
        edge = opaque & ~ndimage.binary_erosion(opaque, iterations=3)
        ground = np.median(pixels[edge][:, :3], axis=0)
    else:
        ground = np.full(3, 0 if light[opaque].mean() > 127 else 255)
    paper = Image.new("RGBA", image.size, (*(int(value) for value in ground), 255))
    return Image.alpha_composite(paper, image)


def find_digit(brightness: np.ndarray) -> Digit:
    """The digit on a picture, dark on light or light on dark. Raises DataError if it is blank.

    brightness: floats [H, W] in 0..1.
    """
    ink = _ink(np.asarray(brightness, np.float64))
    shapes, count = ndimage.label(ink > _otsu(ink), np.ones((3, 3)))
    areas = ndimage.sum_labels(np.ones_like(ink), shapes, range(1, count + 1))
    kept = np.flatnonzero(areas >= SPECK * areas.max()) + 1
    mask = np.isin(shapes, kept)
    beside = _side_by_side(shapes, [n for n in kept if areas[n - 1] >= BESIDE * areas.max()])
    near = ndimage.binary_dilation(mask, iterations=2)  # the soft edges too
    ink = np.where(near, ink, 0) / np.percentile(ink[mask], 75)
    rows, columns = (np.flatnonzero(near.any(axis=axis)) for axis in (1, 0))
    cut = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    return Digit(_as_mnist(np.clip(ink[cut], 0, 1), mask[cut]), beside)


def _ink(brightness: np.ndarray) -> np.ndarray:
    """How much darker or lighter than the ground, whichever the digit is; the ground is 0.

    The ground is a plane through the picture's border: light falls from one side.
    """
    height, width = brightness.shape
    if min(height, width) < LEAST_SIDE:
        raise DataError(f"{width} x {height} pixels; expected at least {LEAST_SIDE} x {LEAST_SIDE}")
    if max(height, width) < WORKING_SIDE / 2:  # whole pixels are too coarse to measure strokes by
        times = WORKING_SIDE // max(height, width)
        image = Image.fromarray(brightness.astype(np.float32), "F")
        image = image.resize((width * times, height * times), Image.Resampling.BICUBIC)
        brightness = np.asarray(image, np.float64)
        height, width = brightness.shape
    smooth = ndimage.gaussian_filter(brightness, max(height, width) / 150)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    edge = max(1, round(min(height, width) * 0.06))
    border = np.ones_like(smooth, bool)
    border[edge:-edge, edge:-edge] = False
    terms = np.stack([np.ones_like(x), x, y], axis=-1)
    used = border
    for _ in range(3):  # without what is not ground: a digit that reaches the border, a frame
        plane, *_ = np.linalg.lstsq(terms[used], smooth[used], rcond=None)
        off = smooth - terms @ plane
        used = border & (np.abs(off) <= 2.5 * np.abs(off[used]).mean() + 0.01)
        if used.sum() < 0.3 * border.sum():
            break
    noise = off[used].std() if used.any() else off[border].std()
    ink = off if _is_light(off) else -off
    ink = np.clip(ink - 2 * noise, 0, None)
    contrast = np.percentile(ink, 99.5)
    if contrast < max(FAINTEST, 2 * noise):
        raise DataError("blank; expected a digit, darker or lighter than what it is drawn on")
    return np.clip(ink / contrast, 0, 1)


def _is_light(off: np.ndarray) -> bool:
    """Whether what stands out most is lighter than the ground."""
    return (np.clip(off, 0, None) ** 2).sum() > (np.clip(off, None, 0) ** 2).sum()


def _otsu(ink: np.ndarray) -> float:
    """The threshold that parts two classes best (Otsu 1979, "A threshold selection method")."""
    counts, edges = np.histogram(ink, 128, (0, 1))
    centres = (edges[:-1] + edges[1:]) / 2
    below, total = np.cumsum(counts), counts.sum()
    sums = np.cumsum(counts * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (sums[-1] * below / total - sums) ** 2 / (below * (total - below))
    return float(edges[1:][np.nanargmax(between)])


def _side_by_side(shapes: np.ndarray, large: list[int]) -> int:
    """How many of the large shapes lie beside one another, no part of one over another."""
    spans = []
    for number in large:
        columns = np.flatnonzero((shapes == number).any(axis=0))
        spans.append((columns[0], columns[-1]))
    count, end = 0, -1
    for first, last in sorted(spans):
        count += int(first > end)
        end = max(end, last)
    return count


def _as_mnist(ink: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """[H, W] in 0..1 -> uint8 [28, 28]."""
    scale = BOX / max(ink.shape)
    # A line w wide has w / 4 as its mean distance to the edge.
    stroke = 4 * ndimage.distance_transform_edt(np.pad(mask, 1))[np.pad(mask, 1)].mean() * scale
    if stroke < THINNEST:
        reach = max(1, round((THINNEST - stroke) / scale / 2))
        ink = ndimage.grey_dilation(np.pad(ink, reach), footprint=_disc(reach))
    elif stroke > THICKEST:
        reach = max(1, round((stroke - THICKEST) / scale / 2))
        ink = ndimage.grey_erosion(ink, footprint=_disc(reach))
    scale = BOX / max(ink.shape)
    height, width = (max(1, round(side * scale)) for side in ink.shape)
    image = Image.fromarray(ink.astype(np.float32), "F")
    small = np.clip(np.asarray(image.resize((width, height), Image.Resampling.BOX)), 0, 1)
    small = small / max(small.max(), 1e-6)
    centre = ndimage.center_of_mass(small)
    top, left = (
        int(np.clip(round(SIZE / 2 - 0.5 - at), 0, SIZE - side))
        for at, side in zip(centre, small.shape)
    )
    pixels = np.zeros((SIZE, SIZE))
    pixels[top : top + height, left : left + width] = small
    return np.rint(pixels * 255).astype(np.uint8)


def _disc(reach: int) -> np.ndarray:
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    return x**2 + y**2 <= reach**2 + 0.5

"""A sheet of paper, a pen and a camera; their properties are drawn at random."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

import cv2
import numpy as np
from PIL import Image
from skimage.morphology import skeletonize

Random = np.random.RandomState
Draw = Callable[[Random], Image.Image]
Colour = np.ndarray  # float [3], 0 to 1
Cover = np.ndarray  # float [H, W], 0 to 1: where ink is
Page = np.ndarray  # float [H, W, 3], 0 to 1


@dataclass
class Look:
    """The properties of a picture that are drawn at random; a kind of paper changes some of them.

    size: height and width, pixels. height: of the digit, share of the picture's smaller side.
    pen: width of the stroke, share of the digit's height. at: the digit's centre, shares.
    noise: of the camera, standard deviation. blur: pixels. quality: of the JPEG.
    """

    size: tuple[int, int]
    height: float
    pen: float
    at: tuple[float, float]
    paper: Colour
    ink: Colour
    noise: float
    blur: float
    quality: int

    @property
    def pixels(self) -> float:
        """The digit's height."""
        return self.height * min(self.size)

    def sheet(self) -> Page:
        return np.ones((*self.size, 3)) * self.paper


def random_look(random: Random) -> Look:
    sizes = [(120, 120), (160, 200), (240, 320), (400, 300), (480, 640), (640, 480)]
    return Look(
        size=sizes[random.randint(len(sizes))],
        height=random.uniform(0.4, 0.75),
        pen=random.uniform(0.07, 0.14),
        at=(random.uniform(0.44, 0.56), random.uniform(0.44, 0.56)),
        paper=np.clip(random.uniform(0.78, 0.98) + random.uniform(-0.02, 0.02, 3), 0, 1),
        ink=random.uniform(0.02, 0.22) + random.uniform(0, [0.08, 0.08, 0.3]),
        noise=random.uniform(0.0, 0.02),
        blur=random.uniform(0, 0.8),
        quality=random.randint(70, 96),
    )


# ------------------------------------------------------------------ ink, light, a camera


def trimmed(values: np.ndarray, level: float = 0.5) -> np.ndarray:
    """Cut off the rows and columns around what is above `level`."""
    left, top, width, height = cv2.boundingRect((values > level).astype(np.uint8))
    return values[top : top + height, left : left + width]


def stroke(image: np.ndarray, height: float, pen: float) -> Cover:
    """Draw a digit again, with a pen of a given width.

    image: uint8 [28, 28], of MNIST. height: pixels. pen: share of the height.
    """
    digit = trimmed(image, 64)
    scale = height / max(digit.shape)
    large = cv2.resize(np.pad(digit, 2), None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    width = max(1.2, pen * height)
    middle = skeletonize(np.pad(large > 100, int(width) + 2))
    away = np.uint8(~middle)
    distance = cv2.distanceTransform(away, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    return np.clip(width / 2 - distance + 0.5, 0, 1)


def tilted(
    values: np.ndarray,
    turn: float,
    shear: float,
    scale: float = 1,
    right: float = 0,
    down: float = 0,
) -> np.ndarray:
    """Turn a drawing around its middle by so many degrees, shear, scale and move it."""
    matrix = scale * cv2.getRotationMatrix2D((0, 0), turn, 1)[:, :2] @ [[1, shear], [0, 1]]
    middle = (np.array(values.shape[::-1]) - 1) / 2
    move = middle - matrix @ middle + [right, down]
    return cv2.warpAffine(values, np.c_[matrix, move], values.shape[::-1])


def inked(page: Page, cover: Cover, place: Sequence[float], ink: Colour) -> Page:
    """Ink a page where a drawing covers it. place: of the drawing's top left corner, y and x.

    What lies outside of the page is cut off.
    """
    move = np.array([[1, 0, round(place[1])], [0, 1, round(place[0])]], float)
    whole = cv2.warpAffine(np.float32(cover), move, page.shape[1::-1])[..., np.newaxis]
    return page + whole * (ink - page)


def centred(page: Page, cover: Cover, look: Look) -> Page:
    """Ink a page with a drawing, whose middle is at `look.at`."""
    place = [at * side - own / 2 for at, side, own in zip(look.at, page.shape, cover.shape)]
    return inked(page, cover, place, look.ink)


def photograph(page: Page, look: Look, random: Random) -> Image.Image:
    """Take a page with a camera: blur, noise, JPEG."""
    page = cv2.GaussianBlur(page, (0, 0), max(look.blur, 1e-3))
    page = page + random.normal(0, look.noise, page.shape)
    values = np.rint(np.clip(page, 0, 1) * 255).astype(np.uint8)
    _, file = cv2.imencode(".jpg", values[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, int(look.quality)])
    return Image.fromarray(cv2.imdecode(file, cv2.IMREAD_COLOR)[..., ::-1])


def on_paper(cover: Cover, look: Look, random: Random) -> Image.Image:
    """Scale a drawing to the height of a digit and take a picture of it on plain paper."""
    cover = np.float32(trimmed(cover))
    scale = look.pixels / max(cover.shape)
    size = [max(1, round(side * scale)) for side in cover.shape[::-1]]
    cover = cv2.resize(cover, size, interpolation=cv2.INTER_AREA)
    return photograph(centred(look.sheet(), cover, look), look, random)


def grid(size: tuple[int, int], turn: float = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of each pixel, -1 to 1 along the longer side, turned around the middle."""
    y, x = (
        (place - (side - 1) / 2) / (max(size) / 2) for place, side in zip(np.indices(size), size)
    )
    return x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)


def grain(
    size: tuple[int, int], random: Random, blur: Union[float, tuple[float, float]] = 0
) -> np.ndarray:
    """Return smooth noise of mean 0 and deviation 1. blur: pixels, or those across and down."""
    across, down = np.maximum(np.broadcast_to(blur, 2), 1e-3)
    values = cv2.GaussianBlur(random.normal(0, 1, size), (0, 0), sigmaX=across, sigmaY=down)
    return values / values.std()

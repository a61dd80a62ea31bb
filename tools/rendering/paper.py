"""Digits of MNIST written on paper of many kinds, as people photograph them.

An image of MNIST is enlarged, its strokes are drawn anew with a pen of any width, and written on a
page; then light falls on the page and a camera takes it.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from scipy import ndimage

Random = np.random.RandomState
Draw = Callable[[Random], Image.Image]
Colour = np.ndarray  # float [3], 0 to 1
Page = np.ndarray  # float [H, W, 3], 0 to 1


@dataclass
class Lot:
    """What is drawn by lot for a picture; a kind of paper changes some of it.

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


def cast(random: Random) -> Lot:
    sizes = [(120, 120), (160, 200), (240, 320), (400, 300), (480, 640), (640, 480)]
    return Lot(
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


def stroke(image: np.ndarray, height: float, pen: float) -> np.ndarray:
    """Return a digit as coverage, float [H, W] in 0..1, drawn anew with a pen of a given width.

    image: uint8 [28, 28], of MNIST. height: pixels. pen: share of the height.
    """
    digit = _trimmed(image, 64).astype(np.float32)
    scale = height / max(digit.shape)
    large = Image.fromarray(np.pad(digit, 2)).resize(
        [round((side + 4) * scale) for side in digit.shape[::-1]], Image.Resampling.BICUBIC
    )
    inside = np.asarray(large) > 100
    width = max(1.2, pen * height)
    margin = int(width) + 2
    inside = np.pad(inside, margin)
    middle = thinned(inside)
    distance = ndimage.distance_transform_edt(~middle)
    return np.clip(width / 2 - distance + 0.5, 0, 1)


def _trimmed(values: np.ndarray, level: float = 0.5) -> np.ndarray:
    """Cut off the rows and columns around what is above `level`."""
    rows, columns = (np.flatnonzero((values > level).any(axis=axis)) for axis in (1, 0))
    return values[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def thinned(mask: np.ndarray) -> np.ndarray:
    """Reduce shapes to lines of one pixel.

    Zhang and Suen, "A fast parallel algorithm for thinning digital patterns", 1984.
    """
    mask = np.pad(mask, 1)
    while True:
        before = mask.sum()
        for step in (0, 1):
            around = [
                np.roll(mask, shift, (0, 1))
                for shift in ((1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1))
            ]
            count = np.sum(around, axis=0)
            runs = np.sum([~a & b for a, b in zip(around, [*around[1:], around[0]])], axis=0)
            n, e, s, w = around[::2]
            first, second = (n & e & s, e & s & w) if step == 0 else (n & e & w, n & s & w)
            mask = mask & ~((count >= 2) & (count <= 6) & (runs == 1) & ~first & ~second)
        if mask.sum() == before:
            return mask[1:-1, 1:-1]


def sheet(lot: Lot) -> Page:
    return np.ones((*lot.size, 3)) * lot.paper


def write(page: Page, image: np.ndarray, lot: Lot) -> Page:
    """Write a digit on a page."""
    height = lot.height * min(page.shape[:2])
    cover = _trimmed(stroke(image, height, lot.pen), 0)
    place = [
        round(centre * side - own / 2) for centre, side, own in zip(lot.at, page.shape, cover.shape)
    ]
    return paste(page, cover, place, lot.ink)


def paste(page: Page, cover: np.ndarray, place: Sequence[int], ink: Colour) -> Page:
    """Ink a page where a digit covers it; what lies outside of the page is cut off."""
    top, left = place
    whole = np.zeros(page.shape[:2])
    bottom, right = (
        min(side, start + own) for side, start, own in zip(page.shape, place, cover.shape)
    )
    part = cover[max(0, -top) : bottom - top, max(0, -left) : right - left]
    whole[max(0, top) : bottom, max(0, left) : right] = part
    return page + whole[..., np.newaxis] * (ink - page)


def photograph(page: Page, lot: Lot, random: Random) -> Image.Image:
    """Take a page with a camera: blur, noise, JPEG."""
    page = ndimage.gaussian_filter(page, (lot.blur, lot.blur, 0))
    page = page + random.normal(0, lot.noise, page.shape)
    image = Image.fromarray(np.rint(np.clip(page, 0, 1) * 255).astype(np.uint8))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=int(lot.quality))
    return Image.open(io.BytesIO(file.getvalue()))


def on_paper(cover: np.ndarray, lot: Lot, random: Random) -> Image.Image:
    """Scale a drawing to the height of a digit and take a picture of it on plain paper."""
    height = lot.height * min(lot.size)
    cover = _trimmed(cover)
    scale = height / max(cover.shape)
    image = Image.fromarray(np.rint(cover * 255).astype(np.uint8)).resize(
        [max(1, round(side * scale)) for side in cover.shape[::-1]], Image.Resampling.BOX
    )
    cover = np.asarray(image) / 255
    place = [int(at * side - own / 2) for at, side, own in zip(lot.at, lot.size, cover.shape)]
    return photograph(paste(sheet(lot), cover, place, lot.ink), lot, random)


def rotation(turn: float) -> np.ndarray:
    """Return the matrix of a turn, in radians."""
    return np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])


def _written(image: np.ndarray, lot: Lot, random: Random) -> Image.Image:
    """Write a digit on a sheet and take a picture of it."""
    return photograph(write(sheet(lot), image, lot), lot, random)


def plain(image: np.ndarray, random: Random) -> Image.Image:
    return _written(image, cast(random), random)


def ruled(image: np.ndarray, random: Random, both: bool = False) -> Image.Image:
    """Lines, beneath the ink or across it, faint or as dark as ink; with both: squares."""
    lot = cast(random)
    page = sheet(lot)
    height = lot.height * min(lot.size)
    spacing = height * (random.uniform(0.2, 0.5) if both else random.uniform(0.35, 0.9))
    colour = lot.paper * (1 - random.uniform(0.15, 0.8))
    colour = np.clip(colour + random.uniform(0, 0.15) * np.array([-0.3, 0, 1]), 0, 1)
    width = max(0.8, random.uniform(0.004, 0.012) * min(lot.size))
    tilt = np.radians(random.uniform(-3, 3))
    y, x = np.mgrid[: lot.size[0], : lot.size[1]].astype(float)
    along = [y * np.cos(tilt) - x * np.sin(tilt), y * np.sin(tilt) + x * np.cos(tilt)]
    covers = []
    for position in along[: 1 + both]:
        distance = np.abs((position + random.uniform(0, spacing)) % spacing - spacing / 2)
        covers.append(np.clip(width / 2 - distance + 0.5, 0, 1)[..., np.newaxis])
    lines = np.max(covers, axis=0)
    is_across = random.rand() < 0.5
    if is_across:
        page = write(page, image, lot)
    page = page + lines * (colour - page)
    if not is_across:
        page = write(page, image, lot)
    return photograph(page, lot, random)


def squared(image: np.ndarray, random: Random) -> Image.Image:
    return ruled(image, random, both=True)


def shadowed(image: np.ndarray, random: Random) -> Image.Image:
    """A shadow with an edge, soft or hard, that crosses the page near the digit; uneven light."""
    lot = cast(random)
    page = write(sheet(lot), image, lot)
    y, x = np.mgrid[-1 : 1 : lot.size[0] * 1j, -1 : 1 : lot.size[1] * 1j]
    direction = random.uniform(0, 2 * np.pi)
    across = x * np.cos(direction) + y * np.sin(direction) - random.uniform(-0.6, 0.6)
    across = across + random.uniform(0, 0.3) * np.sin(random.uniform(1, 4) * (x - y))
    softness = random.uniform(0.01, 0.3)
    shadow = 1 - random.uniform(0.25, 0.6) / (1 + np.exp(-across / softness))
    falloff = 1 - random.uniform(0, 0.3) * (x * np.sin(direction) + 1) / 2
    return photograph(page * (shadow * falloff)[..., np.newaxis], lot, random)


def yellowed(image: np.ndarray, random: Random) -> Image.Image:
    """Old paper: yellow, stained, darker at its edges; the ink has faded."""
    lot = cast(random)
    lot.paper = np.array([0.9, 0.8, 0.58]) * random.uniform(0.75, 1)
    lot.paper += random.uniform(-0.04, 0.04, 3)
    lot.ink = np.array([0.35, 0.25, 0.18]) + random.uniform(-0.1, 0.1)
    page = sheet(lot)
    for _ in range(random.randint(1, 5)):  # stains
        stain = ndimage.gaussian_filter(random.normal(0, 1, (8, 8)), 1)
        stain = np.asarray(
            Image.fromarray(stain.astype(np.float32)).resize(
                lot.size[::-1], Image.Resampling.BICUBIC
            )
        )
        page = page * (1 - 0.12 * np.clip(stain / stain.max(), 0, 1)[..., np.newaxis])
    grain = ndimage.gaussian_filter(random.normal(0, 1, lot.size), 1.5)
    page = page * (1 + 0.03 * grain[..., np.newaxis])
    y, x = np.mgrid[-1 : 1 : lot.size[0] * 1j, -1 : 1 : lot.size[1] * 1j]
    page = page * (1 - random.uniform(0.05, 0.35) * np.maximum(abs(x), abs(y)) ** 6)[..., None]
    return photograph(write(page, image, lot), lot, random)


def desk(size: tuple[int, int], random: Random) -> Page:
    """What a sheet lies on: wood, cloth, a dark or bright table."""
    colour = random.uniform(0.05, 0.6) * np.array([1, *random.uniform(0.5, 1, 2)])
    grain = ndimage.gaussian_filter(random.normal(0, 1, size), (1, random.uniform(1, 12)))
    grain = grain / grain.std() * random.uniform(0, 0.05)
    return np.clip(colour + grain[..., np.newaxis], 0, 1)


def at_an_angle(image: np.ndarray, random: Random) -> Image.Image:
    """A sheet photographed at an angle; at some corners what lies beneath is seen."""
    lot = cast(random)
    page = write(sheet(lot), image, lot)
    height, width = lot.size
    corners = np.array([(0, 0), (width, 0), (width, height), (0, height)], float)
    moved = corners * 1.0
    reach = random.uniform(0.06, 0.16)
    inward = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)])
    moved += inward * random.uniform(-0.06, reach, (4, 2)) * [width, height]
    rows, target = [], []
    for (x, y), (u, v) in zip(moved, corners):  # PIL wants the source of each target
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        target += [u, v]
    coefficients = np.linalg.solve(np.array(rows), target)
    opaque = np.dstack([page, np.ones(lot.size)])
    picture = Image.fromarray(np.rint(np.clip(opaque, 0, 1) * 255).astype(np.uint8), "RGBA")
    picture = picture.transform(
        lot.size[::-1], Image.Transform.PERSPECTIVE, list(coefficients), Image.Resampling.BICUBIC
    )
    taken = np.asarray(picture) / 255
    below = desk(lot.size, random)
    return photograph(below + taken[..., 3:] * (taken[..., :3] - below), lot, random)


def bordered(image: np.ndarray, random: Random) -> Image.Image:
    """A border of another colour on one to four sides."""
    lot = cast(random)
    lot.height *= 0.85
    page = write(sheet(lot), image, lot)
    if random.rand() < 0.3:  # brighter than the sheet, or of its brightness in another colour
        page = page * 0.8
        border = np.ones((*lot.size, 3)) * random.permutation([1, random.uniform(0.6, 1), 0.8])
    else:
        border = desk(lot.size, random)
    sides = random.rand(4) < 0.7
    sides[random.randint(4)] = True
    for number in np.flatnonzero(sides):
        share = random.uniform(0.03, 0.13)
        axis, end = number % 2, number // 2
        depth = max(1, round(share * lot.size[axis]))
        part = slice(None, depth) if end == 0 else slice(-depth, None)
        place = (part, slice(None)) if axis == 0 else (slice(None), part)
        page[place] = border[place]
    return photograph(page, lot, random)


def pen_of(low: float, high: float) -> Callable:
    def pen(image: np.ndarray, random: Random) -> Image.Image:
        lot = cast(random)
        lot.pen = random.uniform(low, high)
        return _written(image, lot, random)

    return pen


def jpeg_10(image: np.ndarray, random: Random) -> Image.Image:
    lot = cast(random)
    lot.quality = 10
    return _written(image, lot, random)


def touching(image: np.ndarray, random: Random) -> Image.Image:
    """The digit touches the border, on one side to four."""
    lot = cast(random)
    cover = _trimmed(stroke(image, lot.height * min(lot.size), lot.pen))
    margins = random.uniform(0.1, 0.6, 4) * max(cover.shape)
    touched = random.rand(4) < 0.4
    touched[random.randint(4)] = True
    margins[touched] = 0
    top, bottom, left, right = (int(margin) for margin in margins)
    # A picture this narrow is refused by its form.
    short = max(0, max(cover.shape) // 3 - cover.shape[1])
    lot.size = (top + cover.shape[0] + bottom, left + short + cover.shape[1] + right)
    return photograph(paste(sheet(lot), cover, (top, left), lot.ink), lot, random)


def light_on_dark(image: np.ndarray, random: Random) -> Image.Image:
    lot = cast(random)
    lot.ink, lot.paper = lot.paper, lot.ink
    return _written(image, lot, random)


KINDS: dict[str, Callable[[np.ndarray, Random], Image.Image]] = {
    "plain": plain,
    "ruled": ruled,
    "squared": squared,
    "shadowed": shadowed,
    "yellowed": yellowed,
    "at an angle": at_an_angle,
    "a border of another colour": bordered,
    "a thin pen": pen_of(0.025, 0.06),
    "a thick pen": pen_of(0.14, 0.2),
    "JPEG at quality 10": jpeg_10,
    "touching the border": touching,
    "light on dark": light_on_dark,
}


def page(images: np.ndarray, rows: Sequence[int], random: Random) -> Image.Image:
    """Write digits in rows on one sheet: a postcode, a column, a page.

    images: uint8 [N, 28, 28]. rows: how many digits each row has; N in all.
    """
    lot = cast(random)
    height = random.uniform(40, 70)
    advance, spacing = height * random.uniform(1.05, 1.4), height * random.uniform(1.5, 2)
    margin = height
    lot.size = (
        round(2 * margin + spacing * (len(rows) - 1) + height),
        round(2 * margin + advance * (max(rows) - 1) + height),
    )
    paper = sheet(lot)
    remaining = iter(images)
    rise = random.uniform(-0.03, 0.03)  # of a row, towards the right
    for number, count in enumerate(rows):
        for column in range(count):
            own = height * random.uniform(0.85, 1.1)
            cover = stroke(next(remaining), own, lot.pen)
            left = margin + advance * column + random.uniform(-0.05, 0.05) * height
            top = margin + spacing * number + rise * left + random.uniform(-0.1, 0.1) * height
            paper = paste(paper, _trimmed(cover), (round(top), round(left)), lot.ink)
    return photograph(paper, lot, random)

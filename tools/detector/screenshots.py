"""Screenshots of code, tables, charts and desktops, which nothing is trained on."""

from PIL import Image, ImageDraw

from detector.camera import Random
from detector.letters import font_of

SIZES = [(1280, 720), (1024, 768), (800, 600), (540, 960)]


def _words(random: Random, count: int) -> str:
    lengths = random.randint(2, 10, count)
    return " ".join("".join(map(chr, ord("a") + random.randint(0, 26, n))) for n in lengths)


def _colour(random: Random, low: int = 0, high: int = 255) -> tuple[int, ...]:
    return tuple(random.randint(low, high, 3).tolist())


def _screen(random: Random, dark_share: float) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Return an empty screen, dark in such a share of the draws, and what draws on it."""
    is_dark = random.rand() < dark_share
    back = _colour(random, 10, 60) if is_dark else _colour(random, 200, 256)
    image = Image.new("RGB", SIZES[random.randint(len(SIZES))], back)
    return image, ImageDraw.Draw(image)


def editor(random: Random) -> Image.Image:
    """Code in many colours on a dark ground, with numbered lines."""
    image, pen = _screen(random, 1)
    size = random.randint(14, 24)
    font = font_of("cmtt10", size)
    for number, top in enumerate(range(10, image.height - size, round(size * 1.4)), 1):
        pen.text((10, top), str(number), (110, 110, 110), font)
        left = 60 + 30 * random.randint(0, 5)
        for word in _words(random, random.randint(0, 6)).split():
            pen.text((left, top), word, _colour(random, 120), font)
            left += size * (len(word) + 1) // 2 + 8
    return image


def spreadsheet(random: Random) -> Image.Image:
    image, pen = _screen(random, 0)
    font = font_of("STIXGeneral", 18)
    width, height = random.randint(70, 140), random.randint(24, 40)
    for left in range(0, image.width, width):
        pen.line((left, 0, left, image.height), (190, 190, 190))
    for top in range(0, image.height, height):
        pen.line((0, top, image.width, top), (190, 190, 190))
        for left in range(0, image.width, width):
            if random.rand() < 0.5:
                pen.text((left + 6, top + 3), f"{random.randint(0, 9999)}", (0, 0, 0), font)
    return image


def chart(random: Random) -> Image.Image:
    """Axes, a curve and bars."""
    image, pen = _screen(random, 0)
    bottom, count = image.height - 70, random.randint(4, 14)
    pen.line([(80, 40), (80, bottom), (image.width - 40, bottom)], (0, 0, 0), 3)
    step, colour = (image.width - 160) // count, _colour(random, 0, 200)
    tops = [int(bottom - random.uniform(0.1, 0.9) * (bottom - 60)) for _ in range(count)]
    for number, top in enumerate(tops):
        x = 95 + number * step
        pen.rectangle((x, top, x + step * 2 // 3, bottom), fill=colour)
        pen.text((x, bottom + 10), f"{number}", (0, 0, 0), font_of("cmss10", 22))
    pen.line([(95 + n * step, top - 20) for n, top in enumerate(tops)], (200, 30, 30), 4)
    return image


def desktop(random: Random) -> Image.Image:
    """Icons with names in a grid, and a bar at the bottom."""
    image, pen = _screen(random, 0.6)
    pen.rectangle((0, image.height - 48, image.width, image.height), fill=(40, 40, 48))
    font = font_of("cmss10", 18)
    for top in range(30, image.height - 160, 130):
        for left in range(30, image.width - 90, 120):
            if random.rand() < 0.5:
                box = (left, top, left + 64, top + 64)
                pen.rounded_rectangle(box, 12, fill=_colour(random))
                pen.text((left, top + 72), _words(random, 1), (200, 200, 200), font)
    return image


UNSEEN = (editor, spreadsheet, chart, desktop)

"""Screenshots: windows, code, tables, charts."""

from PIL import Image, ImageDraw

from rendering.letters import LETTERS, font_of
from rendering.paper import Random


def _words(random: Random, count: int) -> str:
    return " ".join(
        "".join(LETTERS[random.randint(26)] for _ in range(random.randint(2, 10)))
        for _ in range(count)
    )


def _screen(random: Random, dark: bool) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    sizes = [(1280, 720), (1024, 768), (800, 600), (540, 960)]
    back = random.randint(10, 60, 3) if dark else random.randint(200, 256, 3)
    image = Image.new("RGB", sizes[random.randint(len(sizes))], tuple(int(v) for v in back))
    return image, ImageDraw.Draw(image)


def document(random: Random) -> Image.Image:
    """A window with a title and paragraphs."""
    image, pen = _screen(random, dark=False)
    pen.rectangle((0, 0, image.width, 50), fill=tuple(int(v) for v in random.randint(30, 200, 3)))
    font = font_of("DejaVuSans", random.randint(12, 26))
    for top in range(80, image.height - 30, random.randint(22, 50)):
        if random.rand() < 0.85:
            pen.text((40, top), _words(random, random.randint(3, 12)), (20, 20, 20), font)
    return image


def dialog(random: Random) -> Image.Image:
    """A box with a question and two buttons in the middle of a desktop."""
    image, pen = _screen(random, dark=random.rand() < 0.5)
    width, height = (int(side * random.uniform(0.3, 0.6)) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    box = (left, top, left + width, top + height)
    pen.rectangle(box, fill=(240, 240, 240), outline=(90, 90, 90))
    font = font_of("DejaVuSans-Bold", 22)
    pen.text((left + 20, top + 20), _words(random, 4), (0, 0, 0), font)
    for number in range(2):
        x = left + width - 130 * (number + 1)
        pen.rectangle((x, top + height - 50, x + 110, top + height - 15), fill=(60, 110, 200))
        pen.text((x + 20, top + height - 45), _words(random, 1)[:6], (255, 255, 255), font)
    return image


def listing(random: Random) -> Image.Image:
    """Rows with a picture, a title and a line of text, as on a telephone."""
    image, pen = _screen(random, dark=random.rand() < 0.5)
    text = (230, 230, 230) if sum(image.getpixel((0, 0))) < 300 else (30, 30, 30)
    height = random.randint(60, 180)
    for top in range(0, image.height, height):
        colour = tuple(int(v) for v in random.randint(0, 255, 3))
        pen.ellipse((15, top + 10, height - 5, top + height - 10), fill=colour)
        pen.text((height + 10, top + 10), _words(random, 2), text, font_of("DejaVuSans-Bold", 22))
        pen.text((height + 10, top + 40), _words(random, 6), text, font_of("DejaVuSans", 16))
        pen.line((0, top, image.width, top), (128, 128, 128))
    return image


def editor(random: Random) -> Image.Image:
    """Code in many colours on a dark ground, with numbered lines."""
    image, pen = _screen(random, dark=True)
    size = random.randint(14, 24)
    font = font_of("cmtt10", size)
    for number, top in enumerate(range(10, image.height - size, round(size * 1.4))):
        pen.text((10, top), str(number + 1), (110, 110, 110), font)
        left = 60 + 30 * random.randint(0, 5)
        for _ in range(random.randint(0, 6)):
            word = _words(random, 1)
            pen.text((left, top), word, tuple(int(v) for v in random.randint(120, 255, 3)), font)
            left += size * (len(word) + 1) // 2 + 8
    return image


def spreadsheet(random: Random) -> Image.Image:
    image, pen = _screen(random, dark=False)
    font = font_of("STIXGeneral", 18)
    width, height = random.randint(70, 140), random.randint(24, 40)
    for top in range(0, image.height, height):
        pen.line((0, top, image.width, top), (190, 190, 190))
        for left in range(0, image.width, width):
            pen.line((left, 0, left, image.height), (190, 190, 190))
            if random.rand() < 0.5:
                pen.text((left + 6, top + 3), f"{random.randint(0, 9999)}", (0, 0, 0), font)
    return image


def chart(random: Random) -> Image.Image:
    """Axes, a curve and bars."""
    image, pen = _screen(random, dark=False)
    left, bottom = 80, image.height - 70
    pen.line((left, 40, left, bottom), (0, 0, 0), 3)
    pen.line((left, bottom, image.width - 40, bottom), (0, 0, 0), 3)
    count = random.randint(4, 14)
    step = (image.width - 160) // count
    tops = [int(bottom - random.uniform(0.1, 0.9) * (bottom - 60)) for _ in range(count)]
    colour = tuple(int(v) for v in random.randint(0, 200, 3))
    for number, top in enumerate(tops):
        x = left + 15 + number * step
        pen.rectangle((x, top, x + step * 2 // 3, bottom), fill=colour)
        pen.text((x, bottom + 10), f"{number}", (0, 0, 0), font_of("cmss10", 22))
    pen.line([(left + 15 + n * step, top - 20) for n, top in enumerate(tops)], (200, 30, 30), 4)
    return image


def desktop(random: Random) -> Image.Image:
    """Icons with names in a grid, and a bar at the bottom."""
    image, pen = _screen(random, dark=random.rand() < 0.6)
    pen.rectangle((0, image.height - 48, image.width, image.height), fill=(40, 40, 48))
    font = font_of("cmss10", 18)
    for top in range(30, image.height - 160, 130):
        for left in range(30, image.width - 90, 120):
            if random.rand() < 0.5:
                colour = tuple(int(v) for v in random.randint(0, 255, 3))
                pen.rounded_rectangle((left, top, left + 64, top + 64), 12, fill=colour)
                pen.text((left, top + 72), _words(random, 1), (200, 200, 200), font)
    return image


TRAINING = (document, dialog, listing)
UNSEEN = (editor, spreadsheet, chart, desktop)

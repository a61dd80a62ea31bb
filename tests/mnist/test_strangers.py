"""Pictures as strangers take them, each kind as its smallest drawing."""

import numpy as np
import pytest
from drawn_digits import STROKES, arc
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from paddle_mnist import DigitPredictor
from paddle_mnist.errors import DataError
from paddle_mnist.mnist.pictures import read_pictures
from paddle_mnist.mnist.pictures.digits import read_digits

INK = 30
FIVE = [(0.27, 0.45), *arc(0.48, 0.66, 0.28, 0.27, 235, 500)]


@pytest.fixture(scope="module")
def predictor():
    return DigitPredictor("pretrained")


def draw(image, strokes, left, top, height, width, ink=INK):
    """Draw strokes, in a square from 0 to 1, with a round pen."""
    pen = ImageDraw.Draw(image)
    for stroke in strokes:
        points = [(left + 0.75 * x * height, top + y * height) for x, y in stroke]
        pen.line(points, ink, width, joint="curve")
        for x, y in points:
            pen.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), ink)


def alone(strokes, width=18):
    image = Image.new("L", (400, 400), 255)
    draw(image, strokes, 90, 60, 280, width)
    return image


def cut_to_ink(strokes, width):
    image = alone(strokes, width)
    return image.crop(ImageOps.invert(image).getbbox())


def on_a_desk(desk, sheet, side, left=500, top=300):
    """A square sheet with a 3, on a desk that is hardly darker, or much larger."""
    image = Image.new("L", (1280, 960), desk)
    ImageDraw.Draw(image).rectangle((left, top, left + side, top + side), sheet)
    draw(image, STROKES[3], left + 0.32 * side, top + 0.25 * side, side / 2, max(6, side // 30))
    noise = np.random.RandomState(0).normal(0, 2, (960, 1280))
    grain = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
    return Image.fromarray(grain).filter(ImageFilter.GaussianBlur(1))


def flagged(share):
    """A 1 with a flag, 60 degrees from its stem, as long as that share of it."""
    return alone([[(0.6 - 1.1 * share, 0.02 + 0.48 * share), (0.6, 0.02), (0.6, 0.98)]])


def faint_below(ink):
    """An 8 of which the lower loop is in pencil."""
    image = Image.new("L", (400, 400), 255)
    for stroke, tone in zip(STROKES[8], (INK, ink)):
        draw(image, [stroke], 90, 60, 280, 18, tone)
    return image


def in_a_row(*digits_and_inks):
    image = Image.new("L", (1000, 400), 255)
    for number, (digit, ink) in enumerate(digits_and_inks):
        draw(image, STROKES[digit], 80 + 150 * number, 120, 160, 14, ink)
    return image


KINDS = {
    "a light desk": (lambda: on_a_desk(215, 242, 500, 400, 200), 3),
    "a white desk": (lambda: on_a_desk(228, 248, 500, 400, 200), 3),
    "a small sheet": (lambda: on_a_desk(120, 242, 270), 3),
    "a smaller sheet": (lambda: on_a_desk(120, 242, 180), 3),
    "a small sheet on a light desk": (lambda: on_a_desk(205, 242, 300), 3),
    "a 1 with a wide flag": (lambda: flagged(0.4), 1),
    "a 1 with a wider flag": (lambda: flagged(0.7), 1),
    "a loop in pencil": (lambda: faint_below(200), 8),
    "a loop in fainter pencil": (lambda: faint_below(215), 8),
    "a 7 cut to its bar": (lambda: cut_to_ink(STROKES[7], 10), 7),
    "a 2 cut to its foot": (lambda: cut_to_ink(STROKES[2], 5), 2),
    "a flat bar": (lambda: alone([[(1.2, 0.08), (0.32, 0.08)], [(0.32, 0.08), *FIVE]], 6), 5),
    "a 4 in two strokes": (
        lambda: alone([[(0.4, 0.05), (0.15, 0.55), (0.6, 0.55)], [(0.75, 0.2), (0.75, 0.97)]]),
        4,
    ),
    "an angle as high as half a 4": (
        lambda: alone([[(0.3, 0.05), (0.15, 0.5), (0.55, 0.5)], [(0.7, 0.05), (0.7, 0.97)]]),
        4,
    ),
}


def thin_four(size, width):
    """A 4 whose stem, as thin as a ruled line, reaches the lower border."""
    image, unit = Image.new("L", (size, size), 255), size / 28
    pen = ImageDraw.Draw(image)
    angle = [(6, 3), (5, 14), (23, 14)]
    pen.line([(x * unit, y * unit) for x, y in angle], INK, width)
    pen.line([(18 * unit, unit), (18 * unit, size)], INK, width)
    return image


def below(image, *corners, ink=120):
    """Lay a polygon over a picture: a line, or a strip of the desk. corners: shares."""
    points = [(x * image.width, y * image.height) for x, y in corners]
    ImageDraw.Draw(image).polygon(points, ink)
    return image


KINDS.update(
    {
        "a 4 as thin as a line": (lambda: thin_four(100, 1), 4),
        "a larger 4 as thin as a line": (lambda: thin_four(200, 2), 4),
        "a line below": (
            lambda: below(alone(STROKES[3]), (0, 0.95), (1, 0.95), (1, 0.957), (0, 0.957)),
            3,
        ),
    }
)


@pytest.mark.parametrize("kind", KINDS)
def test_read_pictures_kinds_of_strangers_reads_the_digit(predictor, tmp_path, kind):
    make, digit = KINDS[kind]
    make().save(tmp_path / "picture.png")
    (reading,) = read_pictures(predictor, [str(tmp_path / "picture.png")])
    assert (reading.digit, reading.error) == (digit, None)


@pytest.mark.parametrize("ink", [215, 232])
def test_read_pictures_many_gives_a_faint_digit_its_box(predictor, tmp_path, ink):
    """A digit in pencil between two in marker."""
    in_a_row((3, INK), (5, ink), (8, INK)).save(tmp_path / "row.png")
    (reading,) = read_pictures(predictor, [str(tmp_path / "row.png")], many=True)
    assert reading.text == "358" and all(digit.box for digit in reading.digits)


def test_read_pictures_many_keeps_a_comma_in_its_row(predictor, tmp_path):
    image = in_a_row((1, INK), (2, INK))
    for number, digit in enumerate((3, 4, 5)):
        draw(image, STROKES[digit], 420 + 150 * number, 120, 160, 14)
    draw(image, [[(0.5, 0), (0.3, 1)]], 370, 262, 60, 14)
    image.save(tmp_path / "number.png")
    (reading,) = read_pictures(predictor, [str(tmp_path / "number.png")], many=True)
    assert reading.text == "12?345" and "comma" in reading.digits[2].error


def test_read_pictures_refuses_two_digits_that_touch(predictor, tmp_path):
    image = Image.new("L", (500, 400), 255)
    for digit, left in ((4, 90), (6, 195)):
        draw(image, STROKES[digit], left, 100, 200, 16)
    image.save(tmp_path / "touching.png")
    (reading,) = read_pictures(predictor, [str(tmp_path / "touching.png")])
    assert reading.digit is None and "wider than high" in reading.error


def test_read_pictures_many_finds_no_digit_in_noise(predictor, tmp_path):
    noise = np.random.RandomState(0).randint(0, 256, (30, 300), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    (reading,) = read_pictures(predictor, [str(tmp_path / "noise.png")], many=True)
    assert len(reading.digits) > 100 and reading.text.count("?") > 0.9 * len(reading.text)


STRIPS = {
    "below": [(0, 0.96), (1, 0.96), (1, 1), (0, 1)],
    "on the left": [(0, 0), (0.006, 0), (0.006, 1), (0, 1)],
}


@pytest.mark.parametrize("strip", STRIPS)
@pytest.mark.parametrize("ink", [120, 215])
def test_read_pictures_many_leaves_out_a_strip_at_the_border(predictor, tmp_path, strip, ink):
    """Lines of the strokes' width and parallel ones are not taken for ruled lines, either."""
    page = Image.new("L", (900, 160), 250)
    for left in range(60, 900, 85):
        ImageDraw.Draw(page).line([(left, 30), (left - 5, 125)], 40, 2)
    below(page, *STRIPS[strip], ink=ink).save(tmp_path / "page.png")
    (reading,) = read_pictures(predictor, [str(tmp_path / "page.png")], many=True)
    assert reading.text == "1" * 10


@pytest.mark.parametrize("many", [False, True])
def test_read_pictures_noise_is_refused_by_its_number_of_strokes(predictor, tmp_path, many):
    noise = np.random.RandomState(0).randint(0, 256, (300, 300), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    (reading,) = read_pictures(predictor, [str(tmp_path / "noise.png")], many=many)
    assert "strokes, as in noise or a pattern" in reading.error and reading.kind == "strokes"


def test_read_pictures_says_what_decided(predictor, tmp_path):
    """The probability is that of the digit that is given, of two the smaller one."""
    for name, picture in (("7", alone(STROKES[7])), ("1", flagged(0.7))):
        picture.save(tmp_path / f"{name}.png")
    seven, one = read_pictures(predictor, [str(tmp_path / f"{n}.png") for n in "71"])
    assert (seven.digit, seven.as_dict()["decided_by"]) == (7, "net")
    assert (one.digit, one.as_dict()["decided_by"]) == (1, "rule for 7 and 1")
    assert one.probability < 0.5 and "unsure" in one.note


def test_read_pictures_takes_no_cut_digit_for_a_sheet(predictor, tmp_path):
    cut_to_ink(STROKES[3], 18).save(tmp_path / "3.png")
    (reading,) = read_pictures(predictor, [str(tmp_path / "3.png")])
    assert (reading.digit, reading.note) == (3, "")


def test_read_pictures_gives_advice_on_a_refused_picture(predictor, tmp_path):
    in_a_row((3, INK), (5, INK)).save(tmp_path / "two.png")
    sheet = alone([[(0, 0), (1, 0), (1, 1), (0, 1), (0, 0), (1, 1)], [(1, 0), (0, 1)]])
    sheet.crop((70, 40, 330, 360)).save(tmp_path / "sheet.png")
    two, refused = read_pictures(predictor, [str(tmp_path / n) for n in ("two.png", "sheet.png")])
    assert two.error.startswith("2 shapes; expected one digit") and "many=True" in two.error
    assert "photograph" in refused.error and refused.box


@pytest.mark.parametrize(
    ("beginning", "kind"),
    [(b"%PDF-1.7", "PDF"), (b"\0\0\0\x1cftypavif", "AVIF"), (b"\0\0\0\x18ftypheix", "HEIC")],
)
def test_read_digit_of_other_formats_advises_jpeg(beginning, kind):
    with pytest.raises(DataError, match=f"a {kind} file; save it as JPEG"):
        read_digits(beginning + bytes(99))

"""Digits on paper of many kinds, several on a picture, and what is no digit."""

import contextlib
import fcntl
import itertools
import json
import os
import struct
import sys
import termios

import cv2
import forked
import numpy as np
import pytest
from conftest import ROOT
from detector import non_digits, paper, photographs
from detector.letters import LOOK_ALIKES, TRAINING_FONTS, UNSEEN_FONTS, font_of
from detector.shapes import TRAINING_SHAPES, UNSEEN_SHAPES, UNUSUAL_DIGITS, unusual_digit
from drawn_digits import as_bytes, draw_digit, pixels_of
from PIL import Image

from paddle_mnist import MNIST, DigitPredictor
from paddle_mnist.errors import CheckpointError, ConfigError, DataError
from paddle_mnist.mnist import detector
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.detector import THRESHOLD, read_detector
from paddle_mnist.mnist.export import export_model
from paddle_mnist.mnist.infer import digit_scores, pretrained_predictor, read_pictures
from paddle_mnist.mnist.pictures import read_digit, read_digits
from paddle_mnist.mnist.shapes import Box, Shape, in_reading_order


@pytest.fixture(scope="module")
def predictor():
    return pretrained_predictor()


@pytest.fixture(scope="module")
def digits():
    """uint8 [10, 28, 28], the digits 0 to 9 in MNIST's format."""
    look = {"size": (300, 300), "noise": 0, "shade": 0, "blur": 0, "turn": 0}
    return np.stack([read_digit(as_bytes(draw_digit(n, 3, **look))).pixels for n in range(10)])


def read(predictor, tmp_path, pictures, **options):
    """Write pictures into files, and return what is read in them."""
    files = []
    for number, picture in enumerate(pictures):
        files.append(str(tmp_path / f"{number}.png"))
        picture.save(files[-1])
    return list(read_pictures(predictor, files, **options))


@pytest.mark.parametrize("kind", paper.KINDS)
def test_digits_on_every_kind_of_paper_are_read(predictor, digits, tmp_path, kind):
    pictures = [
        paper.KINDS[kind](image, np.random.RandomState(number))
        for number, image in enumerate(digits)
    ]
    readings = read(predictor, tmp_path, pictures, check=False)
    assert sum(one.digit == number for number, one in enumerate(readings)) >= 9


@pytest.mark.release
@pytest.mark.parametrize("kind", paper.KINDS)
def test_mnists_digits_on_every_kind_of_paper_are_read(predictor, real_data, tmp_path, kind):
    """The tables' figures, from fewer pictures."""
    split = open_data(str(real_data))["eval"]
    chosen = range(5, 10_000, 400)
    pictures = [
        paper.KINDS[kind](np.asarray(split.images[index]), np.random.RandomState(index))
        for index in chosen
    ]
    readings = read(predictor, tmp_path, pictures)
    right = [one.digit == split.labels[index] for index, one in zip(chosen, readings)]
    assert np.mean(right) >= 0.9


def touching(side):
    """A 7 whose strokes reach one side of the picture."""
    drawn = draw_digit(7, 5, size=(200, 200), noise=0, shade=0)
    box = read_digits(as_bytes(drawn))[0].box
    crops = {
        "left": (box.left + 2, 0, 200, 200),
        "top": (0, box.top + 2, 200, 200),
        "right": (0, 0, box.right - 2, 200),
        "bottom": (0, 0, 200, box.bottom - 2),
    }
    return drawn.crop(crops[side])


@pytest.mark.parametrize("side", ["left", "top", "right", "bottom"])
def test_digit_that_touches_the_border_is_not_blank(predictor, tmp_path, side):
    (reading,) = read(predictor, tmp_path, [touching(side)])
    assert reading.digit == 7


@pytest.mark.parametrize("brightness", [0, 0.5, 1])
def test_only_what_is_blank_is_called_so(brightness):
    noise = np.random.RandomState(0).normal(0, 0.01, (200, 300))
    with pytest.raises(DataError, match=r"^blank; expected a digit"):
        pixels_of(np.clip(brightness + noise, 0, 1))


# ------------------------------------------------------------------ several digits


PAGES = {"a postcode": [5], "a column": [1, 1, 1], "two rows": [3, 4], "a page": [6] * 6}


@pytest.mark.parametrize("name", PAGES)
def test_digits_of_a_page_are_read_in_reading_order(predictor, digits, tmp_path, name):
    rows = PAGES[name]
    random = np.random.RandomState(sum(rows))
    numbers = random.randint(0, 10, sum(rows))
    page = paper.page(digits[numbers], rows, random)
    (alone,) = read(predictor, tmp_path, [page])
    assert alone.digit is None and alone.probability is None
    assert alone.error == f"{len(numbers)} shapes; expected one digit"
    (reading,) = read(predictor, tmp_path, [page], many=True)
    assert len(reading.digits) == len(numbers)
    assert sum(a == str(b) for a, b in zip(reading.text, numbers)) >= 0.9 * len(numbers)
    for one in reading.digits:
        assert 0 <= one.box.left < one.box.right <= page.width
        assert 0 <= one.box.top < one.box.bottom <= page.height


def test_one_digit_is_read_alike_with_and_without_many(predictor, tmp_path):
    picture = draw_digit(4, 2)
    (alone,), (many,) = (read(predictor, tmp_path, [picture], many=many) for many in (False, True))
    assert (alone.digit, alone.probability, alone.score) == (
        many.digit,
        many.probability,
        many.score,
    )
    assert many.text == "4" and many.digits[0].box == alone.box


def test_sheet_on_a_desk_is_found_and_read(predictor, digits, tmp_path):
    pictures = [
        photographs.on_a_desk(image, np.random.RandomState(100 + number), tilt=7 * (number % 2))
        for number, image in enumerate(digits)
    ]
    readings = read(predictor, tmp_path, pictures)
    assert sum(one.digit == number for number, one in enumerate(readings)) >= 9
    for one, picture in zip(readings, pictures):
        assert 0 < one.box.left < one.box.right < picture.width
        assert one.box.height < 0.6 * picture.height


def test_box_on_a_sheet_in_perspective_is_where_the_digit_is(predictor, tmp_path):
    """The desk is dark, and so is the digit: the box is around the latter."""
    page = np.full((300, 400), 0.15)
    corners = np.array([(60, 40), (350, 60), (330, 270), (80, 250)], np.int32)
    cv2.fillConvexPoly(page, corners, 0.9)
    cv2.line(page, (200, 100), (210, 200), 0.1, 12)
    picture = Image.fromarray(np.uint8(page * 255))
    (one,) = read(predictor, tmp_path, [picture])
    assert one.digit == 1
    box = one.box
    expected = (194, 94, 217, 207)
    assert np.abs(np.subtract((box.left, box.top, box.right, box.bottom), expected)).max() <= 6


@pytest.mark.release
def test_close_and_ragged_rows_are_read_and_no_digit_is_passed_over(predictor, real_data, tmp_path):
    counts = photographs.count_pages(open_data(str(real_data))["eval"], 40, tmp_path)
    assert counts["right"] >= 0.95 * counts["digits"]
    assert counts["missing"] == 0


def test_raised_digit_and_a_faint_one_keep_their_places(predictor, digits, tmp_path):
    """Rows are close; the second digit of each is raised, and the third is faint."""
    pen = np.full((300, 330), 255, np.uint8)
    numbers = [[2, 7, 1], [3, 4, 7], [6, 2, 3]]
    for row, column in itertools.product(range(3), range(3)):
        image = cv2.resize(digits[numbers[row][column]], (84, 84)) * (0.4 if column == 2 else 1)
        top, left = 20 + 75 * row - 20 * (column == 1) + 20, 20 + 90 * column
        part = pen[top : top + 84, left : left + 84]
        np.minimum(part, 255 - np.uint8(image), out=part)
    (one,) = read(predictor, tmp_path, [Image.fromarray(pen)], many=True)
    assert one.text == "271347623"


def test_what_covers_much_of_a_picture_gets_a_note(predictor, tmp_path):
    picture = Image.new("L", (300, 300), 255)
    picture.paste(0, (40, 20, 260, 280))
    (one,) = read(predictor, tmp_path, [picture], check=False)
    assert one.digit is not None and "perhaps a whole sheet" in one.note
    (one,) = read(predictor, tmp_path, [draw_digit(4, 2)])
    assert one.digit == 4 and not one.note


def test_without_opencv_one_line_says_what_to_install(tmp_path):
    program = "import sys; sys.modules['cv2'] = None; sys.argv[0] = 'infer.py'; import runpy; "
    program += f"runpy.run_path({str(ROOT / 'tools/infer.py')!r}, run_name='__main__')"
    done = forked.run([sys.executable, "-c", program, "--example"])
    (line,) = done.stderr.splitlines()
    assert done.returncode == 5 and line.startswith("error: pictures are read with OpenCV")
    assert line.endswith("pip install 'paddle_mnist[pictures]'")


@pytest.mark.parametrize("orientation", [1, 6])
def test_box_is_where_the_digit_is_in_the_upright_picture(orientation):
    """In pixels of the file, however large, and turned as the camera noted."""
    page = Image.new("L", (1600, 1200), 230)
    digit = draw_digit(3, 1, size=(400, 400), ink=(0, 0, 0), paper=(230, 230, 230), shade=0)
    page.paste(digit.convert("L"), (1100, 700))
    exif = Image.Exif()
    exif[0x0112] = orientation
    lying = page.rotate(90, expand=True) if orientation == 6 else page
    (found,) = read_digits(as_bytes(lying, "JPEG", exif=exif))
    assert 1100 <= found.box.left < found.box.right <= 1500
    assert 700 <= found.box.top < found.box.bottom <= 1100
    assert found.box.height > 150


def test_rows_may_rise_and_digits_be_of_different_heights():
    """Boxes of two rows that rise towards the right, in any order."""
    expected = [
        Box(20 + 60 * column, 20 + 90 * row - 12 * column, 55 + 60 * column, 70 + 90 * row)
        for row in range(2)
        for column in range(4)
    ]
    for seed in range(20):
        shuffled = np.random.RandomState(seed).permutation(len(expected))
        shapes = [Shape(expected[index], np.ones((1, 1), bool)) for index in shuffled]
        assert [shape.box for shape in in_reading_order(shapes)] == expected


def test_command_reads_many_and_shows_their_boxes(tool, digits, tmp_path):
    paper.page(digits[[2, 7, 1]], [3], np.random.RandomState(1)).save(tmp_path / "271.png")
    draw_digit(4, 2).save(tmp_path / "4.png")
    Image.new("L", (90, 90), 255).save(tmp_path / "blank.png")
    files = ("271.png", "4.png", "blank.png")
    done = tool("infer", *files, "--many", "--json", "--show", "seen.png", expect=8)
    several, one, blank = json.loads(done.stdout)
    assert several["text"] == "271" and several["digit"] is None and several["error"] is None
    assert [digit["digit"] for digit in several["digits"]] == [2, 7, 1]
    left = [digit["box"][0] for digit in several["digits"]]
    assert left == sorted(left) and set(several["digits"][0]) >= {"probability", "score", "box"}
    assert one["digit"] == 4 and one["text"] == "4" and len(one["digits"]) == 1
    assert "blank" in blank["error"] and "digits" not in blank
    seen = np.asarray(Image.open(tmp_path / "seen.png"))
    assert (seen == (0, 150, 0)).all(axis=2).sum() > 500  # boxes
    lines = tool("infer", *files, "--many", expect=8).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["271", "4", "-"]
    lines = tool("infer", *files, "--many", "--csv", expect=8).stdout.splitlines()
    assert lines[0] == "file,digit,probability,error,score,left,top,width,height"
    assert [line.split(",")[:2] for line in lines[1:5]] == [
        ["271.png", "2"],
        ["271.png", "7"],
        ["271.png", "1"],
        ["4.png", "4"],
    ]
    assert all(line.count(",") == 8 for line in lines[:5])
    refused = json.loads(tool("infer", "271.png", "--json", expect=8).stdout)[0]
    assert refused["error"] == "3 shapes; expected one digit" and refused["digit"] is None


# ------------------------------------------------------------------ no digit

NO_DIGITS = {
    "hash": ("shapes", 3),
    "star of eight": ("shapes", 2),
    "flower": ("shapes", 0),
    "spiral": ("shapes", 1),
    "W": ("letters", 0),
    "K": ("letters", 2),
    "m": ("letters", 2),
    "R": ("letters", 0),
    "\N{GREEK SMALL LETTER XI}": ("Greek letters", 0),
    "\N{GREEK CAPITAL LETTER OMEGA}": ("Greek letters", 2),
    "umbrella": ("doodles", 0),
    "ladder": ("doodles", 1),
}


@pytest.mark.parametrize("name", NO_DIGITS)
def test_what_is_no_digit_gets_a_score_and_no_label(predictor, tmp_path, name):
    kind, seed = NO_DIGITS[name]
    picture = non_digits.UNSEEN[kind][name](np.random.RandomState(seed))
    (reading,) = read(predictor, tmp_path, [picture])
    assert reading.digit is None and reading.probability is None
    assert reading.score < THRESHOLD
    expected = f"probably not one digit (score {reading.score:.2f}; a digit has 0.5 or more)"
    assert reading.error == expected
    (unchecked,) = read(predictor, tmp_path, [picture], check=False)
    assert unchecked.digit is not None and unchecked.score is None


@pytest.mark.release
@pytest.mark.parametrize("kind", non_digits.UNSEEN)
def test_most_of_what_is_no_digit_is_refused(predictor, tmp_path, kind):
    """The tables' figures, from fewer pictures."""
    draws = list(non_digits.UNSEEN[kind].values())
    pictures = [draws[number % len(draws)](np.random.RandomState(number)) for number in range(30)]
    readings = read(predictor, tmp_path, pictures)
    assert np.mean([one.digit is None for one in readings]) >= 0.7


def test_training_and_unseen_pictures_of_no_digits_have_no_drawing_in_common():
    assert not {*TRAINING_FONTS} & {*UNSEEN_FONTS}
    assert not {*TRAINING_SHAPES} & {*UNSEEN_SHAPES}
    for kind in {*non_digits.TRAINING} - {"letters", "Greek letters"}:  # of other fonts
        assert not {*non_digits.TRAINING[kind]} & {*non_digits.UNSEEN.get(kind, ())}
    assert not {*non_digits.DRAWN} & {*UNSEEN_SHAPES}


def test_letters_that_are_written_like_digits_are_no_examples_of_what_is_none():
    drawn = {*non_digits.UNSEEN["letters"], *non_digits.UNSEEN["Greek letters"]}
    assert len(drawn) == 52 - 4 + 49 - 4 and not drawn & LOOK_ALIKES


def test_missing_font_is_reported_with_the_packages_to_install():
    with pytest.raises(
        ConfigError, match=r"^no font Gone\.otf; .*: apt-get install .*fonts-gfs-didot"
    ):
        font_of("Gone.otf", 20)


@pytest.mark.release
@pytest.mark.parametrize("form", UNUSUAL_DIGITS)
def test_digits_of_unusual_forms_are_read(predictor, tmp_path, form):
    pictures = [
        unusual_digit(UNUSUAL_DIGITS[form], np.random.RandomState(800_000 + number))
        for number in range(30)
    ]
    readings = read(predictor, tmp_path, pictures)
    assert sum(one.score >= THRESHOLD for one in readings) >= 28
    expected = 1 if form == "flagged ones" else 0
    assert sum(one.digit == expected for one in readings) >= 28


def test_ones_with_a_long_upstroke_are_no_sevens(predictor, tmp_path):
    """The recipe's weights read each of these as a 7; the package's learned such ones."""
    form, numbers = UNUSUAL_DIGITS["flagged ones"], (28, 36, 74, 92, 95, 96)
    pictures = [unusual_digit(form, np.random.RandomState(800_000 + one)) for one in numbers]
    assert [one.digit for one in read(predictor, tmp_path, pictures)] == [1] * len(numbers)


@pytest.mark.release
def test_drawn_digits_score_as_digits(predictor, tmp_path):
    readings = read(predictor, tmp_path, [draw_digit(n % 10, n) for n in range(30)])
    assert sum(one.score is not None and one.score >= THRESHOLD for one in readings) >= 28


@pytest.mark.slow
@pytest.mark.parametrize(
    "as_files",
    [pytest.param(False, marks=pytest.mark.release), True],
    ids=["as they are", "read from files"],
)
def test_at_most_half_a_percent_of_mnists_images_is_taken_for_none(real_data, as_files):
    """Those that are read from files have strokes of another width."""
    images = np.asarray(open_data(str(real_data))["eval"].images)
    if as_files:
        files = [as_bytes(Image.fromarray(image)) for image in images[::10]]
        images = np.stack([read_digit(file).pixels for file in files])
    assert (digit_scores(images) < THRESHOLD).mean() <= 0.005


def test_an_image_is_scored_in_five_places():
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 0, 5] = image[0, 9, 27] = 9  # also at the border, where it leaves the image
    places = [{(int(y), int(x)) for y, x in np.argwhere(each[0])} for each in detector.moved(image)]
    assert places[0] == {(0, 5), (9, 27)}
    assert places[1:] == [{(1, 5), (10, 27)}, {(8, 27)}, {(0, 6)}, {(0, 4), (9, 26)}]


def test_command_refuses_what_is_no_digit_unless_told_otherwise(tool, tmp_path):
    non_digits.UNSEEN["shapes"]["hash"](np.random.RandomState(0)).save(tmp_path / "hash.png")
    done = tool("infer", "hash.png", expect=8)
    assert done.stdout.splitlines()[1].startswith("    -            -  ")
    assert "hash.png: probably not one digit (score 0." in done.stdout
    row = json.loads(tool("infer", "hash.png", "--unchecked", "--json").stdout)[0]
    assert row["digit"] is not None and row["score"] is None and row["error"] is None


def test_weights_that_were_not_trained_on_digits_have_no_score(tool, tmp_path):
    """The detector cannot say whether a picture shows a shirt."""
    about = {"dataset": "fashion"}
    export_model(MNIST(pretrained=True), tmp_path / "fashion", ["probabilities"], about=about)
    non_digits.UNSEEN["shapes"]["hash"](np.random.RandomState(0)).save(tmp_path / "hash.png")
    (reading,) = read_pictures(DigitPredictor(tmp_path / "fashion"), [str(tmp_path / "hash.png")])
    assert reading.digit is not None and reading.score is None
    done = tool("infer", "hash.png", "--model", "fashion", "--json")
    assert "trained on fashion: pictures of no class are not rejected" in done.stderr


def test_damaged_detector_is_refused(tmp_path):
    whole = detector.FILE.read_bytes()
    for content in (b"", b"PK", whole[:1000], whole[: len(whole) // 2]):
        (tmp_path / "detector.npz").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"detector\.npz: damaged"):
            read_detector(tmp_path / "detector.npz")


def test_detector_of_other_weights_is_refused(tmp_path):
    with np.load(detector.FILE) as file:
        about = {**json.loads(str(file["about"])), "weights": "0" * 64}
        np.savez(tmp_path / "detector.npz", **{**file, "about": np.array(json.dumps(about))})
    with pytest.raises(CheckpointError, match="made for the weights 000000000000"):
        read_detector(tmp_path / "detector.npz")


def test_detector_is_small_and_says_how_it_was_made():
    assert detector.FILE.stat().st_size < 200_000
    with np.load(detector.FILE) as file:
        about = json.loads(str(file["about"]))
    assert about["command"] == "python tools/reproduce.py --only detector --data MNIST"


# ------------------------------------------------------------------ a terminal


def test_progress_is_shown_on_a_terminal_alone(tmp_path):
    draw_digit(3, 2).save(tmp_path / "3.png")
    command = [sys.executable, str(ROOT / "tools/infer.py"), str(tmp_path), "--json"]
    quiet = forked.run(command)
    assert quiet.returncode == 0 and "picture" not in quiet.stderr
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    shown = forked.run(command, stderr=theirs)
    os.close(theirs)
    printed = b""
    with contextlib.suppress(OSError):  # when all is read
        while part := os.read(ours, 10_000):
            printed += part
    os.close(ours)
    assert shown.returncode == 0 and b"1/1" in printed
    assert json.loads(shown.stdout)[0]["digit"] == 3

"""Pictures of digits: what people send is read, what is no digit is refused in one line."""

import json
import os
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from drawn_digits import as_bytes, draw_digit, pixels_of
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.detector import THRESHOLD
from paddle_mnist.mnist.infer import pictures_in, pretrained_predictor, read_pictures
from paddle_mnist.mnist.pictures import open_picture, read_digit, read_digits
from paddle_mnist.mnist.sheets import CAPTION

DRAWN = ROOT / "tests/pictures"


@pytest.fixture(scope="module")
def predictor():
    return pretrained_predictor()


def read(predictor, pictures):
    """Digits, None where two shapes were seen."""
    read_digits = [read_digit(picture) for picture in pictures]
    answers = predictor.run(np.stack([digit.pixels for digit in read_digits]))["probabilities"]
    return [
        int(a.argmax()) if digit.shapes == 1 else None for digit, a in zip(read_digits, answers)
    ]


@pytest.mark.slow
def test_drawn_digits_are_read_whatever_they_look_like(predictor):
    """200: place, thickness, colours, size, noise, light from a side, blur, turn."""
    digits = [digit for _ in range(20) for digit in range(10)]
    drawn = [as_bytes(draw_digit(digit, number // 10)) for number, digit in enumerate(digits)]
    answers = read(predictor, drawn)
    assert np.mean([a == b for a, b in zip(answers, digits)]) >= 0.95


def test_photographs_like_pictures_are_read(predictor):
    files = sorted(DRAWN.glob("*.jpg"))
    assert len(files) == 12
    assert read(predictor, files) == [int(path.name[0]) for path in files]


@pytest.mark.parametrize("turned_over", [False, True], ids=["light on dark", "dark on light"])
def test_mnists_own_images_pass_through(predictor, real_data, turned_over):
    """They are made as these functions make them: little changes."""
    split = open_data(str(real_data))["valid"]
    images, labels = np.asarray(split.images[:150]), split.labels[:150]
    plain = predictor.run(images)["probabilities"].argmax(axis=1)
    brightness = images / 255
    brightness = 1 - 0.8 * brightness if turned_over else brightness
    pixels = np.stack([pixels_of(picture) for picture in brightness])
    answers = predictor.run(pixels)["probabilities"].argmax(axis=1)
    assert (answers == labels).mean() > (plain == labels).mean() - 0.015


def in_mnist_format():
    """A ring of many greys that fits 20 x 20 pixels and has its centre of mass in the middle."""
    pixels = np.zeros((28, 28), np.uint8)
    quarter = np.random.RandomState(0).randint(150, 256, (10, 5))
    half = np.concatenate([quarter, quarter[::-1]])
    pixels[4:24, 9:19] = np.concatenate([half, half[:, ::-1]], axis=1)
    pixels[8:20, 12:16] = 0
    return pixels


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("turned_over", [False, True], ids=["light on dark", "dark on light"])
def test_image_of_mnists_format_is_taken_as_it_is(form, mode, turned_over):
    pixels = in_mnist_format()
    image = Image.fromarray(255 - pixels if turned_over else pixels).convert(mode)
    digit = read_digit(as_bytes(image, form))
    assert digit.shapes == 1 and np.array_equal(digit.pixels, pixels)
    box = digit.box
    assert (box.left, box.top, box.right, box.bottom) == (9, 4, 19, 24)


def test_image_almost_of_mnists_format_is_brought_into_it():
    pixels = in_mnist_format()
    off_centre, small = np.roll(pixels, 3, axis=1), pixels.copy()
    small[[4, 5, 22, 23]] = 0  # 16 pixels high
    for other in (off_centre, small):
        digit = read_digit(as_bytes(Image.fromarray(other)))
        assert not np.array_equal(digit.pixels, other)
        rows, columns = np.nonzero(digit.pixels)
        assert np.ptp(rows) + 1 == 20
        assert abs(np.average(columns, weights=digit.pixels[rows, columns]) - 13.5) < 0.6
    two = pixels.copy()
    two[:, 11:17] = 0
    assert read_digit(as_bytes(Image.fromarray(two))).shapes == 2


def test_mnists_own_files_are_taken_as_they_are(real_data):
    images = np.asarray(open_data(str(real_data))["valid"].images[:500])
    read = [read_digit(as_bytes(Image.fromarray(image))) for image in images]
    same = [np.array_equal(digit.pixels, image) for digit, image in zip(read, images)]
    assert np.mean(same) > 0.98


def seven(**options):
    return draw_digit(7, 5, size=(160, 200), noise=0, shade=0, **options)


def transparent(ink):
    mask = np.asarray(seven(ink=(0, 0, 0), paper=(255, 255, 255)).convert("L"))
    image = Image.new("RGBA", (160, 200), (*ink, 0))
    image.putalpha(Image.fromarray(255 - mask))
    return as_bytes(image)


def turned(orientation):
    """As a telephone writes it: lying on its side, and a note of how to turn it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    degrees = {3: 180, 6: 90, 8: 270}[orientation]
    return as_bytes(seven().rotate(degrees, expand=True), "JPEG", exif=exif)


def sixteen_bits():
    grey = np.asarray(seven().convert("L"), np.uint16) * 200 + 3000
    return as_bytes(Image.fromarray(grey))


def deep(top, dtype, form="TIFF"):
    grey = np.asarray(seven().convert("L"), np.float64) / 255
    return as_bytes(Image.fromarray((grey * top).astype(dtype)), form)


def sheet_on_nothing():
    """A screenshot's rounded corners, a cut-out: opaque paper with a transparent margin."""
    sheet = seven(ink=(0, 0, 0), paper=(255, 255, 255)).convert("RGBA")
    page = Image.new("RGBA", (220, 260), (0, 0, 0, 0))
    page.paste(sheet, (30, 30))
    return as_bytes(page)


KINDS = {
    "two in one jpeg": lambda: as_bytes(
        seven(), "MPO", save_all=True, append_images=[seven().resize((40, 50))]
    ),
    "12 of 16 bits": lambda: deep(4095, np.uint16, "PNG"),
    "8 of 16 bits": lambda: deep(255, np.uint16, "PNG"),
    "floats": lambda: deep(1, np.float32),
    "a sheet with a transparent margin": sheet_on_nothing,
    "opaque, with an alpha channel": lambda: as_bytes(seven().convert("RGBA")),
    "jpeg": lambda: as_bytes(seven(), "JPEG"),
    "gif": lambda: as_bytes(seven(), "GIF"),
    "bmp": lambda: as_bytes(seven(), "BMP"),
    "tiff": lambda: as_bytes(seven(), "TIFF"),
    "webp": lambda: as_bytes(seven(), "WEBP"),
    "palette": lambda: as_bytes(seven().convert("P")),
    "one bit": lambda: as_bytes(seven(ink=(0, 0, 0), paper=(255, 255, 255)).convert("1")),
    "16 bits": sixteen_bits,
    "cmyk": lambda: as_bytes(seven().convert("CMYK"), "JPEG"),
    "black on transparent": lambda: transparent((0, 0, 0)),
    "white on transparent": lambda: transparent((255, 255, 255)),
    "red on green of one brightness": lambda: as_bytes(
        seven(ink=(230, 60, 40), paper=(40, 130, 40))
    ),
    "exif 3": lambda: turned(3),
    "exif 6": lambda: turned(6),
    "exif 8": lambda: turned(8),
    "20 x 20": lambda: as_bytes(seven().resize((20, 20))),
    "8,000 x 6,000": lambda: as_bytes(seven().resize((8000, 6000)).convert("L"), "JPEG"),
    "an edge of shadow": lambda: as_bytes(seven(paper=(220, 220, 220), ink=(40, 40, 60), blur=1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_picture(predictor, kind):
    assert read(predictor, [KINDS[kind]()]) == [7]


def huge_header():
    """A PNG that says it is 50,000 x 50,000."""

    def chunk(kind, data):
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data)


def animation():
    frames = [seven().convert("P"), seven(turn=9).convert("P")]
    return as_bytes(frames[0], "GIF", save_all=True, append_images=frames[1:])


def gif_with_a_short_extension():
    """After the picture, with 1 byte of the 4 of a graphic control extension."""
    return as_bytes(Image.new("L", (16, 16)), "GIF")[:-1] + b"!\xf9\x01\0\0;"


BAD = {
    "heic": (lambda: b"\0\0\0\x18ftypheic" + bytes(99), "in HEIC format; save it as JPEG or PNG"),
    "avif": (lambda: b"\0\0\0\x18ftypavif" + bytes(99), "in AVIF format; save it as JPEG or PNG"),
    "short extension": (gif_with_a_short_extension, "damaged or cut off"),
    "text": (lambda: b"seven", "not a picture"),
    "nothing": (lambda: b"", "0 bytes"),
    "cut off": (lambda: as_bytes(seven(), "JPEG")[:900], "damaged or cut off"),
    "cut off png": (lambda: as_bytes(seven())[:900], "damaged or cut off"),
    "bomb": (huge_header, "50,000 x 50,000 pixels|more pixels than"),
    "blank": (lambda: as_bytes(Image.new("RGB", (90, 90), "white")), "blank"),
    "slender": (lambda: as_bytes(Image.new("L", (4000, 12))), "4,000 x 12 pixels"),
    "not finite": (
        lambda: as_bytes(Image.fromarray(np.full((50, 50), np.nan, np.float32)), "TIFF"),
        "not finite",
    ),
    "nothing opaque": (lambda: as_bytes(Image.new("RGBA", (50, 50))), "transparent"),
    "too many bytes": (lambda: bytes((64 << 20) + 1), "more than 67,108,864 bytes"),
    "tiny": (lambda: as_bytes(Image.new("L", (3, 3))), "3 x 3 pixels"),
    "animation": (animation, "2 pictures in one file"),
    "svg": (lambda: b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
    "pickle": (lambda: b"\x80\x04cos\nsystem\n.", "not a picture"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_pictures_are_refused_in_one_line(kind):
    make, message = BAD[kind]
    with pytest.raises(DataError, match=message) as refused:
        read_digit(make())
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_damage_anywhere_is_a_picture_or_a_data_error():
    """Nothing else: 300 flips, cuts and insertions in files of three forms."""
    random = np.random.RandomState(1)
    for form in ("PNG", "JPEG", "GIF"):
        whole = as_bytes(seven(), form)
        for _ in range(100):
            data = bytearray(whole)
            for _ in range(random.randint(1, 4)):
                data[random.randint(len(data))] = random.randint(256)
            data = bytes(data[: random.randint(1, len(data) + 1)] if random.rand() < 0.3 else data)
            try:
                brightness = open_picture(data).brightness
                assert brightness.min() >= 0 and brightness.max() <= 1
                read_digit(data)
            except DataError as refused:
                assert "\n" not in str(refused)


def bars(*columns, side=28, ink=0, paper=255):
    """Ruler-straight, upright bars, one pixel wide."""
    pixels = np.full((side, side), paper, np.uint8)
    pixels[side // 6 : -side // 6, list(columns)] = ink
    return pixels


STRAIGHT = {
    "one": (bars(13), "1"),
    "large": (bars(130, side=280), "1"),
    "four": (bars(4, 10, 16, 22), "1111"),
    "four of two": (bars(4, 5, 10, 11, 16, 17, 22, 23), "1111"),
    "faint, almost of MNIST's format": (np.pad(np.full((20, 2), 30, np.uint8), ((4,), (13,))), "1"),
}


@pytest.mark.parametrize("name", STRAIGHT)
def test_infer_ruler_straight_bars_reads_ones(tool, tmp_path, name):
    pixels, text = STRAIGHT[name]
    Image.fromarray(pixels).save(tmp_path / "bars.png")
    (row,) = json.loads(tool("infer", "--many", "bars.png", "--json").stdout)
    assert row["text"] == text and row["error"] is None


SIDES = st.sampled_from([1, 2, 7, 8, 9, 12, 20, 28, 31])
CORNERS = st.tuples(*[st.integers(0, 40)] * 2)  # reduced to those of the picture
THIN = st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 40), (40, 1), (2, 40), (40, 2), (40, 40)])
GREYS = st.sampled_from([0, 1, 30, 128, 254, 255])


@settings(max_examples=20, deadline=None)
@given(SIDES, SIDES, GREYS, st.lists(st.tuples(CORNERS, THIN, GREYS), max_size=5))
def test_read_digit_tiny_drawing_raises_no_other_error(height, width, paper, rectangles):
    """Uniform pictures, single pixels, thin lines: division by an extent that may be zero."""
    pixels = np.full((height, width), paper, np.uint8)
    for (top, left), (rows, columns), grey in rectangles:
        top, left = top % height, left % width
        pixels[top : top + rows, left : left + columns] = grey
    for function in (read_digit, read_digits):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # 0 / 0 of NumPy
            try:
                function(as_bytes(Image.fromarray(pixels)))
            except DataError as refused:
                assert "report this" not in str(refused), repr(refused.__cause__)


def test_read_pictures_unexpected_error_logs_it_and_the_batch_goes_on(predictor, tmp_path):
    seven().save(tmp_path / "7.png")
    names = [str(tmp_path / name) for name in ("7.png", "null\0.png", "7.png")]
    for many in (False, True):
        first, failed, last = read_pictures(predictor, names, many)
        assert first.text == last.text == "7"
        assert failed.file == names[1] and "ValueError: embedded null" in failed.error


def test_infer_folder_with_hidden_files_leaves_them_out(tool, tmp_path):
    (tmp_path / "in/.thumbnails").mkdir(parents=True)
    for name in ("7.png", ".thumbnails/7.png"):
        seven().save(tmp_path / "in" / name)
    (tmp_path / "in/._7.png").write_bytes(b"\0\5\x16\7 as macOS writes beside each file")
    (row,) = json.loads(tool("infer", "in", "--json").stdout)
    assert row["file"] == "in/7.png"
    (tmp_path / "in/IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    assert "save it as JPEG" in tool("infer", "in", expect=8).stdout


def two_digits():
    image = Image.new("RGB", (300, 200), "white")
    for at, digit in enumerate((4, 2)):
        drawn = draw_digit(digit, 3, size=(150, 200), ink=(0, 0, 0), paper=(255, 255, 255), shade=0)
        image.paste(drawn, (150 * at, 0))
    return image


def test_the_batch_goes_on_and_the_exit_code_says_that_some_failed(tool, tmp_path):
    (tmp_path / "in/below").mkdir(parents=True)
    seven().save(tmp_path / "in/7.png")
    two_digits().save(tmp_path / "in/42.png")
    (tmp_path / "in/empty.jpg").touch()
    (tmp_path / "in/notes.txt").write_text("no picture, and not asked for")
    (tmp_path / "in/below/0.PNG").write_bytes(as_bytes(draw_digit(0, 1)))
    done = tool("infer", "in", "missing.png", "--json", "--show", "seen.png", expect=8)
    rows = {row["file"]: row for row in json.loads(done.stdout)}
    assert list(rows) == ["in/42.png", "in/7.png", "in/below/0.PNG", "in/empty.jpg", "missing.png"]
    assert [rows[name]["digit"] for name in rows] == [None, 7, 0, None, None]
    assert rows["in/7.png"]["probability"] > 0.5 and rows["in/7.png"]["error"] is None
    assert rows["in/42.png"]["error"] == "2 shapes; expected one digit"
    assert rows["in/7.png"]["score"] >= THRESHOLD and rows["in/42.png"]["score"] is None
    assert "0 bytes" in rows["in/empty.jpg"]["error"]
    assert "No such file" in rows["missing.png"]["error"]
    assert done.stderr.strip().endswith("error: 3 of 5 pictures could not be read; see above")
    assert Image.open(tmp_path / "seen.png").size == (10 * 28 * 4, 28 * 4 + CAPTION)


def test_table_csv_and_patterns(tool, tmp_path):
    for digit in (3, 8):
        draw_digit(digit, 2).save(tmp_path / f"d{digit}.png")
    output = tool("infer", "d*.png").stdout.splitlines()
    assert output[0] == "digit  probability  score  file"
    assert [line.split()[::3] for line in output[1:]] == [["3", "d3.png"], ["8", "d8.png"]]
    output = tool("infer", "d3.png", "--csv").stdout.splitlines()
    assert output[0] == "file,digit,probability,error,score"
    assert output[1].startswith("d3.png,3,0.")
    assert list(pictures_in(["nothing*.png"])) == ["nothing*.png"]


def test_picture_that_comes_with_the_package(tool):
    (row,) = json.loads(tool("infer", "--example", "--json").stdout)
    assert row["digit"] == 7 and row["file"].endswith("example.jpg")
    error = "error: no picture is given; expected files or folders, or --example\n"
    assert tool("infer", expect=2).stderr == error


def test_picture_from_stdin():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/infer.py"), "-", "--json"],
        input=as_bytes(seven()),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["digit"] == 7


def test_model_without_probabilities_is_refused(tool):
    tool("export_model", "--outputs", "logits", "--output", "out")
    output = tool("infer", DRAWN, "--model", "out", expect=2).stderr
    assert "expected probabilities" in output
    assert "an exported model" in tool("infer", DRAWN, "--model", "nowhere", expect=4).stderr


def test_pictures_are_taken_some_at_a_time(predictor, tmp_path):
    """However many there are, the memory is that of a few."""
    path = tmp_path / "7.png"
    seven().save(path)
    taken = []

    def files():
        for _ in range(200):
            taken.append(1)
            yield str(path)

    first = next(iter(read_pictures(predictor, files())))
    assert first.digit == 7 and len(taken) < 100


def test_readings_come_in_the_order_of_the_files(predictor, tmp_path):
    """However many threads read them, and however long each takes."""
    files = []
    for number in range(50):
        side = 90 if number % 3 else 700
        files.append(str(tmp_path / f"{number}.png"))
        if number % 10 == 7:
            Path(files[-1]).write_bytes(b"no picture")
        else:
            draw_digit(number % 10, 5, size=(side, side), noise=0, shade=0).save(files[-1])
    readings = list(read_pictures(predictor, files, check=False))
    assert [reading.file for reading in readings] == files
    failed = [number for number, reading in enumerate(readings) if reading.error]
    assert failed == list(range(7, 50, 10))
    right = [reading.digit == number % 10 for number, reading in enumerate(readings)]
    assert np.mean(right) > 0.8


def test_warnings_of_pillow_stay_quiet_while_many_threads_open_pictures(tmp_path):
    """A warning that one thread ignores is raised by none, and is not ignored for ever."""
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01\x12\0\x03"  # ends too early: a warning
    data = as_bytes(seven(), "JPEG", exif=exif)
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        digits = list(pool.map(read_digit, [data] * 64))
    assert all(digit.shapes == 1 for digit in digits)
    assert warnings.filters == before


def test_names_that_cannot_be_read_get_a_line_and_the_batch_goes_on(tool, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    seven().save(tmp_path / "7.png")
    names = ["x" * 300, "empty", "pipe.png", ".", "7.png"]
    done = tool("infer", *names, "--json", expect=8)
    rows = [(row["digit"], row["error"]) for row in json.loads(done.stdout)]
    assert [digit for digit, _ in rows] == [None, None, None, 7, 7]
    for (_, error), message in zip(rows, ("File name too long", "a folder without", "a pipe")):
        assert message in error


def test_device_is_asked_for_without_a_model_too(tool):
    assert "device is 'foo'" in tool("infer", DRAWN, "--device", "foo", expect=5).stderr

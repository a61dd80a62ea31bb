"""Pictures of digits are read; others are refused in one line."""

import io
import json
import operator
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from drawn_digits import as_bytes, draw_digit
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from paddle_mnist import DigitPredictor
from paddle_mnist.errors import DataError
from paddle_mnist.mnist.images import open_data
from paddle_mnist.mnist.pictures import read_pictures
from paddle_mnist.mnist.pictures.detector import THRESHOLD
from paddle_mnist.mnist.pictures.digits import read_digits
from paddle_mnist.mnist.pictures.open import open_picture, pictures_in
from paddle_mnist.mnist.pictures.show import CAPTION

DRAWN = ROOT / "tests/pictures"


@pytest.fixture(scope="module")
def predictor():
    return DigitPredictor("pretrained")


def test_infer_photographs_reads_each_digit(tool):
    done = tool("infer", DRAWN, "--json")
    rows = {Path(row["file"]).name: str(row["digit"]) for row in json.loads(done.stdout)}
    assert len(rows) == 12 and rows == {name: name[0] for name in rows}


def test_read_digit_files_of_mnist_keeps_every_pixel(real_data):
    images = np.asarray(open_data(str(real_data))["valid"].images[:300])
    pixels = [read_digits(as_bytes(Image.fromarray(image)))[0].pixels for image in images]
    assert np.mean([np.array_equal(*pair) for pair in zip(pixels, images)]) > 0.98


def seven(**options):
    return draw_digit(7, 5, size=(160, 200), noise=0, shade=0, **options)


def lying_on_its_side():
    """Return a picture as a telephone writes it, with a note of how to turn it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return as_bytes(seven().rotate(90, expand=True), "JPEG", exif=exif)


def grey_levels(top, dtype, form):
    grey = np.asarray(seven().convert("L"), np.float64) / 255
    return as_bytes(Image.fromarray((grey * top).astype(dtype)), form)


def sheet_on_nothing():
    """A screenshot's rounded corners, a cut-out: opaque paper with a transparent margin."""
    sheet = seven(ink=(0, 0, 0), paper=(255, 255, 255)).convert("RGBA")
    page = Image.new("RGBA", (220, 260), (0, 0, 0, 0))
    page.paste(sheet, (30, 30))
    return as_bytes(page)


KINDS = {
    "12 of 16 bits": lambda: grey_levels(4095, np.uint16, "PNG"),
    "floats": lambda: grey_levels(1, np.float32, "TIFF"),
    "a sheet with a transparent margin": sheet_on_nothing,
    "webp": lambda: as_bytes(seven(), "WEBP"),
    "cmyk": lambda: as_bytes(seven().convert("CMYK"), "JPEG"),
    "red on green": lambda: as_bytes(seven(ink=(230, 60, 40), paper=(40, 130, 40))),
    "turned by EXIF": lying_on_its_side,
}


def test_read_digit_every_kind_of_file_reads_a_seven(predictor):
    digits = {kind: read_digits(make())[0] for kind, make in KINDS.items()}
    pixels = np.stack([digit.pixels for digit in digits.values()])
    answers = predictor.run(pixels)["probabilities"].argmax(axis=1)
    wrong = [kind for kind, answer in zip(digits, answers) if answer != 7]
    assert not wrong and {digit.shapes for digit in digits.values()} == {1}


def huge_header():
    """A PNG that says it is 50,000 x 50,000."""
    data = bytearray(as_bytes(Image.new("L", (9, 9))))
    data[16:24] = struct.pack(">II", 50_000, 50_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


BAD = {
    "heic": (lambda: b"\0\0\0\x18ftypheic" + bytes(99), "HEIC.* save it as JPEG"),
    "pickle": (lambda: b"\x80\x04cos\nsystem\n.", "not a picture"),
    "cut off": (lambda: as_bytes(seven(), "JPEG")[:900], "damaged or cut off"),
    "bomb": (huge_header, "50,000 x 50,000 pixels|more pixels than"),
    "blank": (lambda: as_bytes(Image.new("RGB", (90, 90), "white")), "blank"),
    "nothing opaque": (lambda: as_bytes(Image.new("RGBA", (50, 50))), "transparent"),
    "too many bytes": (lambda: bytes((64 << 20) + 1), "more than 67,108,864 bytes"),
    "tiny": (lambda: as_bytes(Image.new("L", (3, 3))), "3 x 3 pixels"),
    "svg": (lambda: b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
}


@pytest.mark.parametrize("kind", BAD)
def test_read_digit_bad_picture_raises_one_line(kind):
    make, message = BAD[kind]
    with pytest.raises(DataError, match=message) as refused:
        read_digits(make())
    assert "\n" not in str(refused.value)


@settings(max_examples=40)
@given(
    st.sampled_from(["PNG", "JPEG", "GIF"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    st.floats(0.01, 1),
)
def test_read_digit_damaged_file_reads_or_raises_data_error(form, changes, kept):
    data = bytearray(as_bytes(seven(), form))
    for place, value in changes:
        data[int(place * len(data))] = value
    data = bytes(data[: max(1, int(kept * len(data)))])
    try:
        brightness = open_picture(data).brightness
        assert brightness.min() >= 0 and brightness.max() <= 1
        read_digits(data)
    except DataError as refused:
        assert "\n" not in str(refused)


def test_infer_folder_with_bad_files_reads_the_others_and_exits_with_8(tool, tmp_path):
    (tmp_path / "in/below").mkdir(parents=True)
    (tmp_path / "in/.thumbnails").mkdir()
    for name in ("7.png", ".thumbnails/7.png"):
        seven().save(tmp_path / "in" / name)
    (tmp_path / "in/._7.png").write_bytes(b"\0\5\x16\7 as macOS writes beside each file")
    (tmp_path / "in/IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    (tmp_path / "in/empty.jpg").touch()
    (tmp_path / "in/notes.txt").write_text("no picture, and not asked for")
    (tmp_path / "in/below/0.PNG").write_bytes(as_bytes(draw_digit(0, 1)))
    done = tool("infer", "in", "missing.png", "--json", "--show", "seen.png", expect=8)
    rows = {row["file"].removeprefix("in/"): row for row in json.loads(done.stdout)}
    expected = {
        "7.png": (7, None),
        "IMG_1.HEIC": (None, "save it as JPEG"),
        "below/0.PNG": (0, None),
        "empty.jpg": (None, "0 bytes"),
        "missing.png": (None, "No such file"),
    }
    assert list(rows) == list(expected)
    for name, (digit, error) in expected.items():
        assert rows[name]["digit"] == digit, name
        assert rows[name]["error"] is None if error is None else error in rows[name]["error"]
    assert rows["7.png"]["probability"] > 0.5 and rows["7.png"]["score"] >= THRESHOLD
    assert "3 of 5 pictures" in done.stderr.splitlines()[-1]
    assert Image.open(tmp_path / "seen.png").size == (10 * 28 * 4, 28 * 4 + CAPTION)


def test_infer_patterns_prints_a_table_or_csv(tool, tmp_path):
    for digit in (3, 8):
        draw_digit(digit, 2).save(tmp_path / f"d{digit}.png")
    output = tool("infer", "d*.png").stdout.splitlines()
    assert output[0].split() == ["digit", "probability", "score", "file"]
    assert [line.split()[::3] for line in output[1:]] == [["3", "d3.png"], ["8", "d8.png"]]
    output = tool("infer", "d3.png", "--csv").stdout.splitlines()
    assert output[0] == "file,digit,probability,error,score"
    assert output[1].startswith("d3.png,3,0.")
    assert list(pictures_in(["nothing*.png"])) == ["nothing*.png"]


def test_infer_reads_its_example_and_stdin(tool, monkeypatch):
    (row,) = json.loads(tool("infer", "--example", "--json").stdout)
    assert row["digit"] == 7 and row["file"].endswith("example.jpg")
    assert "--example" in tool("infer", expect=2).stderr
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(as_bytes(seven()))))
    (row,) = json.loads(tool("infer", "-", "--json").stdout)
    assert row["digit"] == 7


def test_read_pictures_unforeseen_error_is_one_line_without_a_traceback(predictor, lines):
    (reading,) = read_pictures(predictor, [7])
    assert reading.error.startswith("cannot be read (TypeError: ") and lines() == []


def test_open_picture_in_threads_warns_of_nothing(recwarn):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "of a maker whose name is cut off"
    damaged = as_bytes(seven(), "JPEG", exif=exif.tobytes()[:-10], dpi=(72, 72))
    large = as_bytes(Image.new("L", (10_000, 10_000)))  # refused; Pillow warns of it first
    with ThreadPoolExecutor(8) as pool:
        opened = [pool.submit(open_picture, picture) for picture in [damaged, large] * 20]
    assert all(isinstance(future.exception(), DataError) for future in opened[1::2])
    assert all(future.result().brightness.min() < 0.5 for future in opened[::2])
    assert not recwarn.list


def test_read_pictures_many_files_takes_few_at_a_time_in_order(predictor, tmp_path):
    """However many threads read them, and however long each takes."""
    seven().save(tmp_path / "small.png")
    seven().resize((500, 500)).save(tmp_path / "large.png")
    (tmp_path / "words.png").write_text("no picture")
    kinds = ["large", "small", "small", "words", "small"] * 22
    files = iter([str(tmp_path / f"{kind}.png") for kind in kinds])
    readings = read_pictures(predictor, files, check=False)
    assert next(iter(readings)).digit == 7 and operator.length_hint(files) > 0
    rest = [(Path(reading.file).stem, reading.digit) for reading in readings]
    assert rest == [(kind, None if kind == "words" else 7) for kind in kinds[1:]]

"""Digits on paper of many kinds, several on a picture, and non-digits."""

import json
import sys

import forked
import numpy as np
import pytest
from detector import non_digits, paper
from drawn_digits import as_bytes, draw_digit
from PIL import Image

from paddle_mnist import MNIST, DigitPredictor
from paddle_mnist.errors import CheckpointError
from paddle_mnist.mnist.export import export_model
from paddle_mnist.mnist.pictures import detector, read_pictures
from paddle_mnist.mnist.pictures.detector import read_detector
from paddle_mnist.mnist.pictures.digits import read_digits
from paddle_mnist.mnist.pictures.open import open_picture
from paddle_mnist.mnist.pictures.sheet import find_sheet


@pytest.fixture(scope="module")
def predictor():
    return DigitPredictor("pretrained")


@pytest.fixture(scope="module")
def digits():
    """uint8 [10, 28, 28], the digits 0 to 9 in MNIST's format."""
    look = {"size": (300, 300), "noise": 0, "shade": 0, "blur": 0, "turn": 0}
    return np.stack([read_digits(as_bytes(draw_digit(n, 3, **look)))[0].pixels for n in range(10)])


def read(predictor, tmp_path, pictures, **options):
    """Write pictures into files, and return what is read in them."""
    files = []
    for number, picture in enumerate(pictures):
        files.append(str(tmp_path / f"{number}.png"))
        picture.save(files[-1])
    return list(read_pictures(predictor, files, **options))


def test_read_pictures_every_kind_of_paper_reads_each_digit(predictor, digits, tmp_path):
    drawn = [(kind, number) for kind in paper.KINDS for number in (2, 3, 5, 8)]
    pictures = [
        paper.KINDS[kind](digits[number], np.random.RandomState(number)) for kind, number in drawn
    ]
    readings = read(predictor, tmp_path, pictures, check=False)
    wrong = {
        (kind, number): reading.error or reading.digit
        for (kind, number), reading in zip(drawn, readings)
        if reading.digit != number
    }
    assert len(readings) == 4 * len(paper.KINDS) and not wrong


def test_read_pictures_sheet_on_a_desk_reads_the_digit(predictor, digits, tmp_path):
    pictures = [
        paper.on_a_desk(image, np.random.RandomState(100 + number), tilt=7 * (number % 2))
        for number, image in enumerate(digits[:4])
    ]
    readings = read(predictor, tmp_path, pictures)
    assert [reading.error or reading.digit for reading in readings] == [0, 1, 2, 3]
    for reading, picture in zip(readings, pictures):
        assert 0 < reading.box.left < reading.box.right < picture.width
        assert reading.box.height < 0.6 * picture.height


def test_find_sheet_takes_no_shadowed_page_for_a_sheet(digits):
    for number in range(0, 40, 2):
        page = paper.shadowed(digits[number % 10], np.random.RandomState(number))
        assert find_sheet(open_picture(as_bytes(page))) is None, number


def test_infer_without_opencv_names_the_extra_to_install():
    program = "import sys; sys.modules['cv2'] = None; from paddle_mnist.commands.infer import main;"
    done = forked.run([sys.executable, "-c", f"{program} sys.exit(main(['--example']))"])
    assert done.returncode == 5 and "pip install 'paddle_mnist[pictures]'" in done.stderr


def test_infer_many_reads_each_digit_and_shows_its_box(tool, digits, tmp_path):
    page, _ = paper.page(digits[[4, 0, 7, 2, 9]], [3, 2], np.random.RandomState(7), is_hard=False)
    page.save(tmp_path / "page.png")
    draw_digit(4, 2).save(tmp_path / "4.png")
    Image.new("L", (90, 90), 255).save(tmp_path / "blank.png")
    files = ("page.png", "4.png", "blank.png")
    done = tool("infer", *files, "--many", "--json", "--show", "seen.png", expect=8)
    several, one, blank = json.loads(done.stdout)
    assert several["text"] == "40729" and several["digit"] is None and several["error"] is None
    for digit in several["digits"]:
        left, top, width, height = digit["box"]
        assert 0 <= left < left + width <= page.width and 0 <= top < top + height <= page.height
        assert set(digit) >= {"digit", "probability", "score"}
    assert one["digit"] == 4 and one["text"] == "4" and len(one["digits"]) == 1
    assert "blank" in blank["error"] and "digits" not in blank
    seen = np.asarray(Image.open(tmp_path / "seen.png"))
    assert (seen == (0, 150, 0)).all(axis=2).sum() > 500  # boxes
    lines = tool("infer", *files, "--many", expect=8).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["40729", "4", "-"]
    lines = tool("infer", *files, "--many", "--csv", expect=8).stdout.splitlines()
    assert lines[0] == "file,digit,probability,error,score,left,top,width,height"
    rows = [line.split(",")[:2] for line in lines[1:7]]
    assert rows == [*(["page.png", digit] for digit in "40729"), ["4.png", "4"]]
    refused = json.loads(tool("infer", "page.png", "--json", expect=8).stdout)[0]
    assert refused["error"].startswith("5 shapes; expected one digit") and refused["digit"] is None


def test_infer_non_digit_is_refused_unless_unchecked_or_of_other_classes(tool, tmp_path):
    """The detector cannot say whether a picture shows a shirt."""
    non_digits.UNSEEN["doodles"]["ladder"](np.random.RandomState(0)).save(tmp_path / "ladder.png")
    done = tool("infer", "ladder.png", expect=8)
    assert "ladder.png: probably not one digit (score 0." in done.stdout
    about = {"dataset": "fashion"}
    export_model(MNIST(pretrained=True), tmp_path / "fashion", ["probabilities"], about=about)
    for options, note in ((["--unchecked"], ""), (["--model", "fashion"], "trained on fashion")):
        done = tool("infer", "ladder.png", "--json", *options)
        (row,) = json.loads(done.stdout)
        assert row["digit"] is not None and row["score"] is None and row["error"] is None
        assert note in done.stderr


def test_read_detector_damaged_or_of_other_weights_raises(tmp_path):
    whole, path = detector.FILE.read_bytes(), tmp_path / "detector.npz"
    for content in (b"", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            read_detector(path)
    with np.load(detector.FILE) as file:
        about = json.loads(str(file["about"]))
        np.savez(path, **{**file, "about": json.dumps({**about, "weights": "0" * 64})})
    with pytest.raises(CheckpointError, match="made for the weights 000000000000"):
        read_detector(path)
    assert len(whole) < 600_000
    assert about["command"] == "python tools/reproduce.py --only detector --data MNIST"

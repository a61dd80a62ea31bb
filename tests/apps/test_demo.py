"""The page to draw on: a digit of each kind is drawn with the mouse, in a real browser."""

import contextlib
import http.client
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from concurrent import futures

import numpy as np
import pytest
from conftest import ROOT
from drawn_digits import STROKES, as_bytes, draw_digit
from PIL import Image
from rendering.non_digits import UNSEEN

from paddle_mnist.apps import answers
from paddle_mnist.apps.answers import answer, tiles
from paddle_mnist.mnist.infer import pretrained_predictor


@pytest.fixture(scope="module")
def predictor():
    return pretrained_predictor(("probabilities", "conv1", "conv2"))


def test_answer_tells_digit_probabilities_and_layers(predictor):
    words, bars, seen, first, second = answer(predictor, as_bytes(draw_digit(3, 1)))
    assert words.startswith("3, probability ") and max(bars, key=bars.get) == "3"
    assert ", score " in words
    assert sum(bars.values()) == pytest.approx(1, abs=1e-5)
    assert seen.shape == (280, 280) and {first.dtype, second.dtype} == {np.dtype("uint8")}
    assert first.max() == 255 and second.max() == 255


def two_digits():
    """A picture of a 2 and a 5 side by side, as a PNG file's bytes."""
    look = {"size": (280, 280), "ink": [0] * 3, "paper": [255] * 3, "shade": 0}
    page = Image.new("RGB", (560, 280))
    for column, digit in enumerate((2, 5)):
        page.paste(draw_digit(digit, 1, **look), (280 * column, 0))
    return as_bytes(page)


@pytest.mark.parametrize(
    ("picture", "reason"),
    [
        (None, "Draw a digit."),
        (as_bytes(Image.new("L", (50, 50), 255)), "Blank; expected a digit"),
        (as_bytes(Image.new("L", (3, 3))), "3 x 3 pixels"),
        (b"some words", "Not a picture; expected one of PNG"),
        (two_digits(), "2 shapes; expected one digit"),
        (
            as_bytes(UNSEEN["shapes"]["hash"](np.random.RandomState(0))),
            "Probably not one digit",
        ),
    ],
    ids=["none", "blank", "small", "no picture", "two digits", "no digit"],
)
def test_what_is_no_digit_gets_its_reason_and_no_label(predictor, picture, reason):
    words, bars, seen, *layers = answer(predictor, picture)
    assert reason in words and bars is None and layers == [None] * 2
    found_something = "shapes" in words or "not one digit" in words
    assert (seen is not None) == found_something  # and it is shown


def test_answer_that_takes_too_long_is_given_up(predictor, monkeypatch):
    monkeypatch.setattr(answers, "PATIENCE", 0)
    with futures.ThreadPoolExecutor(1) as workers:
        words, *others = answers.answer_in_time(workers, predictor, as_bytes(draw_digit(3, 1)))
    assert words.startswith("No answer within 0 s") and others == [None] * 4


def test_tiles_hold_every_map():
    maps = np.random.RandomState(0).rand(20, 14, 14)
    page = tiles(maps)
    assert page.shape == (4 * 15, 5 * 15)
    first = page[:14, :14] / 255
    low, high = maps[0].min(), maps[0].max()
    assert np.abs(first - (maps[0] - low) / (high - low)).max() < 0.003


@pytest.mark.parametrize("port", [-1, 65_536])
def test_port_that_is_none_is_said(tool, port):
    assert f"port is {port}" in tool("demo", f"--port={port}", expect=2).stderr


def test_model_without_layers_is_refused(tool):
    tool("export_model", "--output", "out")
    assert "gives no conv1, conv2" in tool("demo", "--model", "out", expect=2).stderr


@contextlib.contextmanager
def served(folder, *arguments):
    """The page's process and address, as a user starts it."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tools/demo.py"), "--port", "0", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if match := re.match(r"page: (http://\S+:\d+)/", line):
                yield process, match[1]
                break
        else:
            pytest.fail("".join(lines))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    pytest.importorskip("gradio", reason="the page needs gradio (extra web)")
    with served(tmp_path_factory.mktemp("served")) as (_, address):
        yield address


def shares_the_page(test):
    """Mark a test that uses `address`: one worker runs them all, so the page starts once.

    On a machine with much else to do, that start takes minutes.
    """
    for mark in (pytest.mark.slow, pytest.mark.timeout(900)):
        test = mark(test)
    return test


def end(process):
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


@pytest.fixture
def four(tmp_path):
    picture = tmp_path / "4.png"
    picture.write_bytes(as_bytes(draw_digit(4, 2)))
    return picture


def ask(address, picture):
    client = importlib.import_module("gradio_client")
    asking = client.Client(address, verbose=False, download_files=False)
    return asking.predict(client.handle_file(str(picture)), api_name="/read")


def status_of(address, method="GET", path="/", body=None, **headers):
    """The status that a request is answered with, for headers that a browser would send."""
    asking = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    with contextlib.closing(asking):
        asking.request(method, path, body, headers)
        return asking.getresponse().status


@pytest.mark.slow
def test_programs_can_ask_and_ctrl_c_ends_it(tmp_path, four):
    pytest.importorskip("gradio", reason="the page needs gradio (extra web)")
    with served(tmp_path) as (process, address):
        reply = ask(address, four)
        assert reply[0].startswith("4, probability") and reply[1]["label"] == "4"
        config = json.loads(urllib.request.urlopen(f"{address}/config", timeout=30).read())
        assert config["analytics_enabled"] is False
        for name, value, status in (
            ("Content-Length", "9000000", 413),
            ("Transfer-Encoding", "chunked", 411),
        ):
            # Refused by its head: no body is sent, since one that is could find the door shut.
            asking = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
            asking.putrequest("POST", "/gradio_api/upload")
            asking.putheader(name, value)
            asking.endheaders()
            assert asking.getresponse().status == status
            asking.close()
        end(process)
    assert list(tmp_path.iterdir()) == [four]  # nothing of what was sent


@shares_the_page
def test_programs_get_the_reason_and_no_label(address, tmp_path):
    for name, content, reason in (
        ("25.png", two_digits(), "2 shapes; expected one digit"),
        ("words.png", b"some words", "Not a picture; expected one of PNG"),
        ("none.png", b"", "0 bytes; expected a picture"),
    ):
        (tmp_path / name).write_bytes(content)
        words, label, _, *layers = ask(address, tmp_path / name)
        assert words.startswith(reason) and label == {} and layers == [None] * 2


CALL = {
    "method": "POST",
    "path": "/gradio_api/call/read",
    "body": '{"data": [null]}',
    "Content-Type": "application/json",
}


@shares_the_page
def test_other_web_sites_do_not_reach_the_page(address):
    assert status_of(address, Host="site.example") == 403  # its name now stands for 127.0.0.1
    assert status_of(address, **CALL, Origin="https://site.example") == 403
    assert status_of(address, Host=address.replace("http://127.0.0.1", "localhost")) == 200
    assert status_of(address, **CALL, Origin=address) == 200


@pytest.mark.slow
def test_host_opens_the_page_to_all_and_says_so(tmp_path):
    pytest.importorskip("gradio", reason="the page needs gradio (extra web)")
    with served(tmp_path, "--host", "0.0.0.0") as (process, address):
        assert process.stdout.readline().startswith("0.0.0.0 is not loopback: whoever reaches")
        assert status_of(address, Host="site.example") == 200


@pytest.mark.slow
def test_page_that_ends_takes_nothing_from_another(tmp_path, four):
    pytest.importorskip("gradio", reason="the page needs gradio (extra web)")
    with served(tmp_path) as (ending, its_address), served(tmp_path) as (_, address):
        ask(its_address, four)
        *_, layer = ask(address, four)
        end(ending)
        assert urllib.request.urlopen(layer["url"], timeout=30).status == 200


# ------------------------------------------------------------------ in a browser

SIZES = {
    "desktop": {"viewport": {"width": 1100, "height": 1100}},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}


class Visitor:
    """A user of the page in a browser, who draws with the mouse, or with a finger on a phone."""

    def __init__(self, page, address):
        self.api = importlib.import_module("playwright.sync_api")
        self.page = page
        self.touches = page.context.new_cdp_session(page)
        self.errors = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "request",
            lambda asked: self.errors.append(asked.url) if "analytics" in asked.url else None,
        )
        page.goto(address)
        self.wait_for_paper()
        self.has_touch = page.evaluate("navigator.maxTouchPoints") > 0

    def wait_for_paper(self):
        """Wait until the canvas is white: then its script has run."""
        self.page.wait_for_function(
            "document.querySelector('canvas')?.getContext('2d')"
            ".getImageData(0, 0, 1, 1).data[3] === 255",
            timeout=60_000,
        )

    def draw(self, strokes):
        """Draw them; again if the page moved meanwhile, as it may while it loads."""
        canvas = self.page.locator("canvas")
        for _ in range(5):
            canvas.hover()  # waits until it stays in its place and nothing covers it
            box = canvas.bounding_box()
            side = 0.7 * box["width"]
            left, top = (box[edge] + (box["width"] - side) / 2 for edge in "xy")
            for stroke in strokes:
                points = [(left + x * side, top + y * side) for x, y in stroke]
                (self.touch if self.has_touch else self.drag)(points)
            if canvas.bounding_box() == box:
                return
            for _ in strokes:
                self.press("Undo")
        pytest.fail("the canvas does not stay in its place")

    def drag(self, points):
        self.page.mouse.move(*points[0])
        self.page.mouse.down()
        for point in points[1:]:
            self.page.mouse.move(*point)
        self.page.mouse.up()

    def touch(self, points):
        def send(kind, *at):
            event = {"type": kind, "touchPoints": [{"x": x, "y": y} for x, y in at]}
            self.touches.send("Input.dispatchTouchEvent", event)

        send("touchStart", points[0])
        for point in points[1:]:
            send("touchMove", point)
        send("touchEnd")

    def press(self, button):
        self.page.get_by_role("button", name=re.compile(f"^{button}")).click()

    def expect(self, answer):
        """Wait for an answer that starts so."""
        words = self.page.get_by_label("Answer")
        self.api.expect(words).to_have_value(re.compile(f"^{answer}"), timeout=60_000)


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="no playwright (extra browser)")
    chromium = shutil.which("chromium") or pytest.skip("chromium is not installed")
    with api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])


@pytest.fixture(params=SIZES)
def visitor(request, address, browser):
    with browser.new_context(**SIZES[request.param]) as context:
        visitor = Visitor(context.new_page(), address)
        yield visitor
    assert not visitor.errors


@shares_the_page
def test_ten_digits_drawn_one_after_another_are_read(visitor, screenshots):
    device = "phone" if visitor.has_touch else "desktop"
    for digit, strokes in STROKES.items():
        visitor.draw(strokes)
        visitor.expect(f"{digit}, probability")
        visitor.page.screenshot(path=screenshots / f"demo-{device}-{digit}.png", full_page=True)
        visitor.press("Clear")
        visitor.expect("Draw a digit")
    assert visitor.page.evaluate("window.scrollY") == 0  # a finger drew, and did not scroll
    width = visitor.page.viewport_size["width"]
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width


NO_FOUR = r"((?!4)\d, probability|Probably not one digit)"


@shares_the_page
def test_strokes_can_be_added_and_undone_until_a_reload(visitor):
    angle, upright = STROKES[4]
    visitor.draw([angle])
    visitor.expect(NO_FOUR)
    visitor.draw([upright])
    visitor.expect("4, probability")
    for tab in ("Picture", "Draw"):
        visitor.page.get_by_role("tab", name=tab).click()
    visitor.press("Undo")
    visitor.expect(NO_FOUR)
    visitor.draw([upright])
    visitor.expect("4, probability")
    visitor.page.reload()
    visitor.wait_for_paper()
    visitor.expect("$")
    visitor.draw(STROKES[7])
    visitor.expect("7, probability")
    visitor.press("Undo")
    visitor.press("Undo")  # there is nothing more to undo
    visitor.expect("Draw a digit")


@shares_the_page
def test_picture_that_is_none_gets_its_reason_on_the_page(visitor, tmp_path):
    visitor.page.get_by_role("tab", name="Picture").click()
    picture = tmp_path / "words.png"
    picture.write_bytes(b"some words")
    visitor.page.locator("input[type=file]").set_input_files(picture)
    visitor.expect("Not a picture; expected one of PNG")

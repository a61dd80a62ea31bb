"""The page to draw on: a digit of each kind is drawn with the mouse, in a real browser."""

import contextlib
import http.client
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request

import numpy as np
import pytest
from conftest import PATIENCE
from detector.non_digits import UNSEEN
from drawn_digits import STROKES, as_bytes, draw_digit
from PIL import Image

from paddle_mnist import DigitPredictor
from paddle_mnist.apps.demo import answer, serve
from paddle_mnist.errors import OutputError


@pytest.fixture(scope="module")
def predictor():
    return DigitPredictor("pretrained", outputs=("probabilities", "conv1", "conv2"))


@pytest.fixture
def answer_to(predictor, tmp_path):
    """`answer_to(data, language)` answers a file's bytes."""
    path = tmp_path / "picture"

    def ask(data, language="en"):
        path.write_bytes(data or b"")
        return answer(predictor, None if data is None else str(path), language)

    return ask


def test_answer_gives_digit_probabilities_and_layers(answer_to):
    words, bars, layers = answer_to(as_bytes(draw_digit(3, 1)))
    assert words.startswith("3, probability ") and ", score " in words
    assert max(bars, key=bars.get) == "3" and sum(bars.values()) == pytest.approx(1, abs=1e-5)
    (seen, title), (first, _), (second, _) = layers
    assert seen.shape == (280, 280) and title.startswith("Input")
    assert first.max() == second.max() == 255


def two_digits():
    """A picture of a 2 and a 5 side by side, as a PNG file's bytes."""
    look = {"size": (280, 280), "ink": [0] * 3, "paper": [255] * 3, "shade": 0}
    page = Image.new("RGB", (560, 280))
    for column, digit in enumerate((2, 5)):
        page.paste(draw_digit(digit, 1, **look), (280 * column, 0))
    return as_bytes(page)


NO_DIGIT = as_bytes(UNSEEN["doodles"]["ladder"](np.random.RandomState(0)))
NOT_FINITE = as_bytes(Image.fromarray(np.full((50, 50), np.nan, np.float32)), "TIFF")
REFUSED = {
    "nothing": (None, "Draw a digit."),
    "blank": (as_bytes(Image.new("L", (50, 50), 255)), "Blank"),
    "empty": (b"", "0 bytes"),
    "words": (b"some words", "Not a picture"),
    "SVG": (b"<svg></svg>", "SVG"),
    "two digits": (two_digits(), "Several shapes; expected one digit"),
    "cut off": (as_bytes(draw_digit(3, 1))[:500], "amaged or cut off"),
    "not finite": (NOT_FINITE, "Holds values that are not finite"),
    "no digit": (NO_DIGIT, "Probably not one digit"),
    "animation": (
        as_bytes(draw_digit(3, 1), "GIF", save_all=True, append_images=[draw_digit(4, 1)]),
        "2 pictures in one file",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_answer_to_a_non_digit_gives_the_reason_in_both_languages(answer_to, kind):
    picture, reason = REFUSED[kind]
    words, bars, layers = answer_to(picture)
    assert reason in words and "--" not in words and bars is None
    assert len(layers) == (kind in ("two digits", "no digit"))  # what was found is shown
    chinese = answer_to(picture, "zh")[0]
    assert not re.search("[A-Za-z]", chinese.replace("JPEG", "").replace("PNG", "")), chinese


def test_demo_that_cannot_listen_exits_with_2(tool):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        for host, port in (("127.0.0.1", 65_536), ("127.0.0.1", taken), ("nowhere.invalid", 0)):
            refused = tool("demo", f"--host={host}", f"--port={port}", expect=2).stderr
            assert f"{host}:{port}: cannot listen there" in refused and "--port" in refused


def test_demo_wrong_model_or_run_exits_with_its_code(tool):
    tool("export_model", "--output", "out", "--outputs", "logits")
    assert "probabilities" in tool("demo", "--model", "out", expect=2).stderr
    assert "run: " in tool("demo", "--run", "run", expect=4).stderr


def test_demo_without_a_temporary_folder_raises(tmp_path, monkeypatch):
    pytest.importorskip("gradio", reason="the page needs gradio (extra web)")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(OutputError, match=r"cannot create a temporary folder .*export TMPDIR="):
        serve(None, "127.0.0.1", 0, share=False)


# Proxies that answer nothing: a page on the loopback address needs none of them.
DEAD = {"http_proxy": "http://127.0.0.1:9", "all_proxy": "socks5://127.0.0.1:9", "no_proxy": "a.b"}


@contextlib.contextmanager
def served(folder, *arguments):
    """The page's process and address, as a user starts it behind a proxy."""
    process = subprocess.Popen(
        [sys.executable, "-m", "paddle_mnist", "demo", "--port", "0", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder), **DEAD},
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
def folder(tmp_path_factory):
    """The folder in which the page of `address` keeps what it is sent."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def address(folder):
    pytest.importorskip("gradio", reason="the page needs gradio (extra web)")
    with served(folder) as (_, address):
        yield address


def shares_the_page(test):
    """Mark a test that uses `address`, whose start takes minutes on a busy machine."""
    for mark in (pytest.mark.slow, pytest.mark.timeout(1800)):
        test = mark(test)
    return test


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


@shares_the_page
def test_page_answers_programs_with_a_label_or_the_reason(address, four, tmp_path):
    words, label, *_ = ask(address, four)
    assert words.startswith("4, probability") and label["label"] == "4"
    (tmp_path / "25.png").write_bytes(two_digits())
    words, label, layers = ask(address, tmp_path / "25.png")
    assert words == "Several shapes; expected one digit" and label == {} and len(layers) == 1
    config = json.loads(urllib.request.urlopen(f"{address}/config", timeout=30).read())
    assert config["analytics_enabled"] is False


CALL = {
    "method": "POST",
    "path": "/gradio_api/call/read",
    "body": '{"data": [null]}',
    "Content-Type": "application/json",
}


@shares_the_page
def test_page_refuses_other_sites_and_large_requests(address):
    assert status_of(address, Host="site.example") == 403  # its name now stands for 127.0.0.1
    assert status_of(address, **CALL, Origin="https://site.example") == 403
    assert status_of(address, Host="site.example@127.0.0.1") == 403
    forwarded = urllib.request.Request(address, headers={"X-Forwarded-Host": "site.example"})
    assert b"site.example" not in urllib.request.urlopen(forwarded, timeout=30).read()
    assert status_of(address, Host=address.replace("http://127.0.0.1", "localhost")) == 200
    assert status_of(address, **CALL, Origin=address) == 200
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


@shares_the_page
def test_page_open_to_all_ends_at_ctrl_c_and_removes_only_its_own_files(address, folder, four):
    *_, layers = ask(address, four)
    before = {*folder.rglob("*")}
    with served(folder, "--host", "0.0.0.0") as (process, another):
        assert process.stdout.readline().startswith("0.0.0.0 is not loopback")
        assert status_of(another, Host="site.example") == 200
        assert ask(another, four)[1]["label"] == "4"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert {*folder.rglob("*")} == before  # nothing of what was sent
    assert urllib.request.urlopen(layers[0]["image"]["url"], timeout=30).status == 200


# ------------------------------------------------------------------ in a browser

DESKTOP = {"viewport": {"width": 1100, "height": 1100}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


class Visitor:
    """A user of the page in a browser, who draws with the mouse, or with a finger on a phone."""

    def __init__(self, page, address):
        self.api = importlib.import_module("playwright.sync_api")
        self.page = page
        page.set_default_timeout(PATIENCE)
        self.touches = page.context.new_cdp_session(page)
        self.errors = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.check_address(request.url))
        page.goto(address)
        self.has_touch = page.evaluate("navigator.maxTouchPoints") > 0
        self.take_brush()

    def check_address(self, url):
        """Note requests for other places: the page opens offline."""
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.errors.append(url)

    def take_brush(self):
        """Wait until the page has taken the brush: then its size can be chosen."""
        size = self.page.get_by_label("Brush Size")
        self.api.expect(size.first).to_be_visible()

    def draw(self, strokes):
        box = self.page.locator("canvas").first.bounding_box()
        side = 200  # pixels, in the middle of the paper
        left = box["x"] + (box["width"] - side) / 2
        top = box["y"] + (box["height"] - side) / 2
        for stroke in strokes:
            points = [(left + x * side, top + y * side) for x, y in stroke]
            (self.touch if self.has_touch else self.drag)(points)

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

    def clear(self):
        """Clear the sheet, which puts the brush down, and wait until the page has it again."""
        brush = self.page.get_by_label("Brush Size").first.element_handle()
        self.page.get_by_label("Clear canvas").click()
        brush.wait_for_element_state("hidden")
        self.take_brush()
        self.expect("Draw a digit|请写一个数字")

    def expect(self, answer):
        """Wait for an answer that starts so."""
        words = self.page.get_by_text(re.compile(rf"^\s*(?:{answer})"))
        self.api.expect(words.first).to_be_visible()
        return words.first

    def expect_layers(self):
        """Wait for the pictures of the image and of both layers."""
        pictures = self.page.locator(".grid-container img")
        self.api.expect(pictures).to_have_count(3)
        self.page.wait_for_function(
            "images => images.every(image => image.complete && image.naturalWidth)",
            arg=pictures.element_handles(),
        )


@pytest.fixture
def visit(address, browser):
    """`visit(viewport=..., ...)` opens the page in a new browser context, which it closes."""
    visitors = []
    with contextlib.ExitStack() as closing:

        def open_page(**options):
            context = closing.enter_context(browser.new_context(**options))
            visitors.append(Visitor(context.new_page(), address))
            return visitors[-1]

        yield open_page
    assert [visitor.errors for visitor in visitors] == [[]] * len(visitors)


@shares_the_page
def test_page_reads_ten_digits_drawn_one_after_another(visit):
    visitor = visit(**DESKTOP)
    for digit, strokes in STROKES.items():
        visitor.draw(strokes)
        visitor.expect(f"{digit}, probability")
        visitor.clear()


# A 1 with a long flag, as in German handwriting
FLAG = np.linspace((0.04, 0.26), (0.45, 0.02), 12)
STEM = np.linspace((0.45, 0.02), (0.45, 0.98), 24)


@shares_the_page
def test_page_shows_no_other_digit_than_its_answer(visit):
    """The net's probability of a 7 is higher."""
    visitor = visit(**DESKTOP)
    visitor.draw([[*FLAG, *STEM]])
    visitor.expect("1, probability [1-4]")
    visitor.expect_layers()
    seven = visitor.page.get_by_role("heading", name="7", exact=True)
    visitor.api.expect(seven).to_have_count(0)


# Collects what an element shows, each time that it changes.
COLLECT = """element => {
    window.shown = [];
    const box = element.closest(".prose");
    new MutationObserver(() => window.shown.push(box.innerText.trim())).observe(
        box, {childList: true, characterData: true, subtree: true});
}"""


@shares_the_page
def test_drawing_sent_late_is_not_read_on_a_cleared_sheet(visit):
    """It is answered before the next drawing, and so would be shown before the next answer."""
    visitor = visit(**DESKTOP)
    visitor.draw(STROKES[4])
    visitor.expect("4, probability")
    uploads = []
    visitor.page.route("**/upload*", lambda upload: uploads.append(upload))  # held back
    with visitor.page.expect_request("**/upload*"):
        visitor.draw(STROKES[1])
    visitor.clear()
    visitor.expect("Draw a digit").evaluate(COLLECT)
    with visitor.page.expect_response("**/upload*"):
        for upload in uploads:
            upload.continue_()
    visitor.page.unroute("**/upload*")
    visitor.draw(STROKES[7])
    visitor.expect("7, probability")
    shown = visitor.page.evaluate("window.shown")
    assert uploads and {text.partition(",")[0] for text in shown} <= {"Draw a digit.", "7"}


@shares_the_page
def test_page_reads_a_picture_or_gives_the_reason(visit, four, tmp_path):
    visitor = visit(**DESKTOP)
    visitor.page.get_by_role("tab", name="Picture").click()
    (tmp_path / "words.png").write_bytes(b"some words")
    files = {four: "4, probability", tmp_path / "words.png": "Not a picture"}
    for file, expected in files.items():
        with visitor.page.expect_file_chooser() as chooser:
            visitor.page.get_by_role("button", name="Click to upload").click()
        chooser.value.set_files(file)
        visitor.expect(expected)
        visitor.page.get_by_label("Clear").last.click()


SCREEN = {**PHONE, "device_scale_factor": 2}
LOOKS = {
    "demo-phone-zh": {**SCREEN, "locale": "zh-CN"},
    "demo-desktop-zh": {**DESKTOP, "locale": "zh-CN"},
    "demo-desktop-light": {**DESKTOP, "color_scheme": "light"},
    "demo-phone-light": {**SCREEN, "color_scheme": "light"},
    "demo-phone-dark": {**SCREEN, "color_scheme": "dark"},
}


@shares_the_page
@pytest.mark.parametrize(
    "names", [[*LOOKS][:1], pytest.param([*LOOKS][1:], marks=pytest.mark.release)], ids=len
)
def test_page_speaks_the_browsers_language_in_every_look(visit, screenshots, names):
    """PADDLE_MNIST_SCREENSHOTS=docs/figures puts them where the documentation shows them."""
    for name in names:
        visitor = visit(**LOOKS[name])
        visitor.draw(STROKES[3])
        visitor.expect("3[,，]")
        visitor.expect_layers()
        assert visitor.page.evaluate("[scrollX, scrollY]") == [0, 0]  # a finger drew
        width = visitor.page.viewport_size["width"]
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width
        visitor.page.screenshot(path=screenshots / f"{name}.png")
        if name.endswith("zh"):
            text = visitor.page.locator(".contain").inner_text()
            assert set(re.findall("[A-Za-z]{3,}[0-9]?", text)) <= {"conv1", "conv2", "MNIST"}, text
            visitor.clear()

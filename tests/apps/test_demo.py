"""The page to draw on: a digit of each kind is drawn with the mouse, in a real browser."""

import contextlib
import http.client
import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT
from detector.non_digits import UNSEEN
from drawn_digits import STROKES, arc, as_bytes, draw_digit
from PIL import Image

from paddle_mnist.apps import answers
from paddle_mnist.apps.answers import answer, tiles
from paddle_mnist.apps.demo import serve
from paddle_mnist.apps.drawing_pad import EXAMPLES
from paddle_mnist.apps.wording import LANGUAGES, TEXTS, in_language, language_of
from paddle_mnist.errors import CheckpointError
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


REFUSED = {
    "nothing": None,
    "blank": as_bytes(Image.new("L", (50, 50), 255)),
    "small": as_bytes(Image.new("L", (3, 3))),
    "narrow": as_bytes(Image.new("L", (3000, 20))),
    "empty": b"",
    "words": b"some words",
    "SVG": b"<svg></svg>",
    "two digits": two_digits(),
    "cut off": as_bytes(draw_digit(3, 1))[:500],
    "no digit": as_bytes(UNSEEN["shapes"]["hash"](np.random.RandomState(0))),
    "animation": as_bytes(draw_digit(3, 1), "GIF", save_all=True, append_images=[draw_digit(4, 1)]),
}


@pytest.mark.parametrize("picture", REFUSED.values(), ids=REFUSED)
def test_every_reason_is_said_in_chinese(predictor, picture):
    english = answer(predictor, picture).words
    chinese = in_language(english, "zh")
    formats = "PNG|JPEG|BMP|GIF|TIFF|WEBP|PPM|SVG|x"
    assert not re.search("[A-Za-z]", re.sub(formats, "", chinese)), (english, chinese)
    assert in_language(english, "en") == english


@pytest.mark.parametrize(
    ("words", "chinese"),
    [
        ("3, probability 98.2%, score 0.97", "3，概率 98.2%，数字得分 0.97"),
        ("3, probability 50.0% unsure: 3 or 8", "3，概率 50.0%；不太确定：3 或 8"),
        ("something new", "something new"),
    ],
)
def test_answer_in_chinese(words, chinese):
    assert in_language(words, "zh") == chinese


@pytest.mark.parametrize(
    ("accepted", "language"),
    [("zh-CN,zh;q=0.9", "zh"), ("zh-TW", "zh"), ("en-US,zh-CN;q=0.5", "en"), ("de", "en")],
)
def test_language_is_the_one_that_the_browser_asks_for_first(accepted, language):
    assert language_of(SimpleNamespace(headers={"accept-language": accepted})) == language
    assert language_of(None) == language_of(SimpleNamespace(headers={})) == "en"


def test_every_text_is_there_in_both_languages():
    assert {len(words) for words in TEXTS.values()} == {len(LANGUAGES)}


def test_answer_that_takes_too_long_is_given_up(predictor, monkeypatch):
    monkeypatch.setattr(answers, "PATIENCE", 0)
    with futures.ThreadPoolExecutor(1) as workers:
        words, *others = answers.answer_in_time(workers, predictor, as_bytes(draw_digit(3, 1)))
    assert words.startswith("No answer within 0 s") and others == [None] * 4


def test_tiles_hold_every_map():
    maps = np.random.RandomState(0).rand(20, 14, 14)
    page = tiles(maps)
    assert page.shape == (4 * 15 - 1, 5 * 15 - 1)
    first = page[:14, :14] / 255
    low, high = maps[0].min(), maps[0].max()
    assert np.abs(first - (maps[0] - low) / (high - low)).max() < 0.003


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("127.0.0.1", -1, ""),
        ("127.0.0.1", 65_536, ""),
        ("127.0.0.1", None, "Address already in use"),
        ("nowhere.invalid", 0, ""),
    ],
)
def test_serve_refuses_an_address_that_cannot_be_had(tool, host, port, reason):
    """port: None for one that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1] if port is None else port
        refused = tool("demo", f"--host={host}", f"--port={port}", expect=2).stderr
    assert f"error: {host}:{port}: cannot listen there ({reason}" in refused
    assert "choose another --port or --host" in refused and "GRADIO" not in refused


def test_demo_model_without_probabilities_refuses(tool):
    tool("export_model", "--output", "out", "--outputs", "logits")
    assert "gives logits; expected prob" in tool("demo", "--model", "out", expect=2).stderr


def test_run_alone_means_its_weights(tmp_path):
    with pytest.raises(CheckpointError, match=f"^{tmp_path / 'run'}: "):  # it looks there
        serve(None, "127.0.0.1", 0, share=False, run=str(tmp_path / "run"))


# Proxies that answer nothing: a page on the loopback address needs none of them.
DEAD = {"http_proxy": "http://127.0.0.1:9", "all_proxy": "socks5://127.0.0.1:9", "no_proxy": "a.b"}


@contextlib.contextmanager
def served(folder, *arguments):
    """The page's process and address, as a user starts it behind a proxy."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tools/demo.py"), "--port", "0", *arguments],
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
    """Mark a test that uses `address`: one worker runs them all, so the page starts once.

    On a machine with much else to do, that start takes minutes.
    """
    for mark in (pytest.mark.slow, pytest.mark.timeout(900)):
        test = mark(test)
    return test


def end(process):
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0


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


@shares_the_page
def test_page_that_ends_takes_nothing_from_another(address, folder, four):
    with served(folder) as (ending, its_address):
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

    @property
    def answer(self):
        return self.page.get_by_label(re.compile("^(Answer|识别结果)$"))

    def expect(self, answer):
        """Wait for an answer that starts so."""
        self.api.expect(self.answer).to_have_text(re.compile(rf"^\s*{answer}"), timeout=60_000)


@pytest.fixture
def visit(address, browser):
    """`visit(viewport=..., ...)` opens the page in a new browser context, which it closes."""
    with contextlib.ExitStack() as closing:

        def open_page(**options):
            context = closing.enter_context(browser.new_context(**options))
            visitors.append(Visitor(context.new_page(), address))
            return visitors[-1]

        visitors = []
        yield open_page
    assert [visitor.errors for visitor in visitors] == [[]] * len(visitors)


@pytest.fixture(params=["desktop", pytest.param("phone", marks=pytest.mark.release)])
def visitor(request, visit):
    return visit(**SIZES[request.param])


@shares_the_page
def test_ten_digits_drawn_one_after_another_are_read(visitor, screenshots):
    device = "phone" if visitor.has_touch else "desktop"
    for digit, strokes in STROKES.items():
        visitor.draw(strokes)
        visitor.expect(f"{digit} probability")
        if digit == 9:
            visitor.page.screenshot(path=screenshots / f"demo-{device}.png", full_page=True)
        visitor.press("Clear")
        visitor.expect("Draw a digit")
    assert visitor.page.evaluate("window.scrollY") == 0  # a finger drew, and did not scroll
    width = visitor.page.viewport_size["width"]
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width


NO_FOUR = r"((?!4)\d probability|Probably not one digit)"


@pytest.mark.release
@shares_the_page
def test_strokes_can_be_added_and_undone_until_a_reload(visitor):
    angle, upright = STROKES[4]
    visitor.draw([angle])
    visitor.expect(NO_FOUR)
    visitor.draw([upright])
    visitor.expect("4 probability")
    for tab in ("Picture", "Draw"):
        visitor.page.get_by_role("tab", name=tab).click()
    visitor.press("Undo")
    visitor.expect(NO_FOUR)
    visitor.draw([upright])
    visitor.expect("4 probability")
    visitor.page.reload()
    visitor.wait_for_paper()
    visitor.expect("The net answers while you draw")
    visitor.draw(STROKES[7])
    visitor.expect("7 probability")
    visitor.press("Undo")
    visitor.expect("Draw a digit")
    for button in ("Undo", "Clear"):
        assert visitor.page.get_by_role("button", name=button).is_disabled()


@pytest.mark.release
@shares_the_page
def test_picture_that_is_none_gets_its_reason_on_the_page(visitor, tmp_path):
    visitor.page.get_by_role("tab", name="Picture").click()
    picture = tmp_path / "words.png"
    picture.write_bytes(b"some words")
    visitor.page.locator("input[type=file]").set_input_files(picture)
    visitor.expect("Not a picture; expected one of PNG")


@pytest.mark.release
@shares_the_page
def test_examples_and_keys_do_what_the_hand_does(visitor):
    page = visitor.page
    for digit in EXAMPLES:
        example = page.get_by_role("button", name=f"Example: {digit}")
        example.focus()
        page.keyboard.press("Enter")
        visitor.expect(f"{digit} probability")
    page.locator("canvas").focus()
    page.keyboard.press("Delete")
    visitor.expect("Draw a digit")
    visitor.draw(STROKES[4])
    visitor.expect("4 probability")
    page.keyboard.press("Control+z")
    visitor.expect(NO_FOUR)


TOUCHED = {  # width, height, and the least width of the canvas
    "small phone": (320, 480, 250),
    "phone": (375, 553, 320),
    "tall phone": (390, 664, 370),
    "phone on its side": (844, 390, 200),
    "tablet": (768, 1024, 340),
}
CLICKED = {"laptop": (1280, 720, 410)}


@pytest.mark.release
@shares_the_page
@pytest.mark.parametrize("windows", [TOUCHED, CLICKED], ids=["touched", "clicked"])
def test_answer_is_in_sight_of_the_canvas(visit, windows):
    visitor = visit(has_touch=windows is TOUCHED)
    for window, (width, height, canvas_width) in windows.items():
        visitor.page.set_viewport_size({"width": width, "height": height})
        visitor.page.reload()
        visitor.wait_for_paper()
        visitor.draw(STROKES[3])
        visitor.expect("3 probability")
        assert visitor.page.evaluate("[scrollX, scrollY]") == [0, 0], window
        for part in (visitor.page.locator("canvas"), visitor.answer):
            box = part.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width, window
            assert box["y"] >= 0 and box["y"] + box["height"] <= height, window
        assert visitor.page.locator("canvas").bounding_box()["width"] >= canvas_width, window


@pytest.mark.release
@shares_the_page
def test_nothing_covers_the_feature_maps(visitor):
    visitor.draw(STROKES[3])
    visitor.expect("3 probability")
    pictures = visitor.page.locator("#layers img")
    visitor.api.expect(pictures).to_have_count(3)
    for picture in pictures.all():
        picture.scroll_into_view_if_needed()
        visitor.page.wait_for_function("image => image.complete", arg=picture.element_handle())
        covering = picture.evaluate(
            """image => {
                const {left, right, top, bottom} = image.getBoundingClientRect();
                const isOver = element => {
                    const box = element.getBoundingClientRect();
                    return box.width > 2 && box.height > 2  // texts for screen readers have one
                        && box.left < right && box.right > left
                        && box.top < bottom && box.bottom > top;
                };
                return [...image.closest('.maps').querySelectorAll('*')]
                    .filter(element => !element.contains(image) && isOver(element)
                        && element.checkVisibility({opacityProperty: true,
                                                    visibilityProperty: true}))
                    .map(element => element.outerHTML);
            }"""
        )
        assert covering == []
    for name in ("pixels", "conv1", "conv2"):
        heading, _, sentence = TEXTS[name][0].partition("\n")
        for text in (heading.removeprefix("### "), sentence):
            assert visitor.page.get_by_text(text, exact=True).is_visible()


@shares_the_page
def test_page_speaks_the_browsers_language(visit):
    visitor = visit(**SIZES["phone"], locale="zh-CN")
    page = visitor.page
    assert page.get_by_role("heading", name="这是哪个数字？").is_visible()
    assert page.title() == "这是哪个数字？"
    visitor.draw(STROKES[3])
    visitor.expect("3 概率")
    page.get_by_role("button", name="清除").click()
    visitor.expect("请写一个数字")
    page.get_by_role("button", name="示例: 8").click()
    visitor.expect("8 概率")
    text = page.locator(".contain").inner_text()
    english = set(re.findall("[A-Za-z]{3,}[0-9]?", text))
    assert english <= {"conv1", "conv2", "MNIST"}, text


FIGURES = {
    "demo-desktop-light": {"color_scheme": "light"},
    "demo-desktop-dark": {"color_scheme": "dark"},
    "demo-phone-light": {"color_scheme": "light"},
    "demo-phone-dark": {"color_scheme": "dark"},
    "demo-desktop-zh": {"locale": "zh-CN"},
    "demo-phone-zh": {"locale": "zh-CN"},
}
WINDOW = {"viewport": {"width": 1120, "height": 1060}}
SCREEN = {**SIZES["phone"], "device_scale_factor": 2}
ROUND = {  # drawn as slowly as by hand
    3: [
        [
            *arc(0.47, 0.28, 0.27, 0.23, 200, 450, 90),
            *arc(0.47, 0.725, 0.3, 0.215, -90, 160, 90),
        ],
    ],
    5: [
        [(0.75, 0.07), (0.32, 0.08), (0.27, 0.45), *arc(0.48, 0.66, 0.28, 0.27, 235, 500, 90)],
    ],
}


@pytest.mark.release
@shares_the_page
@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_the_page(visit, screenshots, name):
    """PADDLE_MNIST_SCREENSHOTS=docs/figures puts them where the documentation shows them."""
    if name.endswith("zh") and not shutil.which("fc-list"):
        pytest.skip("fc-list (fontconfig) cannot be asked for a Chinese font")
    if name.endswith("zh") and not subprocess.check_output(["fc-list", ":lang=zh"]):
        pytest.skip("no Chinese font is installed")
    visitor = visit(**(SCREEN if "phone" in name else WINDOW), **FIGURES[name])
    visitor.draw(ROUND[5])
    visitor.expect("5 ")
    visitor.page.get_by_role("button", name=re.compile("^(Clear|清除)$")).click()
    visitor.expect("(Draw a digit|请写一个数字)")
    visitor.draw(ROUND[3])
    visitor.expect("3 ")
    visitor.page.wait_for_timeout(2000)  # until the last picture of the maps has come
    visitor.page.screenshot(path=screenshots / f"{name}.png")

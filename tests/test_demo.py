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
from draw import STROKES, as_bytes, draw_digit

from paddle_mnist import demo
from paddle_mnist.demo import answer, tiles
from paddle_mnist.infer import pretrained_predictor


@pytest.fixture(scope="module")
def predictor():
    return pretrained_predictor(("probabilities", "conv1", "conv2"))


def test_answer_tells_digit_probabilities_and_layers(predictor):
    words, bars, seen, first, second = answer(predictor, np.asarray(draw_digit(3, 1)))
    assert words.startswith("3, probability ") and max(bars, key=bars.get) == "3"
    assert sum(bars.values()) == pytest.approx(1, abs=1e-5)
    assert seen.shape == (280, 280) and {first.dtype, second.dtype} == {np.dtype("uint8")}
    assert first.max() == 255 and second.max() == 255


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (None, "Draw a digit."),
        (np.full((50, 50, 3), 255, np.uint8), "Blank; expected a digit"),
        (np.zeros((50, 50, 2), np.uint8), "expected uint8"),
        (np.zeros((3, 3), np.uint8), "3 x 3 pixels"),
    ],
)
def test_what_is_no_digit_is_said_on_the_page(predictor, picture, said):
    words, *others = answer(predictor, picture)
    assert said in words and others == [None] * 4


def test_answer_that_takes_too_long_is_given_up(predictor, monkeypatch):
    monkeypatch.setattr(demo, "PATIENCE", 0)
    with futures.ThreadPoolExecutor(1) as workers:
        words, *others = demo.in_time(workers, predictor, np.asarray(draw_digit(3, 1)))
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
def served(folder):
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tools/demo.py"), "--port", "0"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.match(r"page: (http://127\.0\.0\.1:\d+)/", line):
                yield process, found[1]
                break
        else:
            pytest.fail("".join(said))
    finally:
        process.kill()
        process.communicate()


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


@pytest.mark.slow
def test_programs_can_ask_and_ctrl_c_ends_it(tmp_path, four):
    pytest.importorskip("gradio", reason="the page needs gradio (extra web)")
    with served(tmp_path) as (process, address):
        found = ask(address, four)
        assert found[0].startswith("4, probability") and found[1]["label"] == "4"
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


@pytest.mark.slow
def test_page_that_ends_takes_nothing_from_another(tmp_path, four):
    pytest.importorskip("gradio", reason="the page needs gradio (extra web)")
    with served(tmp_path) as (ending, its_address), served(tmp_path) as (_, address):
        ask(its_address, four)
        *_, layer = ask(address, four)
        end(ending)
        assert urllib.request.urlopen(layer["url"], timeout=30).status == 200


# Of the software renderers the one that draws in half the time.
BROWSER = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a software renderer takes its time
@pytest.mark.xdist_group("browser")
def test_ten_digits_drawn_with_the_mouse_are_read(tmp_path, screenshots):
    pytest.importorskip("gradio", reason="the page needs gradio (extra web)")
    api = pytest.importorskip("playwright.sync_api", reason="no playwright (extra browser)")
    chromium = shutil.which("chromium") or pytest.skip("chromium is not installed")
    with served(tmp_path) as (_, address), api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER)
        page = browser.new_page(viewport={"width": 1100, "height": 1100})
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "request",
            lambda asked: errors.append(asked.url) if "analytics" in asked.url else None,
        )
        for digit, strokes in STROKES.items():
            page.goto(address)
            canvas = page.locator("canvas").first
            canvas.wait_for(timeout=60_000)
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(3000)  # until the brush is there
            box = canvas.bounding_box()
            side = 0.7 * min(box["width"], box["height"])
            left = box["x"] + (box["width"] - side) / 2
            top = box["y"] + (box["height"] - side) / 2
            for stroke in strokes:
                places = [(left + x * side, top + y * side) for x, y in stroke]
                page.mouse.move(*places[0])
                page.mouse.down()
                for place in places[1:]:
                    page.mouse.move(*place)
                page.mouse.up()
            words = page.get_by_label("Answer")
            api.expect(words).to_have_value(re.compile(f"^{digit}, probability"), timeout=60_000)
            page.wait_for_timeout(1000)
            page.screenshot(path=screenshots / f"demo-{digit}.png", full_page=True)
        page.set_viewport_size({"width": 390, "height": 844})  # a phone
        page.goto(address)
        page.locator("canvas").first.wait_for(timeout=30_000)
        wide = page.evaluate("document.documentElement.scrollWidth")
        page.screenshot(path=screenshots / "demo-phone.png", full_page=True)
        browser.close()
    assert wide <= 390
    assert not errors

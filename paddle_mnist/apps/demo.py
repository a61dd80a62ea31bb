"""A page to draw a digit on, or to drop a picture into; the net answers after each stroke."""

import contextlib
import importlib
import logging
import math
import os
import tempfile
import threading
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from paddle_mnist.apps.server import HEADERS, PUBLIC, is_loopback, listen, refusal
from paddle_mnist.apps.texts import LANGUAGES, REASONS, TEXTS
from paddle_mnist.errors import DeviceError, OutputError
from paddle_mnist.mnist import figures
from paddle_mnist.mnist.pictures import Reading, read_pictures
from paddle_mnist.mnist.predictor import DigitPredictor, open_predictor
from paddle_mnist.system.environment import environment, without_proxies

log = logging.getLogger("paddle_mnist")

OUTPUTS = ("probabilities", "conv1", "conv2")  # layers are shown if the model outputs them
MAX_PICTURE_BYTES = 8 * 2**20
REQUEST_OVERHEAD_BYTES = 2**16  # of a request, beside the picture
QUEUE_SIZE = 32  # requests; more are refused
CONCURRENCY = 2  # answers that are computed at the same time
RETENTION_SECONDS = 600  # how long pictures stay on the disk
PICTURE_SIDE = 280  # pixels
# gradio's drawing area has no tool at first, until it is ready, and after it has been cleared.
TAKE_BRUSH = """() => {
    const take = () => {
        if (document.querySelector('[aria-label="Brush Size"]')) return;
        document.querySelector('[aria-label=Brush]')?.click();
        setTimeout(take, 300);
    };
    setTimeout(take, 300);
}"""
# It may also send what was drawn before it was cleared.
ON_SHEET = "drawing => document.querySelector('[aria-label=Undo]')?.disabled ? null : drawing"

# Words, the probability of each digit, and pictures with their titles
Answer = tuple[str, Optional[dict[str, float]], list[tuple[np.ndarray, str]]]


def answer(predictor: DigitPredictor, picture: Optional[str], language: str = "en") -> Answer:
    """Read the digit in a picture's file, and answer in a language of `LANGUAGES`.

    Without a digit there are no probabilities, and the words explain why. predictor: outputs
    `probabilities`, and perhaps layers.
    """
    if picture is None:
        return _say("waiting", language), None, []
    (reading,) = read_pictures(predictor, [picture])
    pixels = reading.pixels
    seen = [] if pixels is None else [(_enlarged(pixels), _say("pixels", language))]
    if reading.error:
        return _reason(reading, language), None, seen
    names = [name for name in OUTPUTS if name in predictor.outputs]
    outputs = {name: value[0] for name, value in predictor.run(pixels, names).items()}
    words = _say("words", language).format(
        digit=reading.digit,
        probability=reading.probability,
        score="" if reading.score is None else _say("score", language).format(reading.score),
    )
    probabilities = {str(n): float(value) for n, value in enumerate(outputs["probabilities"])}
    layers = [(_enlarged(_tiles(outputs[name])), _say(name, language)) for name in names[1:]]
    return words, probabilities, seen + layers


def page(predictor: DigitPredictor) -> Any:
    """Return the page, a `gradio.Blocks` ready for `launch`. Raises DeviceError without gradio."""
    gradio = _gradio()
    say = _translations(gradio)

    # gradio passes the request to a parameter with this annotation
    def read(picture: Optional[str], request: gradio.Request) -> Answer:  # type: ignore[name-defined]  # imported late
        return answer(predictor, picture, _language_of(request.headers if request else {}))

    def draw(drawing: Optional[dict[str, Any]], request: gradio.Request) -> Answer:  # type: ignore[name-defined]  # as above
        return read(drawing["composite"] if drawing else None, request)

    with gradio.Blocks(
        title=TEXTS["title"][0],
        analytics_enabled=False,
        delete_cache=(RETENTION_SECONDS, RETENTION_SECONDS),
    ) as blocks:
        gradio.Markdown("# " + say("title"))
        with gradio.Row():
            with gradio.Column(), gradio.Tabs():
                with gradio.Tab(say("draw")):
                    drawing = gradio.Sketchpad(
                        show_label=False,
                        type="filepath",
                        format="png",
                        canvas_size=(PICTURE_SIDE, PICTURE_SIDE),
                        fixed_canvas=True,
                        layers=False,
                        transforms=(),
                        placeholder=say("here"),
                        brush=gradio.Brush(7, ["#000000"], color_mode="fixed"),
                    )
                with gradio.Tab(say("picture")):
                    # Not `Image`: it opens the file itself, and only shows "Error" if it cannot.
                    picture = gradio.File(show_label=False)
            with gradio.Column():
                words = gradio.Markdown(say("waiting"))
                # A heading would show the most probable digit, which for a flagged 1 is a 7.
                bars = gradio.Label(label=say("answer"), num_top_classes=3, show_heading=False)
        gallery = gradio.Gallery(
            label=say("layers"), columns=3, object_fit="contain", interactive=False, buttons=[]
        )
        # While an answer is computed, only the newest drawing waits.
        shown = {
            "outputs": [words, bars, gallery],
            "concurrency_limit": CONCURRENCY,
            "show_progress": "hidden",
            "trigger_mode": "always_last",
        }
        drawing.change(draw, drawing, js=ON_SHEET, api_visibility="private", **shown)
        picture.change(read, picture, api_name="read", **shown)
        blocks.load(js=TAKE_BRUSH)
        drawing.clear(js=TAKE_BRUSH)
    return blocks.queue(max_size=QUEUE_SIZE)


def serve(
    model: Optional[str],
    host: str,
    port: int,
    share: bool,
    run: Optional[str] = None,
    net: Optional[str] = None,
) -> None:
    """Serve the page until SIGINT or SIGTERM comes.

    model, run, net: the folder, run and net of `DigitPredictor`; by default the pretrained weights.
    Answers show the layers of OUTPUTS that the model outputs.
    port: 0 chooses a free one. share: at a public address, by gradio.
    Raises CheckpointError, ConfigError when it cannot listen there, DeviceError, and OutputError
    without a temporary folder.
    """
    with listen(host, port) as listening:  # gradio's error gives no reason
        port = listening.getsockname()[1]
    predictor = open_predictor(model, run, net, OUTPUTS, parallel=CONCURRENCY)
    is_public = share or not is_loopback(host)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # gradio requests its own page
    proxies = contextlib.nullcontext() if share else without_proxies()
    # Pages share gradio's folder, and each deletes the others' files when it ends (6.31).
    try:
        temporary = tempfile.TemporaryDirectory(prefix="paddle_mnist-")
    except OSError as error:
        raise OutputError(
            f"cannot create a temporary folder ({error.strerror or error}); free some space, or "
            "export TMPDIR=FOLDER"
        ) from error
    with temporary as folder, environment(GRADIO_TEMP_DIR=folder), proxies:
        gradio, blocks = _gradio(), page(predictor)
        middleware = importlib.import_module("starlette.middleware")  # gradio's web framework
        blocks.launch(
            server_name=f"[{host}]" if ":" in host else host,  # gradio puts it into addresses
            server_port=port,
            share=share,
            max_file_size=MAX_PICTURE_BYTES,
            prevent_thread_lock=True,
            app_kwargs={"middleware": [middleware.Middleware(Guard, is_public=is_public)]},
            i18n=_translations(gradio),
            # By default, browsers load fonts from Google.
            theme=gradio.themes.Default(font=["system-ui"], font_mono=["monospace"]),
            footer_links=["api"],
            quiet=True,
        )
        log.info("page: %s (Ctrl-C stops it)", blocks.local_url)
        if share:
            log.warning("%s: anyone with this address can use it", blocks.share_url)
        elif is_public:
            log.warning(PUBLIC, host)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        blocks.close()


class Guard:
    """An ASGI application that checks the headers of requests before gradio sees them.

    Refuses bodies that are too large or of unknown length. Unless the server is public, it also
    refuses requests from other web sites and removes the headers of proxies, from which gradio
    would take the address of its own page.
    """

    def __init__(self, app: Any, is_public: bool):
        self.app, self.is_public = app, is_public

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = self.app
        if scope["type"] != "lifespan":  # the server's own start and end
            pairs = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]]
            status, reason = self._refusal(dict(pairs))
            if not self.is_public:
                kept = [pair for pair in scope["headers"] if not pair[0].startswith(b"x-forwarded")]
                scope = {**scope, "headers": kept}
            if reason:
                responses = importlib.import_module("starlette.responses")
                app = responses.Response(reason, status, HEADERS)
        await app(scope, receive, send)

    def _refusal(self, headers: Mapping[str, str]) -> tuple[int, Optional[str]]:
        """Return a status and, in one line, why a request is refused; None if it is not."""
        reason = None if self.is_public else refusal(headers.get("host"), headers.get("origin"))
        if reason:
            return 403, reason
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal():
            return 411, "expected a length\n"
        if int(length) > MAX_PICTURE_BYTES + REQUEST_OVERHEAD_BYTES:
            return 413, f"expected at most {MAX_PICTURE_BYTES:,} bytes\n"
        return 200, None


def _say(key: str, language: str) -> str:
    return TEXTS[key][LANGUAGES.index(language)]


def _reason(reading: Reading, language: str) -> str:
    """Return why no digit is read; in English only for kinds that `REASONS` lacks."""
    english = str(reading.error)
    words = REASONS.get(reading.kind, english) if language == "zh" else english
    if reading.kind == "shapes":  # its error names an option of the command
        words = _say("shapes", language)
    return words[:1].upper() + words[1:]


def _translations(gradio: Any) -> Any:
    """Return the texts as a `gradio.I18n`, which uses the browser's language."""
    texts = {name: {key: _say(key, name) for key in TEXTS} for name in LANGUAGES}
    return gradio.I18n(**texts)


def _language_of(headers: Mapping[str, str]) -> str:
    """Return the language in which gradio shows the page; it knows Chinese as zh-CN and zh-TW."""
    accepted = headers.get("accept-language", "").lower()
    return "zh" if accepted.startswith(("zh-cn", "zh-tw")) else "en"


def _tiles(maps: np.ndarray) -> np.ndarray:
    """Arrange feature maps [C, H, W] side by side as uint8, each from black to white."""
    tiled = figures.tiles(figures.stretched(maps), columns=math.ceil(math.sqrt(len(maps))))
    pixels: np.ndarray = np.rint(np.ma.filled(tiled, 0)[:-1, :-1] * 255).astype(np.uint8)
    return pixels


def _enlarged(pixels: np.ndarray) -> np.ndarray:
    """Repeat pixels until the longer side has about PICTURE_SIDE of them."""
    times = max(2, PICTURE_SIDE // max(pixels.shape))
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def _gradio() -> Any:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # it would report every start
    try:
        with without_proxies():  # httpx needs a package for SOCKS proxies, and may lack it
            return importlib.import_module("gradio")
    except ImportError as error:
        raise DeviceError(
            f"gradio cannot be imported ({error}); install it with pip install 'paddle_mnist[web]'"
        ) from error

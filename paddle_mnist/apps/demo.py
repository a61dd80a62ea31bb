"""A page to draw a digit on, or to drop a picture into; the net answers while one draws."""

import contextlib
import importlib
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any, Optional, Union

import numpy as np

from paddle_mnist.apps.drawing_pad import drawing_pad, picture_bytes
from paddle_mnist.apps.loopback import PUBLIC, LoopbackASGI, is_loopback
from paddle_mnist.errors import ConfigError, DataError, DeviceError
from paddle_mnist.mnist.infer import pretrained_predictor, reading
from paddle_mnist.mnist.pictures import read_digit
from paddle_mnist.mnist.predictor import Predictor
from paddle_mnist.system import signals

log = logging.getLogger("paddle_mnist")

OUTPUTS = ("probabilities", "conv1", "conv2")
LARGEST = 8 * 2**20  # bytes of a picture that is sent
AROUND = 2**16  # bytes around it in a request
PATIENCE = 10  # seconds for an answer
WAITING = 32  # requests; more are refused
AT_ONCE = 2  # computations
KEPT = 600  # seconds that pictures stay on the disk
SHOWN = 280  # pixels of a side
TITLE = "Which digit is it?"


def tiles(maps: np.ndarray) -> np.ndarray:
    """Feature maps [C, H, W] side by side, each from its least, black, to its most: uint8."""
    low, high = maps.min(axis=(1, 2), keepdims=True), maps.max(axis=(1, 2), keepdims=True)
    maps = (maps - low) / np.maximum(high - low, 1e-12)
    count, height, width = maps.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    page = np.zeros((rows * (height + 1), columns * (width + 1)))
    for number, one in enumerate(maps):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        page[top : top + height, left : left + width] = one
    return np.rint(page * 255).astype(np.uint8)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def enlarged(pixels: np.ndarray) -> np.ndarray:
    times = max(2, SHOWN // max(pixels.shape))
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def _sent_picture(image: Any) -> Union[str, bytes, None]:
    """What a `gradio.Image` was sent: the path of the uploaded file, or the bytes of a data URL."""
    if image is None:
        return None
    return image.path or picture_bytes(image.url)


def answer(
    predictor: Predictor, picture: Union[str, bytes, None]
) -> tuple[str, Any, Any, Any, Any]:
    """What the page shows for a picture: words, probabilities, what the net saw, two layers.

    picture: the path of a file, or a file's bytes; None for no picture. Where no digit is read the
    words say why, and there are neither probabilities nor layers.
    """
    if picture is None:
        return "Draw a digit.", None, None, None, None
    try:
        digit = read_digit(picture)
    except DataError as error:
        return _sentence(str(error)), None, None, None, None
    outputs = {name: value[0] for name, value in predictor.run(digit.pixels, OUTPUTS).items()}
    result = reading("", digit, outputs["probabilities"])
    if result.error:
        return _sentence(result.error), None, enlarged(digit.pixels), None, None
    words = f"{result.digit}, probability {result.probability:.1%} {result.note}"
    bars = {str(number): float(value) for number, value in enumerate(outputs["probabilities"])}
    return (
        words.strip(),
        bars,
        enlarged(digit.pixels),
        enlarged(tiles(outputs["conv1"])),
        enlarged(tiles(outputs["conv2"])),
    )


def in_time(
    workers: futures.Executor, predictor: Predictor, picture: Union[str, bytes, None]
) -> tuple[str, Any, Any, Any, Any]:
    """`answer`, or after PATIENCE seconds that there is none."""
    asked = workers.submit(answer, predictor, picture)
    try:
        return asked.result(PATIENCE)
    except futures.TimeoutError:
        asked.cancel()
        said = f"No answer within {PATIENCE} s; try again, or with a smaller picture."
        return said, None, None, None, None


class SizeLimit:
    """Refuses requests whose body is larger than a picture may be, or of unsaid length (ASGI)."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        headers = dict(scope.get("headers", ()))
        length = headers.get(b"content-length", b"0")
        unsaid = b"transfer-encoding" in headers or not length.isdigit()
        if not unsaid and int(length) <= LARGEST + AROUND:
            await self.app(scope, receive, send)
            return
        status = 411 if unsaid else 413
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def page(predictor: Predictor) -> Any:
    """The page, a `gradio.Blocks`, ready for `launch`. Raises DeviceError without gradio."""
    gradio = _gradio()
    workers = futures.ThreadPoolExecutor(AT_ONCE, "answer")
    picture = {"interactive": False, "buttons": ["fullscreen"]}  # none that sends it elsewhere
    with gradio.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT, KEPT)) as blocks:
        gradio.Markdown(
            f"# {TITLE}\nDraw one, or drop a picture of one. 画一个数字，或放入一张图片。"
        )
        with gradio.Row():
            with gradio.Column():
                with gradio.Tab("Draw"):
                    drawn = drawing_pad(gradio)
                with gradio.Tab("Picture"):
                    dropped = gradio.Image(
                        label="Picture",
                        type="filepath",
                        image_mode=None,  # read here, as every picture is
                        sources=["upload"],
                        buttons=[],
                    )
                    # gradio would open the picture itself and say only "Error" where it cannot.
                    dropped.preprocess = _sent_picture
                words = gradio.Textbox(label="Answer", interactive=False)
                seen = gradio.Image(label="What the net saw", **picture)
            with gradio.Column():
                bars = gradio.Label(label="Probabilities", num_top_classes=10)
        with gradio.Row():
            first = gradio.Image(label="conv1", **picture)
            second = gradio.Image(label="conv2", **picture)
        shown = [words, bars, seen, first, second]

        def draw(drawing: Optional[str]):
            return in_time(workers, predictor, picture_bytes(drawing) if drawing else None)

        def read(picture: Union[str, bytes, None]):
            return in_time(workers, predictor, picture)

        # While an answer is computed only the newest drawing waits for the next.
        limits = {
            "concurrency_limit": AT_ONCE,
            "show_progress": "hidden",
            "trigger_mode": "always_last",
        }
        drawn.input(draw, drawn, shown, api_visibility="private", **limits)
        dropped.change(read, dropped, shown, api_name="read", **limits)
    return blocks.queue(max_size=WAITING)


@contextlib.contextmanager
def _folder_of_its_own() -> Iterator[None]:
    """For what is sent: gradio's pages share one, and each, ended, deletes the others' (6.31)."""
    name = "GRADIO_TEMP_DIR"
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory(prefix="paddle_mnist-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


@_folder_of_its_own()
def serve(model: Optional[str], host: str, port: int, share: bool) -> None:
    """Serve the page until SIGTERM or SIGINT comes.

    model: a folder of `tools/export_model.py` with OUTPUTS; by default the pretrained weights.
    port: 0 for the first that is free from 7860 on.
    Raises CheckpointError, ConfigError when it cannot listen there, DeviceError.
    """
    if not 0 <= port <= 65_535:
        raise ConfigError(f"port is {port}; expected 0 to 65535")
    if model:
        predictor = Predictor(model, parallel=AT_ONCE)
        missing = [name for name in OUTPUTS if name not in predictor.outputs]
        if missing:
            raise ConfigError(
                f"{model}: gives no {', '.join(missing)}; export it with --outputs "
                f"{','.join(OUTPUTS)}"
            )
    else:
        predictor = pretrained_predictor(OUTPUTS, parallel=AT_ONCE)
    blocks = page(predictor)
    starlette = importlib.import_module("starlette.middleware")  # what gradio serves with
    is_public = share or not is_loopback(host)
    middleware = [SizeLimit] if is_public else [LoopbackASGI, SizeLimit]
    logging.getLogger("httpx").setLevel(logging.WARNING)  # gradio asks itself whether it is there
    try:
        blocks.launch(
            server_name=f"[{host}]" if ":" in host else host,  # gradio puts it into addresses
            server_port=port or None,
            share=share,
            max_file_size=LARGEST,
            prevent_thread_lock=True,
            app_kwargs={"middleware": [starlette.Middleware(layer) for layer in middleware]},
            quiet=True,
        )
    except OSError as error:
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({error}); choose another --port or --host"
        ) from error
    log.info("page: %s (Ctrl-C stops it)", blocks.local_url)
    if share:
        log.warning("%s: whoever has this address can use it", blocks.share_url)
    elif is_public:
        log.warning(PUBLIC, host)
    with signals.handlers_installed(), signals.deferred():
        while signals.pending() is None:
            time.sleep(0.1)
        signals.clear()
    blocks.close()


def _gradio() -> Any:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # it would tell its makers of every start
    try:
        return importlib.import_module("gradio")
    except ImportError as error:
        raise DeviceError(
            f"gradio cannot be imported ({error}); install it with pip install 'paddle_mnist[web]'"
        ) from error

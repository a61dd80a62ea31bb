"""A page to draw a digit on, or to drop a picture into; the net answers while one draws."""

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, Optional

from paddle_mnist.apps.answers import OUTPUTS, Answer, Picture, answer_in_time
from paddle_mnist.apps.drawing_pad import picture_bytes
from paddle_mnist.apps.layout import STYLE, lay_out
from paddle_mnist.apps.loopback import (
    PUBLIC,
    Check,
    CheckedASGI,
    is_for_loopback,
    is_loopback,
    listen,
)
from paddle_mnist.apps.wording import in_language, language_of, translations
from paddle_mnist.errors import ConfigError, DeviceError
from paddle_mnist.mnist.infer import open_predictor
from paddle_mnist.mnist.predictor import DigitPredictor
from paddle_mnist.system import signals
from paddle_mnist.system.files import temporary_folder
from paddle_mnist.system.surroundings import environment, without_proxies

log = logging.getLogger("paddle_mnist")

LARGEST_BYTES = 8 * 2**20  # of a picture that is sent
REQUEST_OVERHEAD_BYTES = 2**16  # of a request, beside the picture
QUEUE_SIZE = 32  # requests; more are refused
AT_ONCE = 2  # computations
RETENTION_SECONDS = 600  # that pictures stay on the disk


def has_size(headers: Mapping[str, str]) -> Optional[tuple[int, str]]:
    """Check that a request's body is not too large, and of known length (see `CheckedASGI`)."""
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not length.isdecimal():
        return 411, "expected a length\n"
    if int(length) > LARGEST_BYTES + REQUEST_OVERHEAD_BYTES:
        return 413, f"expected at most {LARGEST_BYTES:,} bytes\n"
    return None


def page(predictor: DigitPredictor) -> Any:
    """Return the page, a `gradio.Blocks` ready for `launch`. Raises DeviceError without gradio."""
    gradio = _gradio()
    workers = futures.ThreadPoolExecutor(AT_ONCE, "answer")

    # gradio looks for the class of its own among the annotations
    def read(picture: Picture, request: gradio.Request) -> Answer:  # type: ignore[name-defined]  # imported late
        answer = answer_in_time(workers, predictor, picture)
        return answer._replace(words=in_language(answer.words, language_of(request)))

    def draw(drawing: Optional[str], request: gradio.Request) -> Answer:  # type: ignore[name-defined]  # as above
        return read(picture_bytes(drawing) if drawing else None, request)

    with gradio.Blocks(
        analytics_enabled=False, delete_cache=(RETENTION_SECONDS, RETENTION_SECONDS)
    ) as blocks:
        drawing, picture, shown = lay_out(gradio, translations(gradio))
        # While an answer is computed only the newest drawing waits for the next.
        limits = {
            "concurrency_limit": AT_ONCE,
            "show_progress": "hidden",
            "trigger_mode": "always_last",
        }
        drawing.input(draw, drawing, shown, api_visibility="private", **limits)
        picture.change(read, picture, shown, api_name="read", **limits)
    return blocks.queue(max_size=QUEUE_SIZE)


@contextlib.contextmanager
def _folder_of_its_own() -> Iterator[None]:
    """Give gradio a folder of its own for what is sent.

    Its pages share one, and each of them deletes the others' files when it ends (6.31).
    """
    with temporary_folder() as folder, environment(GRADIO_TEMP_DIR=str(folder)):
        yield


@_folder_of_its_own()
def serve(
    model: Optional[str],
    host: str,
    port: int,
    share: bool,
    run: Optional[str] = None,
    net: Optional[str] = None,
) -> None:
    """Serve the page until SIGTERM or SIGINT comes.

    model, run, net: what `DigitPredictor` takes as its folder, run and net; of layers only what an
    exported model gives is shown. By default the pretrained weights.
    port: 0 for the first that is free from 7860 on. share: at a public address, by gradio.
    Raises CheckpointError, ConfigError when it cannot listen there, DeviceError.
    """
    listen(host, port).close()  # gradio's error gives no reason, and a remedy of its own
    blocks = page(open_predictor(model, run, net, OUTPUTS, parallel=AT_ONCE))
    is_public = share or not is_loopback(host)
    _launch(blocks, host, port, share, [has_size] if is_public else [is_for_loopback, has_size])
    log.info("page: %s (Ctrl-C stops it)", blocks.local_url)
    if share:
        log.warning("%s: whoever has this address can use it", blocks.share_url)
    elif is_public:
        log.warning(PUBLIC, host)
    with signals.handlers_installed():
        signals.wait()
    blocks.close()


def _launch(blocks: Any, host: str, port: int, share: bool, checks: Sequence[Check]) -> None:
    """Start the server of a page. checks: of requests."""
    starlette = importlib.import_module("starlette.middleware")  # what gradio serves with
    logging.getLogger("httpx").setLevel(logging.WARNING)  # gradio asks itself whether it is there
    try:
        with contextlib.nullcontext() if share else without_proxies():
            blocks.launch(
                server_name=f"[{host}]" if ":" in host else host,  # gradio puts it into addresses
                server_port=port or None,
                share=share,
                max_file_size=LARGEST_BYTES,
                prevent_thread_lock=True,
                app_kwargs={"middleware": [starlette.Middleware(CheckedASGI, checks=checks)]},
                i18n=translations(_gradio()),
                head=STYLE,
                quiet=True,
            )
    except OSError as error:
        raise ConfigError(
            f"{host}:{port}: cannot listen there, no port is free; choose another --port or --host"
        ) from error
    except ImportError as error:  # of what httpx needs for a proxy, on the way to gradio's tunnel
        raise DeviceError(f"the page cannot be shared: {error}") from error


def _gradio() -> Any:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # it would tell its makers of every start
    try:
        with without_proxies():  # httpx refuses SOCKS proxies that it has no package for
            return importlib.import_module("gradio")
    except ImportError as error:
        raise DeviceError(
            f"gradio cannot be imported ({error}); install it with pip install 'paddle_mnist[web]'"
        ) from error

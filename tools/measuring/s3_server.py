"""An S3 server on the loopback address that counts what it is sent."""

import contextlib
import ctypes
import multiprocessing
import os
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

BUCKET = "runs"


class Sent(NamedTuple):
    """What a server has received. size: bytes of the bodies. manifests: of whole checkpoints."""

    requests: int
    size: int
    manifests: int


@contextlib.contextmanager
def s3_server() -> Iterator[Callable[[], Sent]]:
    """Run moto's server in a process of its own, with an empty bucket that the environment names.

    Yields a function that returns what was sent. Raises ModuleNotFoundError without moto.
    """
    import moto.moto_server.werkzeug_app  # noqa: F401

    spawn = multiprocessing.get_context("spawn")
    counts, port = spawn.Array(ctypes.c_int64, len(Sent._fields)), spawn.SimpleQueue()
    process = spawn.Process(target=_serve, args=(port, counts), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{port.get()}"
    found = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "name",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()
        counts[:] = [0] * len(counts)
        with patch.dict(os.environ, found):
            yield lambda: Sent(*counts)
    finally:
        process.kill()
        process.join()


def _serve(port: Any, counts: Any) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        path, is_upload = environ["PATH_INFO"], environ["REQUEST_METHOD"] == "PUT"
        with counts.get_lock():
            counts[0] += 1
            counts[1] += int(environ.get("CONTENT_LENGTH") or 0)
            counts[2] += is_upload and "/checkpoints/" in path and path.endswith(".json")
        return application(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    port.put(server.port)
    server.serve_forever()

"""An S3 server on the loopback address that counts what it is sent."""

import contextlib
import os
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

BUCKET = "runs"


class Sent(NamedTuple):
    """What a server has received. size: bytes of the bodies. manifests: of whole checkpoints."""

    requests: int = 0
    size: int = 0
    manifests: int = 0


@contextlib.contextmanager
def s3_server() -> Iterator[Callable[[], Sent]]:
    """Run moto's server in a thread, with an empty bucket that the environment names.

    Yields a function that returns what was sent. Raises ModuleNotFoundError without moto.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)
    sent, lock = Counter[str](), threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        path, is_upload = environ["PATH_INFO"], environ["REQUEST_METHOD"] == "PUT"
        is_manifest = is_upload and "/checkpoints/" in path and path.endswith(".json")
        size = int(environ.get("CONTENT_LENGTH") or 0)
        with lock:
            sent.update(requests=1, size=size, manifests=is_manifest)
        return application(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.port}"
    found = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "name",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        for method, path in (("POST", "moto-api/reset"), ("PUT", BUCKET)):
            urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", method=method)).close()
        sent.clear()
        with patch.dict(os.environ, found):
            yield lambda: Sent(**sent)
    finally:
        server.shutdown()
        server.server_close()

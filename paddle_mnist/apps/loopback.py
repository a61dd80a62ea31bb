"""Keep other web sites away from a server that only this machine may reach.

Listening at 127.0.0.1 is not enough. A site that is open in the user's browser can have its own
name resolve to 127.0.0.1 (DNS rebinding) and then read what the server answers, or it can send a
request across sites without reading the answer. Browsers name the site in both cases: the first
in the header `Host`, the second in `Origin`.
"""

import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional
from urllib.parse import urlsplit

from paddle_mnist.errors import ConfigError

PUBLIC = (  # a warning; %s is the address that a server listens at
    "%s is not loopback: whoever reaches this machine can use this server, and so can every web "
    "site in their browsers"
)
FORBIDDEN = 403
HEADERS = (("Content-Type", "text/plain; charset=utf-8"), ("X-Content-Type-Options", "nosniff"))


def is_loopback(name: Optional[str]) -> bool:
    """Return whether a host name or address, without a port, is always this machine's own."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name or "").is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. port: 0 for any that is free. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({reason}); choose another --port or --host"
        ) from error


def refusal(host: Optional[str], origin: Optional[str]) -> Optional[str]:
    """Return in one line why a server on loopback must refuse a request; None if it may answer.

    host, origin: the values of these headers, None where the request has none.
    """
    if not is_loopback(_hostname(f"//{host or ''}")):
        wrong = f"Host is {host or 'missing'}"
    elif origin is not None and not is_loopback(_hostname(origin)):
        wrong = f"Origin is {origin}"
    else:
        return None
    return (
        f"{wrong}; expected localhost, 127.0.0.1 or [::1], since this server is for its own "
        "machine only; start it with another --host to open it to others\n"
    )


def _hostname(url: str) -> Optional[str]:
    try:
        return urlsplit(url).hostname
    except ValueError:  # brackets that do not match, say
        return None


# What is wrong with a request, by its headers: the status and the words of the answer; or None.
Check = Callable[[Mapping[str, str]], Optional[tuple[int, str]]]


def is_for_loopback(headers: Mapping[str, str]) -> Optional[tuple[int, str]]:
    """Check as `refusal` does."""
    reason = refusal(headers.get("host"), headers.get("origin"))
    return None if reason is None else (FORBIDDEN, reason)


class CheckedASGI:
    """An ASGI application that answers the requests that pass some checks, and refuses others."""

    def __init__(self, app: Any, checks: Sequence[Check]):
        self.app, self.checks = app, checks

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        found = [(name, value.decode("latin-1")) for name, value in scope.get("headers", ())]
        headers = {name.decode("latin-1"): value for name, value in found}
        is_request = scope["type"] != "lifespan"  # the server's own start and end
        refusals = [wrong for check in self.checks if is_request and (wrong := check(headers))]
        if not refusals:
            await self.app(scope, receive, send)
            return
        status, words = refusals[0]
        encoded = [(name.lower().encode(), value.encode()) for name, value in HEADERS]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": words.encode()})


class LoopbackWSGI:
    """A WSGI application that answers 403 where `refusal` says so."""

    def __init__(self, app: Callable[..., Iterable[bytes]]):
        self.app = app

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        reason = refusal(environ.get("HTTP_HOST"), environ.get("HTTP_ORIGIN"))
        if reason is None:
            return self.app(environ, start_response)
        start_response(f"{FORBIDDEN} Forbidden", list(HEADERS))
        return [reason.encode()]

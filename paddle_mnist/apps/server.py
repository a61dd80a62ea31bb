"""Listen at an address, and keep other web sites away from a server of this machine alone.

Listening at 127.0.0.1 is not enough. A site that is open in the user's browser can have its own
name resolve to 127.0.0.1 (DNS rebinding) and then read what the server answers, or it can send a
request across sites without reading the answer. Browsers name the site in both cases: the first
in the header `Host`, the second in `Origin`.
"""

import ipaddress
import socket
from typing import Optional
from urllib.parse import urlsplit

from paddle_mnist.errors import ConfigError

PUBLIC = (  # a warning; %s is the address that a server listens at
    "%s is not loopback: whoever reaches this machine can use this server, and so can every web "
    "site in their browsers"
)
# Of a refusal, which quotes the request: browsers may not take it for a page.
HEADERS = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}


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
    except ValueError:  # such as brackets that do not match
        return None

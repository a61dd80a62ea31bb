"""Listen at an address, and refuse requests from other web sites to a local server.

Listening at 127.0.0.1 is not enough. A site that is open in the user's browser can let its own
name resolve to 127.0.0.1 (DNS rebinding) and read the server's answers, or it can send a
cross-site request without reading the answer. Browsers name the site in the header `Host` in the
first case, and in `Origin` in the second.
"""

import ipaddress
import socket
from typing import Optional
from urllib.parse import urlsplit

from paddle_mnist.errors import ConfigError

PUBLIC = (  # a warning; %s is the address that a server listens at
    "%s is not loopback: anyone who reaches this machine can use this server, and so can every web "
    "site in their browsers"
)
# Headers of a refusal: it quotes the request, and browsers must not treat that as a page.
HEADERS = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}


def is_loopback(name: Optional[str]) -> bool:
    """Return whether a host name or address, without a port, is always this machine."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name or "").is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. port: 0 chooses a free one. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{host}:{port}: cannot listen there ({reason}); choose another --port or --host"
        ) from error


def refusal(host: Optional[str], origin: Optional[str]) -> Optional[str]:
    """Return in one line why a server on loopback refuses a request; None if it does not.

    host, origin: the values of these headers; None if they are missing.
    """
    if not is_loopback(_hostname(f"//{host or ''}")):
        wrong = f"Host is {host or 'missing'}"
    elif origin is not None and not is_loopback(_hostname(origin)):
        wrong = f"Origin is {origin}"
    else:
        return None
    return (
        f"{wrong}; expected localhost, 127.0.0.1 or [::1], since this server is only for this "
        "machine; start it with another --host to open it to others\n"
    )


def _hostname(url: str) -> Optional[str]:
    """Return the host of a URL that consists of a scheme, host and port alone; else None."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as brackets that do not match
        return None
    return None if "@" in parts.netloc or any(parts[2:]) else parts.hostname

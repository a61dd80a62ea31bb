"""Requests that reach a server on loopback, and those that are refused."""

from paddle_mnist.apps.server import refusal

ANSWERED = [  # the headers Host and Origin
    ("127.0.0.1:7860", None),
    ("127.1.2.3", None),
    ("LOCALHOST:80", None),
    ("[::1]:7860", None),
    ("localhost:7860", "http://127.0.0.1:3000"),  # another page of this machine
]
REFUSED = [
    (None, None, "Host is missing"),
    ("", None, "Host is missing"),
    ("0.0.0.0:7860", None, "Host is 0.0.0.0:7860; expected localhost"),
    ("192.168.1.2", None, "Host is 192.168.1.2"),
    ("[::1", None, "Host is [::1"),
    ("site.example@127.0.0.1", None, "Host is site.example@127.0.0.1"),
    ("127.0.0.1/site.example", None, "Host is 127.0.0.1/site.example"),
    ("127.0.0.1?site.example", None, "Host is 127.0.0.1?site.example"),
    ("127.0.0.1.site.example", None, "Host is 127.0.0.1.site.example"),
    ("site.example", "http://site.example", "Host is site.example"),
    ("localhost:7860", "http://localhost.site.example", "Origin is http://localhost.site"),
    ("localhost:7860", "null", "Origin is null"),  # a file, or a frame in a sandbox
]


def test_request_is_refused_by_host_and_origin():
    assert [refusal(host, origin) for host, origin in ANSWERED] == [None] * len(ANSWERED)
    for host, origin, reason in REFUSED:
        refused = refusal(host, origin)
        assert refused.startswith(reason) and "--host" in refused and refused.count("\n") == 1

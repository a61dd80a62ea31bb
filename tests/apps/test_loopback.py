"""Requests that reach a server on loopback, and those that are refused."""

import pytest

from paddle_mnist.apps.loopback import is_loopback, refusal


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("localhost.site.example", False),
        ("127.0.0.1.site.example", False),
        ("", False),
        (None, False),
    ],
)
def test_loopback_is_what_always_means_this_machine(name, expected):
    assert is_loopback(name) == expected


@pytest.mark.parametrize(
    ("host", "origin", "reason"),
    [
        ("127.0.0.1:7860", None, None),
        ("localhost", None, None),
        ("LOCALHOST:80", None, None),
        ("[::1]:7860", None, None),
        ("localhost:7860", "http://localhost:7860", None),
        ("localhost:7860", "http://127.0.0.1:3000", None),  # another page of this machine
        (None, None, "Host is missing"),
        ("", None, "Host is missing"),
        ("site.example:7860", None, "Host is site.example:7860; expected localhost"),
        ("0.0.0.0:7860", None, "Host is 0.0.0.0:7860"),
        ("[::1", None, "Host is [::1"),
        ("site.example", "http://site.example", "Host is site.example"),
        ("localhost:7860", "https://site.example", "Origin is https://site.example; expected"),
        ("localhost:7860", "http://localhost.site.example", "Origin is http://localhost.site"),
        ("localhost:7860", "null", "Origin is null"),  # a file, or a frame in a sandbox
    ],
)
def test_request_is_refused_by_host_and_origin(host, origin, reason):
    refused = refusal(host, origin)
    if reason is None:
        assert refused is None
    else:
        assert refused.startswith(reason) and "--host" in refused and refused.count("\n") == 1

"""The types that the package promises."""

import os

import public_signatures


def test_public_signatures_are_those_that_were_written_down():
    """A change of them is to be seen: UPDATE_SIGNATURES=1 writes them down."""
    now = public_signatures.public_signatures()
    if os.environ.get("UPDATE_SIGNATURES"):
        public_signatures.PATH.write_text(now)
    assert now == public_signatures.PATH.read_text(), "run again with UPDATE_SIGNATURES=1"

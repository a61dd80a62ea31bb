"""Paddle 2.6.2 exports functions of zlib, with which Python's own crashes."""

import paddle  # noqa: F401, I001, before zlib
import gzip

assert gzip.decompress(gzip.compress(bytes(10**6))) == bytes(10**6)

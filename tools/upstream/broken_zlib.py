"""Paddle 2.6.2 exports functions of zlib, with which Python's own crashes."""

import subprocess
import sys

CODE = """
import paddle
import gzip
assert gzip.decompress(gzip.compress(bytes(10**6))) == bytes(10**6)
"""
ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True).returncode
print("still there" if ended else "fixed")

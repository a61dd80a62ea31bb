"""Importing visualdl fails where the home folder cannot be written."""

import os

os.environ["HOME"] = "/dev/null"
try:
    import visualdl  # noqa: F401
except OSError as error:
    raise AssertionError from error

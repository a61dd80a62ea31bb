"""Importing visualdl fails where the home folder cannot be written."""

import os

os.environ["HOME"] = "/dev/null"
import visualdl  # noqa: F401

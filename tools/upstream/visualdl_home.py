"""Importing visualdl fails where the home folder cannot be written."""

import subprocess
import sys

CODE = "import visualdl"
home = {"HOME": "/dev/null", "PATH": ""}
ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, env=home).returncode
print("still there" if ended else "fixed")

"""Run a command, and print its exit code, errors, output, times and peak memory as JSON.

This process is small because on Linux the peak memory of a command is at least that of the process
that starts it.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time

if __name__ == "__main__":
    # Files, because a process that outlives the command may keep its pipes open.
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as printed:
        began = time.perf_counter()
        code = subprocess.run(sys.argv[1:], stdout=printed, stderr=errors).returncode
        seconds = time.perf_counter() - began
        texts = []
        for file in (errors, printed):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps([code, *texts, seconds, peak_kib / 1024]))

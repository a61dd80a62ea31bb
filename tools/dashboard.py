#!/usr/bin/env python
"""Show runs in VisualDL: see `paddle_mnist.commands.dashboard`."""

from paddle_mnist.commands import run_script
from paddle_mnist.commands.dashboard import main

if __name__ == "__main__":
    run_script(main, abandon_threads=True)

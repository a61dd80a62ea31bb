#!/usr/bin/env python
"""Show runs in VisualDL: see `paddle_mnist.commands.dashboard`."""

from paddle_mnist.commands import run_script

if __name__ == "__main__":
    run_script("dashboard", abandon_threads=True)

#!/usr/bin/env python
"""Draw the figures of runs again: see `paddle_mnist.commands.plot`."""

from paddle_mnist.commands import run_script
from paddle_mnist.commands.plot import main

if __name__ == "__main__":
    run_script(main)

#!/usr/bin/env python
"""Serve a page to draw digits on: see `paddle_mnist.commands.demo`."""

from paddle_mnist.commands import run_script
from paddle_mnist.commands.demo import main

if __name__ == "__main__":
    run_script(main)

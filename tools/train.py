#!/usr/bin/env python
"""Train the net, evaluate it, report: see `paddle_mnist.commands.train`."""

from paddle_mnist.commands import run_script

if __name__ == "__main__":
    run_script("train")

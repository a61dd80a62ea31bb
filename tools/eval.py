#!/usr/bin/env python
"""Evaluate a checkpoint: see `paddle_mnist.commands.eval`."""

from paddle_mnist.commands import run_script

if __name__ == "__main__":
    run_script("eval")

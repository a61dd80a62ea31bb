#!/usr/bin/env python
"""Train with parameter servers: see `paddle_mnist.commands.train_ps`."""

from paddle_mnist.commands import run_script
from paddle_mnist.commands.train_ps import main

if __name__ == "__main__":
    run_script(main)

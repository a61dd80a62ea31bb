#!/usr/bin/env python
"""List, verify or prune checkpoints: see `paddle_mnist.commands.checkpoints`."""

from paddle_mnist.commands import run_script
from paddle_mnist.commands.checkpoints import main

if __name__ == "__main__":
    run_script(main)

#!/usr/bin/env python
"""Export a trained model for inference: see `paddle_mnist.commands.export_model`."""

from paddle_mnist.commands import run_script
from paddle_mnist.commands.export_model import main

if __name__ == "__main__":
    run_script(main)

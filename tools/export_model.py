#!/usr/bin/env python
"""Export a trained model for inference: see `paddle_mnist.commands.export_model`."""

from paddle_mnist.commands import run_script

if __name__ == "__main__":
    run_script("export_model")

#!/usr/bin/env python
"""Read the digits in pictures: see `paddle_mnist.commands.infer`."""

from paddle_mnist.commands import run_script

if __name__ == "__main__":
    run_script("infer")

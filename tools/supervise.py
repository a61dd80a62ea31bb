#!/usr/bin/env python
"""Start a script again when it dies or hangs: see `paddle_mnist.commands.supervise`."""

from paddle_mnist.commands import run_script
from paddle_mnist.commands.supervise import main

if __name__ == "__main__":
    run_script(main)

"""Run a command: `python -m paddle_mnist train --epochs 3`."""

from paddle_mnist.commands._dispatch import main

if __name__ == "__main__":
    main()

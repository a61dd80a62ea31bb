#!/usr/bin/env python
"""Train the net, evaluate it, report. Run the same command again to go on after a stop."""

from paddle_mnist.commands.cli import (
    Parser,
    add_train_options,
    run_command,
    supervised,
    train_config,
)
from paddle_mnist.system.devices import require_paddle


def main(argv) -> int:
    parser = Parser(prog="tools/train.py", description=__doc__)
    add_train_options(parser)
    args = parser.parse_args(argv)
    config = train_config(args)
    code = supervised(config, argv)
    if code is not None:
        return code
    require_paddle()
    from paddle_mnist import train_and_evaluate

    train_and_evaluate(config, fresh=args.fresh)
    return 0


if __name__ == "__main__":
    run_command(main)

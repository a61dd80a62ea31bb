"""Train the net, evaluate it, report. To resume after a stop, run the same command again."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from paddle_mnist.checkpoint.run import DEFAULT_OUTPUT, RunDirectory
from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._train_options import add_train_options, train_config
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.mnist.options import net_sizes
from paddle_mnist.plots.drawing_process import drawing_process
from paddle_mnist.system import heartbeat
from paddle_mnist.system.children import supervise
from paddle_mnist.system.devices import installed_builds, require_paddle
from paddle_mnist.system.signals import deferred


@command()
def main(argv: Sequence[str]) -> int:
    """Train as the arguments specify; return the exit code."""
    parser = Parser("paddle-mnist train", __doc__, "--epochs 3 --output work/output/mine")
    add_train_options(parser)
    args = parser.parse_args(argv)
    config = train_config(args)
    if config.command.max_restarts and not heartbeat.is_supervised():
        return _supervise(config, argv)
    has_figures = config.figures.draw and config.processes.nprocs == 1 and _is_first_process()
    begins = args.fresh or config.resume == "off"
    # A finished run is mostly only reported. If it is to train on, this process draws its figures.
    result = RunDirectory(config.output or DEFAULT_OUTPUT).result
    is_finished = not begins and os.path.exists(result)  # False for a name that cannot be
    with drawing_process(has_figures and not is_finished):
        with deferred():
            _compile_ahead(config)
            require_paddle()
            from paddle_mnist import train_and_evaluate

        train_and_evaluate(config, fresh=args.fresh)
    return 0


def _is_first_process() -> bool:
    """Return whether this process is the only one, or the first that Paddle's launch started."""
    return os.environ.get("PADDLE_TRAINER_ID", "0") == "0"


def _compile_ahead(config: TrainConfig) -> None:
    """Have the convolution compiled while Paddle is imported and the data are read."""
    gpu = config.device != "cpu" and "paddlepaddle-gpu" in installed_builds()
    if "paddle" in sys.modules:  # nothing to wait for; and Paddle 2 must not come before numba
        return
    if config.net.fast_conv == "off" or gpu or not _is_first_process():
        return
    with contextlib.suppress(ImportError):  # of numba; training reports that it is missing
        from paddle_mnist.nn.compiled_net import compile_ahead

        compile_ahead(net_sizes(has_dropout=config.net.dropout > 0))


def _supervise(config: TrainConfig, argv: Sequence[str]) -> int:
    """Run this command in another process, restart it when it dies, and return its exit code.

    Once a start has moved an old run directory aside, restarts no longer pass `--fresh`.
    """
    if int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise ConfigError(
            f"max_restarts is {config.command.max_restarts}, but Paddle's launch has started this "
            "process as one of several, which cannot be restarted alone; expected plain "
            "python with --nprocs and --max_restarts, or launch's own --elastic_level and "
            "--max_restart"
        )
    run = RunDirectory(config.output or DEFAULT_OUTPUT)
    old_config = _identity(run.config)

    def start(restart: bool) -> list[str]:
        arguments = list(argv)
        if restart and (old_config is None or _identity(run.config) != old_config):
            arguments = [argument for argument in argv if argument != "--fresh"]
            arguments += ["--resume", "auto"] if config.resume == "off" else []
        return [sys.executable, "-m", "paddle_mnist", "train", *arguments]

    # A process that starts others finds out itself which of them hangs, and reports it a little
    # sooner.
    grace = 0 if config.processes.nprocs == 1 else heartbeat.GRACE_SECONDS
    timeout = config.processes.hang_timeout + grace
    return supervise(
        start,
        run.checkpoints.newest_step,
        config.command.max_restarts,
        timeout,
        config.saving.stop_signals,
    )


def _identity(path: Path) -> Optional[tuple[int, int]]:
    """Return an identity that a later file at the same path does not have; None without a file."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None

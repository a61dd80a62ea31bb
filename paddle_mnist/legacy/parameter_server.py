"""Training with parameter servers, as Paddle 2.6.2 has them; the wheels of Paddle 3 have none.

Servers hold the weights; trainers compute gradients, send them and fetch the weights. Either nobody
waits for anybody, or (`sync`) all trainers take each step together, as if one process had taken it.

Paddle's own way through this does not work for nets without sparse tables. The workarounds here
and in `server_connection` use what is private in version 2.6.2; each comment gives the reason.
"""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import paddle
from paddle import static

from paddle_mnist.errors import CheckpointError, ConfigError, DeviceError
from paddle_mnist.legacy.server_trainer import ServedTraining, ServerTrainer, build_net
from paddle_mnist.system import heartbeat


def require_parameter_servers() -> None:
    """Raise DeviceError if this Paddle has no parameter servers."""
    instead = (
        "train collectively instead: python -m paddle.distributed.launch --nproc_per_node 2 "
        "paddle-mnist train (docs/en/several-processes.md)"
    )
    if not hasattr(paddle.base.core, "DistFleetWrapper"):
        raise DeviceError(
            f"Paddle {paddle.__version__} is built without parameter servers; expected 2.6.2 (with "
            f"protobuf below 3.21); {instead}"
        )
    try:
        importlib.import_module("google.protobuf.pyext._message")  # what Paddle prints itself with
        importlib.import_module("paddle.distributed.fleet.meta_optimizers")
    except (ImportError, TypeError) as error:
        raise DeviceError(
            f"Paddle's parameter servers cannot be imported ({error}); expected Python 3.10 at "
            f"most, protobuf below 3.21, setuptools below 70; or {instead}"
        ) from error


def serve_or_train(training: ServedTraining, data: str) -> Optional[dict[str, float]]:
    """Run this process as the server or the trainer that Paddle's launch has started it as.

    Returns a trainer's loss and accuracy on the eval split, before the first epoch and after each;
    None for a server. Raises DeviceError, ConfigError, CheckpointError.
    """
    require_parameter_servers()
    from paddle.distributed import fleet

    heartbeat.exit_with_parent()
    if training.start_from and not any(Path(training.start_from).rglob("part-*")):
        raise CheckpointError(
            f"{training.start_from}: no servers' files there; expected the folder persistables/ "
            "of an earlier training"
        )
    paddle.enable_static()
    paddle.seed(training.seed)
    try:
        fleet.init(is_collective=False)
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"this process is neither a server nor a trainer ({error}); start with python -m "
            "paddle.distributed.launch --server_num 2 --trainer_num 2"
        ) from error
    net = build_net()
    evaluation_program = static.default_main_program().clone(for_test=True)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    # SGD: the servers' Adam is another one, and only SGD resumes exactly from what they save.
    optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(training.learning_rate), strategy)
    optimizer.minimize(net.loss)
    if fleet.is_server():
        _serve(fleet)
        return None
    return ServerTrainer(training, net, evaluation_program).run(data)


def _serve(fleet: Any) -> None:
    heartbeat.die_with(heartbeat.parent_pid())  # `run_server` lets no other Python thread run
    _open_the_barrier(fleet.fleet._runtime_handle)
    fleet.init_server()
    fleet.run_server()


def _open_the_barrier(runtime: Any) -> None:
    """Have the servers' own barrier let each trainer pass as if it were the only one.

    The communicator that reports when a gradient has been sent (SYNC) cannot do without that
    barrier, which hangs when one trainer comes back before another has woken up (barrier_table.cc:
    the one that wakes waits for an empty list, and finds the other's name on it).
    `fleet.util.barrier` waits instead.
    """
    for table in runtime.ps_desc_builder.tables:
        if type(table).__name__ == "BarrierTable":
            table.role_maker = SimpleNamespace(_worker_num=lambda: 1)

"""Training with parameter servers, as Paddle 2.6.2 has them; the wheels of Paddle 3 have none.

Servers hold the weights, trainers compute gradients: each sends its own and fetches what has come
of all. Either nobody waits for anybody, or (`sync`) a step is everybody's, as if one process had
made it.

Paddle's own way through this does not work for nets without sparse tables. What is private here is
the way round, for version 2.6.2 alone, each with its reason.
"""

import contextlib
import ctypes
import importlib
import logging
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import paddle
from paddle import static
from paddle.nn import functional as F

from paddle_mnist.checkpoint.contents import saved_bytes
from paddle_mnist.data.sampler import BatchSampler, ShardSpec
from paddle_mnist.errors import CheckpointError, ConfigError, DeviceError
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.nn.nan_check import require_finite_weights
from paddle_mnist.system import heartbeat
from paddle_mnist.system.files import make_folder, write_atomically

log = logging.getLogger("paddle_mnist")

STILL = 3  # fetches in a row, a fifth of a second apart, that find the same weights
INSTEAD = (
    "train collectively instead: python -m paddle.distributed.launch --nproc_per_node 2 "
    "tools/train.py (docs/several-processes.md)"
)


def require_parameter_servers() -> None:
    """Raises DeviceError where this Paddle has none."""
    if not hasattr(paddle.base.core, "DistFleetWrapper"):
        raise DeviceError(
            f"Paddle {paddle.__version__} is built without parameter servers; expected 2.6.2 (with "
            f"protobuf below 3.21); {INSTEAD}"
        )
    try:
        importlib.import_module("google.protobuf.pyext._message")  # what Paddle prints itself with
        importlib.import_module("paddle.distributed.fleet.meta_optimizers")
    except (ImportError, TypeError) as error:
        raise DeviceError(
            f"Paddle's parameter servers cannot be imported ({error}); expected Python 3.10 at "
            f"most, protobuf below 3.21, setuptools below 70; or {INSTEAD}"
        ) from error


@dataclass(frozen=True)
class ServedTraining:
    """What a training with servers is told.

    sync: a step is everybody's: all wait until every gradient has come.
    start_from: a folder that an earlier one has saved, with any number of servers and trainers.
    output: the folder for `persistables/` and `mnist.pdparams`.
    """

    sync: bool = False
    epochs: int = 1
    batch_size: int = 64
    learning_rate: float = 0.05
    seed: int = 1
    output: str = "work/output/servers"
    start_from: Optional[str] = None

    @property
    def persistables(self) -> Path:
        return Path(self.output, "persistables")


@dataclass(frozen=True)
class _Net:
    """The net as a static program: its inputs are images, labels and weight."""

    names: dict[str, str]  # structured to generated
    logits: Any
    mean_loss: Any
    loss: Any  # the mean loss, times the weight that is fed


def _build() -> _Net:
    images = static.data("images", [None, 1, 28, 28], "float32")
    labels = static.data("labels", [None, 1], "int64")
    weight = static.data("weight", [1], "float32")
    model = MNIST()
    logits = model.logits(images)
    mean_loss = F.cross_entropy(logits, labels)
    names = {name: parameter.name for name, parameter in model.named_parameters()}
    return _Net(names, logits, mean_loss, mean_loss * weight)


def serve_or_train(training: ServedTraining, data: str) -> Optional[dict[str, float]]:
    """What this process is for: one of the servers, or one of the trainers, as launch says.

    Gives a trainer's figures: loss and accuracy on the eval split before and after.
    Raises DeviceError, ConfigError, CheckpointError.
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
    net = _build()
    for_test = static.default_main_program().clone(for_test=True)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    # SGD: the servers' Adam is another one, and only SGD goes on exactly from what they save.
    optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(training.learning_rate), strategy)
    optimizer.minimize(net.loss)
    if fleet.is_server():
        _die_with_the_parent()
        _open_the_barrier(fleet.fleet._runtime_handle)
        fleet.init_server()
        fleet.run_server()
        return None
    return _Trainer(training, net, for_test).run(data)


def _die_with_the_parent() -> None:
    """`run_server` never ends by itself, and lets no other thread of Python run."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, prctl(2)
    if heartbeat.is_orphaned():
        sys.exit(1)


def _open_the_barrier(runtime: Any) -> None:
    """Have the servers' own barrier let each trainer pass as if it were the only one.

    The communicator that tells when a gradient has been sent (SYNC) cannot do without that barrier,
    which hangs when one trainer comes back before another has woken up (barrier_table.cc: who wakes
    waits for an empty list, and finds the other's name on it). `fleet.util.barrier` waits instead.
    """
    for table in runtime.ps_desc_builder.tables:
        if type(table).__name__ == "BarrierTable":
            table.role_maker = SimpleNamespace(_worker_num=lambda: 1)


class _Trainer:
    def __init__(self, training: ServedTraining, net: _Net, for_test: Any):
        from paddle.distributed import fleet

        self.training, self.net, self.for_test = training, net, for_test
        self.fleet = fleet
        self.rank, self.size = fleet.worker_index(), fleet.worker_num()
        self.executor = static.Executor(paddle.CPUPlace())

    def run(self, data: str) -> dict[str, float]:
        """Train, save, end the servers."""
        from paddle.distributed.ps.utils.public import get_the_one_recv_context

        self.executor.run(static.default_startup_program())
        self.fleet.init_worker()  # trainer 0's weights go to the servers, the others fetch them
        # The object that speaks to the servers, which `fleet` hides.
        self._runtime = self.fleet.fleet._runtime_handle
        self._dense = get_the_one_recv_context(self._runtime.context)  # names by table
        if self.training.start_from:
            # `init_server(folder)` leaves out dense tables; trainers can have them loaded.
            self.fleet.load_model(self.training.start_from, 0)
        self.fleet.util.barrier()
        self._pull()
        with self._communicating():
            datasets = {mode: MnistDataset(mode, data) for mode in ("train", "eval")}
            figures = self._evaluate(datasets["eval"], "before")
            for epoch in range(self.training.epochs):
                self._train(datasets["train"], epoch)
                figures |= self._evaluate(datasets["eval"], f"epoch {epoch + 1}")
            self._save()
        if self.rank == 0:
            # `stop_worker` leaves the servers running.
            self._runtime._worker.stop_server()
        self.fleet.util.barrier()
        self.fleet.stop_worker()
        return figures

    def _train(self, dataset: MnistDataset, epoch: int) -> None:
        sampler = BatchSampler(len(dataset), self.training.batch_size, self.training.seed)
        shard_spec = ShardSpec(self.size, self.rank, self.size)
        for batch in sampler.batches(epoch):
            ((_, mine),) = shard_spec.split(batch)
            # Servers add up what comes. In a step that is everybody's it adds up to the mean.
            share = len(mine) / len(batch) * (1 if self.training.sync else self.size)
            images, labels = dataset.batch(mine if len(mine) else batch[:1])
            self.executor.run(
                static.default_main_program(),
                feed={"images": images, "labels": labels, "weight": np.array([share], np.float32)},
                fetch_list=[self.net.loss],
            )
            if self.training.sync:
                self.executor.run(self._sent)
                self.fleet.util.barrier()
                self._pull()
                self.fleet.util.barrier()
        self._settle()

    def _evaluate(self, dataset: MnistDataset, when: str) -> dict[str, float]:
        loss = right = 0.0
        for batch in BatchSampler(len(dataset), 500, shuffle=False).batches(0):
            images, labels = dataset.batch(batch)
            logits, mean = self.executor.run(
                self.for_test,
                feed={"images": images, "labels": labels, "weight": np.ones(1, np.float32)},
                fetch_list=[self.net.logits, self.net.mean_loss],
            )
            loss += float(mean) * len(batch)
            right += int((logits.argmax(axis=1) == labels[:, 0]).sum())
        found = {f"{when}/loss": loss / len(dataset), f"{when}/acc": right / len(dataset)}
        if self.rank == 0:
            log.info("%s: eval loss %.5f acc %.4f", when, *found.values())
        return found

    def _save(self) -> None:
        """Trainer 0 has the servers save, and writes the weights for everything else here."""
        if self.rank == 0:
            make_folder(Path(self.training.output))
        # Every trainer calls it: it waits for all of them, though trainer 0 alone asks the servers.
        self.fleet.save_persistables(self.executor, str(self.training.persistables))
        if self.rank == 0:
            path = Path(self.training.output, "mnist.pdparams")
            write_atomically(path, saved_bytes(self._weights()))
            log.info("servers' files: %s   weights: %s", self.training.persistables, path)
        self.fleet.util.barrier()

    def _weights(self) -> dict[str, np.ndarray]:
        """Those of this process, by structured names."""
        scope = static.global_scope()
        return {
            structured: np.array(scope.find_var(name).get_tensor())
            for structured, name in self.net.names.items()
        }

    def _settle(self) -> None:
        """Fetch the weights when they stand still: no queue of gradients tells that it is empty."""
        self.fleet.util.barrier()
        before, still = {}, 0
        while still < STILL:
            time.sleep(0.2)
            self._runtime._worker.client_flush()
            self._pull()
            now = self._weights()
            require_finite_weights(now, "on the servers", "use a lower --learning_rate")
            same = all(np.array_equal(now[name], value) for name, value in before.items())
            before, still = now, still + 1 if before and same else 0
        self.fleet.util.barrier()

    def _pull(self) -> None:
        """Fetch the servers' weights, now. Paddle does so only where a table is sparse."""
        for table, names in self._dense.items():
            self._runtime._worker.pull_dense_params(static.global_scope(), table, names)

    @contextlib.contextmanager
    def _communicating(self) -> Iterator[None]:
        """2.6.2 makes the communicator, which sends gradients, only for its mode GEO."""
        from paddle.distributed.communicator import Communicator
        from paddle.distributed.ps.utils.public import DistributedMode

        runtime = self._runtime
        # Waits until what this trainer has sent is in the weights.
        self._sent = static.Program()
        nothing = {"inputs": {"X": []}, "outputs": {"Out": []}}
        self._sent.global_block().append_op(type="send_barrier", **nothing)
        for operator in static.default_main_program().global_block().ops:
            if operator.type == "send":  # dense gradients go through it only under this flag
                operator._set_attr("is_sparse", 1)
        trainer = runtime.context["trainer"]
        communicator = Communicator(
            DistributedMode.SYNC if self.training.sync else trainer.mode,
            {
                "need_global_step": "0",
                "trainer_id": self.rank,
                "trainers": self.size,
                "barrier_table_id": runtime.ps_desc_builder.barrier_table_id,
                "pserver_endpoints": runtime.role_maker._get_pserver_endpoints(),
            },
            trainer.get_communicator_flags(),
        )
        communicator.init_with_ctx(
            *(runtime._send_ctx, self._dense, runtime.ps_desc_builder.build_worker_desc()),
            *(runtime.string_hosts, static.global_scope()),
        )
        communicator.start()
        self.fleet.util.barrier()
        yield
        communicator.stop()
        self.fleet.util.barrier()

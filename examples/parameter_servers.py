"""Train MNIST with parameter servers, which Paddle 2.6.2 has and the wheels of Paddle 3 do not.

    python -m paddle.distributed.launch --server_num 2 --trainer_num 2 examples/parameter_servers.py

Servers hold the weights; trainers compute gradients, send them and fetch the weights. Paddle's own
procedure does not work for nets without sparse tables: see docs/en/parameter-servers.md.
"""

import argparse
import os
import sys
from pathlib import Path
from types import SimpleNamespace

from paddle_mnist import MNIST, MnistDataset, evaluate
from paddle_mnist.system.heartbeat import die_with

import numpy as np
import paddle
from paddle import static

try:
    from google.protobuf.pyext import _message  # noqa: F401  # Paddle needs it here
    from paddle.distributed import fleet
    from paddle.distributed.communicator import Communicator
    from paddle.distributed.ps.utils.public import DistributedMode, get_the_one_recv_context
except (ImportError, TypeError) as error:
    sys.exit(
        f"error: no parameter servers here ({error}); they need Paddle 2.6.2, Python 3.10 or "
        "older, protobuf below 3.21 and setuptools below 70; or run paddle-mnist train --nprocs 2"
    )


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="auto", help="auto, digits, or a file or folder")
    parser.add_argument("--sync", action="store_true", help="all trainers take each step together")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=64, help="of all trainers together")
    parser.add_argument("--learning_rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="work/output/servers")
    parser.add_argument("--start_from", help="the folder persistables/ of an earlier run")
    options = parser.parse_args()
    if "TRAINING_ROLE" not in os.environ:
        parser.error("start it with python -m paddle.distributed.launch --server_num 2 ...")
    if options.start_from and not any(Path(options.start_from).rglob("part-*")):
        parser.error(f"--start_from {options.start_from}: no files of servers there")
    return options


def main():
    die_with(os.getppid())  # no process outlives Paddle's launch
    options = parse_options()
    paddle.enable_static()
    paddle.seed(options.seed)
    fleet.init(is_collective=False)
    images = static.data("images", [None, 1, 28, 28], "float32")
    labels = static.data("labels", [None, 1], "int64")
    weight = static.data("weight", [1], "float32")
    model = MNIST()
    loss = paddle.nn.functional.cross_entropy(model.logits(images), labels) * weight
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    # SGD: the servers' Adam is not Adam, and only SGD resumes exactly from what they save.
    optimizer = paddle.optimizer.SGD(options.learning_rate)
    fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    if fleet.is_server():
        serve()
    else:
        names = {name: parameter.name for name, parameter in model.named_parameters()}
        ServerTrainer(options, names).run()


def serve():
    """Serve parameters until trainer 0 stops the servers.

    Their own barrier hangs when one trainer comes back before another has woken up: the one that
    wakes waits for an empty list, and finds the other's name on it (barrier_table.cc). So it lets
    each trainer pass as if it were the only one, and `fleet.util.barrier` waits instead.
    """
    for table in fleet.fleet._runtime_handle.ps_desc_builder.tables:
        if type(table).__name__ == "BarrierTable":
            table.role_maker = SimpleNamespace(_worker_num=lambda: 1)
    fleet.init_server()
    fleet.run_server()


class ServerTrainer:
    """Trains on this trainer's share of every batch.

    names: of the parameters in the static program, by their names in the model.
    """

    def __init__(self, options, names):
        self.options, self.names = options, names
        self.rank, self.size = fleet.worker_index(), fleet.worker_num()
        self.data = {mode: MnistDataset(mode, options.data) for mode in ("train", "eval")}
        self.runtime = fleet.fleet._runtime_handle
        self.names_by_table = get_the_one_recv_context(self.runtime.context)
        self.executor = static.Executor(paddle.CPUPlace())
        self.wait_until_sent = static.Program()
        self.wait_until_sent.global_block().append_op(
            type="send_barrier", inputs={"X": []}, outputs={"Out": []}
        )

    def run(self):
        self.executor.run(static.default_startup_program())
        fleet.init_worker()  # the servers get trainer 0's weights
        if self.options.start_from:
            # `init_server(folder)` leaves out dense tables.
            fleet.load_model(self.options.start_from, 0)
        self.pull_together()
        communicator = self.start_communicator()
        self.report("before")
        for epoch in range(self.options.epochs):
            self.train(epoch)
            self.report(f"epoch {epoch + 1}")
        communicator.stop()
        self.save(Path(self.options.output))
        if self.rank == 0:
            self.runtime._worker.stop_server()  # `stop_worker` leaves them running
        fleet.util.barrier()
        fleet.stop_worker()

    def start_communicator(self):
        """Return the communicator that sends gradients: 2.6.2 makes it only for sparse tables."""
        for operator in static.default_main_program().global_block().ops:
            if operator.type == "send":
                operator._set_attr("is_sparse", 1)  # or dense gradients are not sent
        communicator = Communicator(
            DistributedMode.SYNC,  # no other mode tells when a gradient has been sent
            {
                "need_global_step": "0",
                "trainer_id": self.rank,
                "trainers": self.size,
                "barrier_table_id": self.runtime.ps_desc_builder.barrier_table_id,
                "pserver_endpoints": self.runtime.role_maker._get_pserver_endpoints(),
            },
            self.runtime.context["trainer"].get_communicator_flags(),
        )
        communicator.init_with_ctx(
            self.runtime._send_ctx,
            self.names_by_table,
            self.runtime.ps_desc_builder.build_worker_desc(),
            self.runtime.string_hosts,
            static.global_scope(),
        )
        communicator.start()
        fleet.util.barrier()
        return communicator

    def train(self, epoch):
        order = np.random.RandomState([self.options.seed, epoch]).permutation(
            len(self.data["train"])
        )
        for start in range(0, len(order), self.options.batch_size):
            self.step(order[start : start + self.options.batch_size])
            if self.options.sync:
                self.pull_together()
            else:
                self.pull()
        self.pull_together()

    def step(self, batch):
        """Send the gradient of this trainer's share of a batch to the servers, which add it up."""
        share = batch[self.rank :: self.size]
        # Added up, the gradients of a step are their mean. An asynchronous step is a trainer's own.
        weight = len(share) / len(batch) * (1 if self.options.sync else self.size)
        images, labels = self.data["train"].batch(share if len(share) else batch[:1])
        feed = {"images": images, "labels": labels, "weight": np.array([weight], np.float32)}
        self.executor.run(static.default_main_program(), feed=feed)
        self.executor.run(self.wait_until_sent)

    def pull_together(self):
        """Fetch the weights that contain what all trainers have sent."""
        fleet.util.barrier()
        self.pull()
        fleet.util.barrier()

    def pull(self):
        """Fetch the servers' weights. Paddle does so only for sparse tables."""
        for table, names in self.names_by_table.items():
            self.runtime._worker.pull_dense_params(static.global_scope(), table, names)

    def report(self, when):
        """Have trainer 0 print loss and accuracy on the eval split."""
        if self.rank == 0:
            with paddle.base.dygraph.guard():
                result = evaluate(self.model(), self.data["eval"])
            print(f"{when}: eval loss {result.loss:.5f} acc {result.accuracy:.4f}", flush=True)

    def save(self, output):
        """Have the servers save; trainer 0 also writes the weights for use elsewhere."""
        # Every trainer calls it: it waits for all of them, though only trainer 0 asks the servers.
        fleet.save_persistables(self.executor, str(output / "persistables"))
        if self.rank == 0:
            with paddle.base.dygraph.guard():
                paddle.save(self.model().state_dict(), str(output / "mnist.pdparams"))
        fleet.util.barrier()

    def model(self):
        """Return a dygraph model with this trainer's weights."""
        scope, model = static.global_scope(), MNIST()
        values = {key: scope.find_var(name).get_tensor() for key, name in self.names.items()}
        model.set_state_dict({key: np.array(value) for key, value in values.items()})
        return model


if __name__ == "__main__":
    main()

"""A trainer that computes gradients for parameter servers, with a static program."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import paddle
from paddle import static
from paddle.nn import functional as F

from paddle_mnist.checkpoint.weights import write_weights
from paddle_mnist.data.sampler import BatchSampler, ShardSpec
from paddle_mnist.legacy.server_connection import ServerConnection
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.nn.nan_check import require_finite_weights
from paddle_mnist.system.files import make_folder

log = logging.getLogger("paddle_mnist")

STABLE = 3  # fetches in a row, a fifth of a second apart, that bring the same weights


@dataclass(frozen=True)
class ServedTraining:
    """The settings of a training with servers.

    sync: whether all trainers take each step together, waiting for every gradient.
    start_from: a folder that an earlier training saved, with any number of servers and trainers.
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
        """The folder into which the servers save."""
        return Path(self.output, "persistables")


@dataclass(frozen=True)
class StaticNet:
    """The net as a static program, whose inputs are images, labels and a weight.

    names: of the parameters, structured to generated. loss: the mean loss times the weight.
    """

    names: dict[str, str]
    logits: Any
    mean_loss: Any
    loss: Any


def build_net() -> StaticNet:
    """Build the net in the default main program."""
    images = static.data("images", [None, 1, 28, 28], "float32")
    labels = static.data("labels", [None, 1], "int64")
    weight = static.data("weight", [1], "float32")
    model = MNIST()
    logits = model.logits(images)
    mean_loss = F.cross_entropy(logits, labels)
    names = {name: parameter.name for name, parameter in model.named_parameters()}
    return StaticNet(names, logits, mean_loss, mean_loss * weight)


class ServerTrainer:
    """Trains the net on this trainer's share of every batch."""

    def __init__(self, training: ServedTraining, net: StaticNet, evaluation_program: Any):
        from paddle.distributed import fleet

        self.training, self.net, self.evaluation_program = training, net, evaluation_program
        self.fleet = fleet
        self.rank, self.size = fleet.worker_index(), fleet.worker_num()
        self.executor = static.Executor(paddle.CPUPlace())

    def run(self, data: str) -> dict[str, float]:
        """Train, save, end the servers; return loss and accuracy after each epoch."""
        self.executor.run(static.default_startup_program())
        self.fleet.init_worker()  # trainer 0's weights go to the servers, the others fetch them
        self.servers = ServerConnection(self.fleet, self.training.sync)
        if self.training.start_from:
            self.servers.load(self.training.start_from)
        self.fleet.util.barrier()
        self.servers.pull()
        with self.servers.communicating():
            datasets = {mode: MnistDataset(mode, data) for mode in ("train", "eval")}
            metrics = self._evaluate(datasets["eval"], "before")
            for epoch in range(self.training.epochs):
                self._train(datasets["train"], epoch)
                metrics |= self._evaluate(datasets["eval"], f"epoch {epoch + 1}")
            self._save()
        if self.rank == 0:
            self.servers.stop_servers()
        self.fleet.util.barrier()
        self.fleet.stop_worker()
        return metrics

    def _train(self, dataset: MnistDataset, epoch: int) -> None:
        sampler = BatchSampler(len(dataset), self.training.batch_size, self.training.seed)
        shard_spec = ShardSpec(self.size, self.rank, self.size)
        for batch in sampler.batches(epoch):
            ((_, shard),) = shard_spec.split(batch)
            # Servers add up what comes. In a step that all take together it adds up to the mean.
            share = len(shard) / len(batch) * (1 if self.training.sync else self.size)
            images, labels = dataset.batch(shard if len(shard) else batch[:1])
            self.executor.run(
                static.default_main_program(),
                feed={"images": images, "labels": labels, "weight": np.array([share], np.float32)},
                fetch_list=[self.net.loss],
            )
            if self.training.sync:
                self.servers.wait_until_sent(self.executor)
                self.fleet.util.barrier()
                self.servers.pull()
                self.fleet.util.barrier()
        self._pull_until_stable()

    def _evaluate(self, dataset: MnistDataset, when: str) -> dict[str, float]:
        loss_sum, num_correct = 0.0, 0
        for batch in BatchSampler(len(dataset), 500, shuffle=False).batches(0):
            images, labels = dataset.batch(batch)
            logits, mean_loss = self.executor.run(
                self.evaluation_program,
                feed={"images": images, "labels": labels, "weight": np.ones(1, np.float32)},
                fetch_list=[self.net.logits, self.net.mean_loss],
            )
            loss_sum += float(mean_loss) * len(batch)
            num_correct += int((logits.argmax(axis=1) == labels[:, 0]).sum())
        loss, accuracy = loss_sum / len(dataset), num_correct / len(dataset)
        if self.rank == 0:
            log.info("%s: eval loss %.5f acc %.4f", when, loss, accuracy)
        return {f"{when}/loss": loss, f"{when}/acc": accuracy}

    def _save(self) -> None:
        """Have the servers save; trainer 0 also writes the weights for the rest of the package."""
        if self.rank == 0:
            make_folder(Path(self.training.output))
        # Every trainer calls it: it waits for all of them, though trainer 0 alone asks the servers.
        self.fleet.save_persistables(self.executor, str(self.training.persistables))
        if self.rank == 0:
            path = Path(self.training.output, f"{MNIST.checkpoint_name}.pdparams")
            write_weights(path, self._weights())
            log.info("servers' files: %s   weights: %s", self.training.persistables, path)
        self.fleet.util.barrier()

    def _weights(self) -> dict[str, np.ndarray]:
        """Return this process's weights by structured names."""
        scope = static.global_scope()
        return {
            structured: np.array(scope.find_var(name).get_tensor())
            for structured, name in self.net.names.items()
        }

    def _pull_until_stable(self) -> None:
        """Fetch the weights until they no longer change: no queue of gradients reports its end.

        Raises DivergedError if they are not finite.
        """
        self.fleet.util.barrier()
        before: dict[str, np.ndarray] = {}
        unchanged = 0
        while unchanged < STABLE:
            time.sleep(0.2)
            self.servers.flush()
            self.servers.pull()
            weights = self._weights()
            require_finite_weights(weights, "on the servers", "use a lower --learning_rate")
            same = all(np.array_equal(weights[name], value) for name, value in before.items())
            unchanged = unchanged + 1 if before and same else 0
            before = weights
        self.fleet.util.barrier()

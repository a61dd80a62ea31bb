"""A trainer's connection to parameter servers, through what is private in Paddle 2.6.2."""

import contextlib
from collections.abc import Iterator
from typing import Any

from paddle import static


class ServerConnection:
    """Sends gradients to the servers and fetches their weights.

    Made after `fleet.init_worker()`. sync: whether `wait_until_sent` is going to be called.
    """

    def __init__(self, fleet: Any, sync: bool):
        from paddle.distributed.ps.utils.public import get_the_one_recv_context

        self._fleet, self._sync = fleet, sync
        # The object that speaks to the servers, which `fleet` hides.
        self._runtime = fleet.fleet._runtime_handle
        self._dense = get_the_one_recv_context(self._runtime.context)  # names by table
        self._send_barrier = static.Program()
        nothing: dict[str, Any] = {"inputs": {"X": []}, "outputs": {"Out": []}}
        self._send_barrier.global_block().append_op(type="send_barrier", **nothing)

    def load(self, folder: str) -> None:
        """Have the servers load what they once saved into a folder."""
        # `init_server(folder)` leaves out dense tables; trainers can have them loaded.
        self._fleet.load_model(folder, 0)

    def pull(self) -> None:
        """Fetch the servers' weights, now. Paddle does so only where a table is sparse."""
        for table, names in self._dense.items():
            self._runtime._worker.pull_dense_params(static.global_scope(), table, names)

    def flush(self) -> None:
        """Send what is still queued."""
        self._runtime._worker.client_flush()

    def wait_until_sent(self, executor: static.Executor) -> None:
        """Wait until the weights contain what this trainer has sent."""
        executor.run(self._send_barrier)

    def stop_servers(self) -> None:
        """End the servers: `stop_worker` leaves them running."""
        self._runtime._worker.stop_server()

    @contextlib.contextmanager
    def communicating(self) -> Iterator[None]:
        """Send the gradients of the main program's steps while this is open.

        The communicator that sends them is made here: 2.6.2 makes it only for its mode GEO.
        """
        from paddle.distributed.communicator import Communicator
        from paddle.distributed.ps.utils.public import DistributedMode

        runtime = self._runtime
        for operator in static.default_main_program().global_block().ops:
            if operator.type == "send":  # dense gradients go through it only under this flag
                operator._set_attr("is_sparse", 1)
        trainer = runtime.context["trainer"]
        communicator = Communicator(
            DistributedMode.SYNC if self._sync else trainer.mode,
            {
                "need_global_step": "0",
                "trainer_id": self._fleet.worker_index(),
                "trainers": self._fleet.worker_num(),
                "barrier_table_id": runtime.ps_desc_builder.barrier_table_id,
                "pserver_endpoints": runtime.role_maker._get_pserver_endpoints(),
            },
            trainer.get_communicator_flags(),
        )
        communicator.init_with_ctx(
            runtime._send_ctx,
            self._dense,
            runtime.ps_desc_builder.build_worker_desc(),
            runtime.string_hosts,
            static.global_scope(),
        )
        communicator.start()
        self._fleet.util.barrier()
        yield
        communicator.stop()
        self._fleet.util.barrier()

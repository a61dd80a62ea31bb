"""`Processes`: how many processes train together."""

from dataclasses import dataclass
from typing import Any, Optional

from paddle_mnist.options import Count, CountOrZero, Options, Positive, option


def auto_as_zero(value: Any) -> Any:
    """Read "auto" as 0, which means as many as the machine can run side by side."""
    return 0 if value == "auto" else value


@dataclass(frozen=True)
class Processes(Options):
    """Options for how many processes train together, and how they divide a batch.

    nprocs: the number of processes to start; 0, or "auto": as many as the machine can use.
    gpus: the GPU of each, such as "0,1".
    grad_shards: the number of parts of a batch whose gradients are added in a fixed order. Any
        number of processes that divides it gives the same bits.
    hang_timeout: seconds without progress after which the processes are ended.
    """

    heading = "device"

    nprocs: CountOrZero = option(
        1,
        "number of processes, each computing a part of every batch; or auto",
        parse=auto_as_zero,
    )
    gpus: Optional[str] = option(None, "GPUs to train on, such as 0,1, with one process each")
    grad_shards: Optional[Count] = option(
        None,
        "parts of each batch; gives the same bits for any number of processes",
        must_match=True,
    )
    hang_timeout: Positive = option(
        600.0, "seconds without a step after which training is considered hung", heading="run"
    )

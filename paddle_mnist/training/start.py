"""`StartFrom`: another training to start from."""

from dataclasses import dataclass

from paddle_mnist.errors import ConfigError
from paddle_mnist.options import Options, PathStr, option


@dataclass(frozen=True)
class StartFrom(Options):
    """Another training to start from: its weights, and by default its optimizer's state too.

    path: of a run, a checkpoint, or with weights_only a `.pdparams` file.
    weights_only: take the weights alone.
    partial: with weights_only, load only the weights that match, and log the names of the others.
    """

    heading = "start"

    path: PathStr = option(
        help={
            "incremental_from": "run or checkpoint whose weights and optimizer state to start from",
            "init_from": "weights to start from: a run, checkpoint or .pdparams file",
        },
        flat={"incremental_from": {"weights_only": False}, "init_from": {"weights_only": True}},
        must_match=True,
    )
    weights_only: bool = option(False, flat="")
    partial: bool = option(
        False,
        "with init_from: load the weights that match, and log the others",
        flat="init_partial",
    )

    def check(self) -> None:
        if self.partial and not self.weights_only:
            raise ConfigError(
                "partial is on without weights_only (as init_partial without init_from); expected "
                "both or neither"
            )

"""`PrintLayers`: the callback that prints layers in the batches in which the tutorial does.

It imports paddle where it is used: its options are those of a command line, whose `--help` does
without it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from paddle_mnist.errors import ConfigError
from paddle_mnist.options import CountOrZero, Options, option, split_names
from paddle_mnist.training.callbacks import Callback, Training

if TYPE_CHECKING:
    from paddle_mnist.monitor.hooks import ForwardPasses

log = logging.getLogger("paddle_mnist")

TUTORIAL_BATCHES = {"shapes": 0, "contents": 401}  # in which the tutorial prints


def _parse_batches(value: Any) -> Any:
    """Read numbers of batches, by comma; true means the tutorial's batch, false none."""
    if str(value).lower() in ("true", "false"):
        return True if str(value).lower() == "true" else ()
    if isinstance(value, int):
        return [value]
    names = split_names(value)
    return [int(name) if str(name).isdecimal() else name for name in names]


Batches = Union[tuple[CountOrZero, ...], Literal[True]]


@dataclass(eq=False)
class PrintLayers(Callback, Options):
    """Prints shapes and contents of the layers in some batches, in the format of the tutorial.

    shapes, contents: the numbers of these batches, counted from 0 over the whole training; True:
        the batch in which the tutorial prints, 0 and 401, or the last of a shorter training.
    """

    heading = "looking inside"

    shapes: Batches = option(
        (),
        "numbers of batches whose shapes to print; without a value: 0",
        flat="check_shape",
        bare="true",
        parse=_parse_batches,
    )
    contents: Batches = option(
        (),
        "numbers of batches whose contents to print; without a value: 401, or the last",
        flat="check_content",
        bare="true",
        parse=_parse_batches,
    )
    _passes: "Optional[ForwardPasses]" = field(default=None, init=False, repr=False)

    def check_training(self, training: Training) -> None:
        for name in TUTORIAL_BATCHES:
            self._batches(name, training.steps)

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.mnist.layer_printer import print_in_batches

        if not training.world.is_main_process or not (self.shapes or self.contents):
            return
        shapes, contents = (
            self._batches(name, training.steps, is_logged=True) for name in TUTORIAL_BATCHES
        )
        self._passes = print_in_batches(
            training.model,
            shapes,
            contents,
            start=training.state.step,
            print_fn=log.info,
            passes_per_step=training.loader.passes_per_step,
        )

    def _batches(self, name: str, total: Optional[int], is_logged: bool = False) -> Sequence[int]:
        """Return the batches in which to print. Raises ConfigError for a number that is too large.

        total: the number of batches in the training; None if it is unknown.
        """
        numbers: Batches = getattr(self, name)
        usual = TUTORIAL_BATCHES[name]
        if total is None:
            return (usual,) if numbers is True else numbers
        last = total - 1
        if numbers is True:
            if usual > last and is_logged:
                log.info(
                    "PrintLayers: no batch %d in %d batches; printing in the last, %d",
                    usual,
                    total,
                    last,
                )
            return (min(usual, last),)
        for number in numbers:
            if number > last:
                raise ConfigError(
                    f"PrintLayers: {name} names batch {number}, but this training has {total}, "
                    f"counted from 0; expected one of them, such as {last}"
                )
        return numbers

    def close(self) -> None:
        if self._passes:
            self._passes.remove()
        self._passes = None

"""`EarlyStopping`: the callback that ends a training which no longer improves."""

from dataclasses import dataclass
from typing import Optional

from paddle_mnist.errors import ConfigError
from paddle_mnist.interfaces import View
from paddle_mnist.options import Count, NotNegative, Options, option
from paddle_mnist.training.callbacks import Callback


@dataclass(eq=False)
class EarlyStopping(Callback, Options):
    """Ends the training when `monitor` no longer improves; the result is then the best checkpoint.

    patience: the number of evaluations without a better value; None: never stop.
    min_delta: a value is better only if it beats the last better one by more than this.
    """

    heading = "training"

    patience: Optional[Count] = option(
        None,
        "stop after N evaluations without improvement, with the best weights",
        flat="early_stop_patience",
        must_match=True,
    )
    min_delta: NotNegative = option(
        0.0,
        "the least improvement that early_stop_patience counts",
        flat="early_stop_min_delta",
        must_match=True,
    )

    def check(self) -> None:
        if self.min_delta and self.patience is None:
            raise ConfigError(
                f"EarlyStopping: min_delta is {self.min_delta} without patience; expected both"
            )

    @property
    def ends_with_best(self) -> bool:  # type: ignore[override]  # the base class has a plain attribute
        """Return whether it is on."""
        return self.patience is not None

    def should_stop(self, view: View) -> bool:
        if self.patience is None:
            return False
        return view.state.evaluations_without_improvement(self.min_delta) >= self.patience

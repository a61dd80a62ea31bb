"""`EarlyStopping`: the callback that ends a training which no longer improves."""

from dataclasses import dataclass
from typing import Optional

from paddle_mnist.interfaces import View
from paddle_mnist.options import Count, Options, option
from paddle_mnist.training.callbacks import Callback


@dataclass(eq=False)
class EarlyStopping(Callback, Options):
    """Ends the training when `monitor` no longer improves; the result is then the best checkpoint.

    patience: the number of evaluations without a better value; None: never stop.
    """

    heading = "training"

    patience: Optional[Count] = option(
        None,
        "stop after N evaluations without improvement, with the best weights",
        flat="early_stop_patience",
        must_match=True,
    )

    @property
    def ends_with_best(self) -> bool:  # type: ignore[override]  # the base class has a plain attribute
        """Return whether it is on."""
        return self.patience is not None

    def should_stop(self, view: View) -> bool:
        return self.patience is not None and view.state.evaluations_since_best >= self.patience

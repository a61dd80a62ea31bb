"""A callback that freezes layers at the beginning of training, and unfreezes them later."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import paddle
from paddle import nn

from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.interfaces import View
from paddle_mnist.options import CountOrZero, Options, option
from paddle_mnist.training.callbacks import Callback, Training

NORMS = (nn.layer.norm._BatchNormBase, nn.BatchNorm)


@dataclass(eq=False)
class Unfreeze(Callback, Options):
    """Freezes parts of the model in the first epochs of a run.

    epochs: the number of epochs, by the name of a layer or parameter; if several names apply, such
        as "backbone" and "backbone.layer4", the longest counts.

    Frozen parameters get no gradient, and the optimizer skips them. Frozen BatchNorm is in
    evaluation mode: it uses its running statistics, and does not change them. Which parts are
    frozen depends on the epoch alone, so it is the same after any resume.
    """

    heading = "training"

    epochs: Mapping[str, CountOrZero] = option(flat="unfreeze", must_match=True)
    _layers: dict[str, nn.Layer] = field(default_factory=dict, init=False, repr=False)
    _trained: dict[str, paddle.Tensor] = field(default_factory=dict, init=False, repr=False)

    def check_training(self, training: Training) -> None:
        named = dict(training.model.named_sublayers())
        parameters = dict(training.model.named_parameters())
        names = [*(name for name, layer in named.items() if layer.parameters()), *parameters]
        for name in self.epochs:
            if name not in names:
                raise ConfigError(unknown_name("Unfreeze", name, names))
        self._layers = {name: layer for name, layer in named.items() if isinstance(layer, NORMS)}
        # Without those that are always frozen, such as the running statistics of BatchNorm.
        self._trained = {name: p for name, p in parameters.items() if not p.stop_gradient}
        if all(map(self._frozen_epochs, self._trained)):
            raise ConfigError(
                "Unfreeze leaves no parameter to train in the first epoch; expected names of a part"
            )

    def _frozen_epochs(self, name: str) -> int:
        """Return the number of epochs in which a layer or parameter is frozen."""
        applying = [own for own in self.epochs if f"{name}.".startswith(f"{own}.")]
        return self.epochs[max(applying, key=len)] if applying else 0

    def on_epoch_start(self, view: View) -> None:
        for name, parameter in self._trained.items():
            parameter.stop_gradient = view.state.epoch < self._frozen_epochs(name)
        for name, layer in self._layers.items():
            if view.state.epoch < self._frozen_epochs(name):
                layer.eval()

    def after_epoch(self, view: View) -> None:
        self._end_evaluation_mode()  # before the next epoch, where `fit` would warn of it

    def close(self) -> None:
        self._end_evaluation_mode()  # training may end inside a frozen epoch
        for parameter in self._trained.values():
            parameter.stop_gradient = False

    def _end_evaluation_mode(self) -> None:
        for name, layer in self._layers.items():
            if self._frozen_epochs(name):
                layer.train()

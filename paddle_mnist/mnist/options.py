"""The groups of options for digits: images, net, loss, optimizer. Some build what they describe.

Paddle is imported only to build something."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

from msgspec import Meta

from paddle_mnist.errors import ConfigError, DeviceError, unknown_name
from paddle_mnist.nn.layout import BlockSizes, Net
from paddle_mnist.options import (
    Count,
    CountOrZero,
    Fraction,
    NotNegative,
    Options,
    PathStr,
    Positive,
    option,
    split_names,
)
from paddle_mnist.parallel.processes import auto_as_zero

if TYPE_CHECKING:
    import paddle

    from paddle_mnist.mnist.model import MNIST

# The amounts that `augment` takes, and the limit below which each must stay: degrees, degrees,
# pixels, share, pixels.
AUGMENT_LIMITS = {"rotate": 180, "shear": 60, "shift": 28, "scale": 1, "elastic": 28}


def _parse_amounts(value: Any) -> Any:
    """Read `rotate=10,shift=2`, a list of such, or a mapping; return strings in a fixed order."""
    if isinstance(value, Mapping):
        value = [f"{name}={amount}" for name, amount in value.items()]
    amounts: dict[str, Any] = dict(str(item).partition("=")[::2] for item in split_names(value))
    for name, amount in amounts.items():
        if name not in AUGMENT_LIMITS:
            raise ValueError(f"expected {', '.join(f'{known}=N' for known in AUGMENT_LIMITS)}")
        try:
            amounts[name] = float(amount)
        except ValueError:
            amounts[name] = math.nan
        limit = AUGMENT_LIMITS[name]
        if not 0 <= amounts[name] < limit:
            raise ValueError(f"expected {name} as a number, at least 0 and below {limit}")
    return [f"{name}={amounts[name]:g}" for name in AUGMENT_LIMITS if amounts.get(name)]


@dataclass(frozen=True)
class ImageOptions(Options):
    """The images of a run. A resume compares their contents, not their path."""

    heading = "data"

    data: str = option("auto", "auto, digits, or a file or folder (JSON, IDX, npz, CSV)")
    train_limit: Optional[Count] = option(
        None, "train on the first N images of the source only", must_match=True
    )
    eval_limit: Optional[Count] = option(
        None, "evaluate on the first N images only", must_match=True
    )
    augment: tuple[str, ...] = option(
        (),
        "random affine and elastic distortion: rotate=10,shear=5,shift=2,scale=0.1,elastic=1",
        heading="training",
        must_match=True,
        parse=_parse_amounts,
    )
    replay_data: Optional[PathStr] = option(
        None, "old images to mix into each epoch, to prevent forgetting", heading="start"
    )
    replay_fraction: Annotated[float, Meta(gt=0, lt=1)] = option(
        0.2, "share of old images in each epoch", heading="start", must_match=True
    )
    final_split: Literal["eval", "valid"] = option(
        "eval",
        "split to score the trained net on at the end: eval (the test set), or valid instead of it",
        heading="evaluation",
    )


@dataclass(frozen=True)
class NetOptions(Options):
    """The tutorial's net, and how it is computed; called, it builds one."""

    heading = "training"

    dropout: Fraction = option(
        0.0, "share of the last layer's inputs that are dropped in training", must_match=True
    )
    fast_conv: Literal["auto", "on", "off"] = option(
        "auto",
        "compile the net's convolutions; auto: on CPUs only",
        heading="device",
        must_match=True,
    )
    threads: CountOrZero = option(
        0,
        "threads of the compiled net in each process; or auto",
        heading="device",
        parse=auto_as_zero,
    )

    def conv_threads(self) -> int:
        """Return the threads of the compiled net on this device; 0 for Paddle's own layers.

        Raises DeviceError if the compiled net is required but the device is not a CPU.
        """
        import paddle

        from paddle_mnist.nn.covered import threads_of

        device = paddle.device.get_device()
        if self.fast_conv == "on" and device != "cpu":
            raise DeviceError(
                f"fast_conv is on, but the device is {device}; "
                "set device to cpu, or fast_conv to auto"
            )
        if self.fast_conv == "off" or device != "cpu":
            return 0
        return self.threads or threads_of("auto")

    def __call__(self) -> "MNIST":
        from paddle_mnist.mnist.model import MNIST

        model = MNIST()
        model.fast_conv = self.conv_threads()
        model.dropout_rate = self.dropout
        return model


@dataclass(frozen=True)
class LossOptions(Options):
    """The loss."""

    heading = "training"

    label_smoothing: Fraction = option(
        0.0, "probability that is spread evenly over all classes", must_match=True
    )


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """The optimizer and its schedule; called with the parameters, it builds them.

    total_steps: of the training run, over which the schedule extends.
    """

    heading = "optimizer"

    optimizer: Literal["sgd", "momentum", "adagrad", "adadelta", "adam", "adamw"] = option(
        "momentum", "the optimizer", must_match=True, parse=lambda name: str(name).lower()
    )
    learning_rate: Positive = option(0.1, "learning rate; the peak with onecycle", must_match=True)
    lr_schedule: Literal["constant", "polynomial", "cosine", "onecycle"] = option(
        "onecycle", "learning-rate schedule, stepped every batch", must_match=True
    )
    end_lr: NotNegative = option(
        0.0, "learning rate at the last step (not used by constant)", must_match=True
    )
    decay_steps: Optional[Count] = option(
        None, "steps from learning_rate to end_lr (polynomial only); default: all", must_match=True
    )
    power: Positive = option(
        1.0, "exponent of the decay (polynomial only); 1: a straight line", must_match=True
    )
    cycle: bool = option(
        False, "decay again, over twice decay_steps, three times, ...", must_match=True
    )
    momentum: Fraction = option(0.9, "momentum (optimizer momentum only)", must_match=True)
    weight_decay: NotNegative = option(
        5e-4, "L2 coefficient; with adamw decoupled weight decay", must_match=True
    )
    weight_decay_layers: tuple[str, ...] = option(
        (),
        "layers or parameters to decay, such as conv1,fc.weight; default: all",
        must_match=True,
        parse=split_names,
    )
    total_steps: int = 1

    def check(self) -> None:
        if self.lr_schedule != "constant" and self.end_lr > self.learning_rate:
            raise ConfigError(
                f"end_lr is {self.end_lr}; expected at most the learning_rate, {self.learning_rate}"
            )
        for name, default in {"decay_steps": None, "power": 1.0, "cycle": False}.items():
            value = getattr(self, name)
            if self.lr_schedule != "polynomial" and value != default:
                raise ConfigError(
                    f"{name} is {value}, but lr_schedule is {self.lr_schedule!r}; expected "
                    f"lr_schedule 'polynomial', or {name} {default}"
                )
        if self.cycle and not self.decay_steps:
            raise ConfigError("cycle is on without decay_steps; expected both or neither")

    def __call__(self, parameters: "list[paddle.Tensor]") -> "paddle.optimizer.Optimizer":
        from paddle_mnist.mnist.model import PARAMETERS

        return self.build(dict(zip(PARAMETERS, parameters)))

    def build(self, parameters: "Mapping[str, paddle.Tensor]") -> "paddle.optimizer.Optimizer":
        """Build the optimizer of parameters, by name, such as "conv1.weight".

        weight_decay adds that multiple of a parameter to its gradient (L2), or with adamw shrinks
        the parameter itself by rate x weight_decay (Loshchilov & Hutter, "Decoupled Weight Decay",
        2019); it acts on all parameters, or on those that `weight_decay_layers` names, by
        themselves or by their layer. Raises ConfigError for a name that is neither a parameter's
        nor a layer's.
        """
        import paddle
        from paddle.regularizer import L2Decay

        decaying = self._decaying(parameters)
        own: dict[str, Any] = {}
        if self.optimizer == "momentum":
            own = {"momentum": self.momentum}
        if self.optimizer == "adamw":
            own = {
                "weight_decay": self.weight_decay,
                "apply_decay_param_fun": lambda name: name in decaying,
            }
        else:
            l2 = L2Decay(self.weight_decay) if self.weight_decay else None
            for parameter in parameters.values():
                parameter.regularizer = l2 if parameter.name in decaying else None
        kinds: dict[str, type[paddle.optimizer.Optimizer]] = {
            "sgd": paddle.optimizer.SGD,
            "momentum": paddle.optimizer.Momentum,
            "adagrad": paddle.optimizer.Adagrad,
            "adadelta": paddle.optimizer.Adadelta,
            "adam": paddle.optimizer.Adam,
            "adamw": paddle.optimizer.AdamW,
        }
        return kinds[self.optimizer](
            learning_rate=self.schedule(), parameters=[*parameters.values()], **own
        )

    def schedule(self) -> "paddle.optimizer.lr.LRScheduler":
        """Build the schedule, to be stepped after every batch; step `total_steps - 1` is the last.

        constant: learning_rate throughout.
        polynomial: Paddle's `PolynomialDecay`, down from learning_rate to end_lr in `decay_steps`,
            by default in all steps; straight unless `power` is not 1. With `cycle` the rate then
            jumps to where the decay would be over twice `decay_steps`, three times, and so on.
        cosine: half a cosine from learning_rate to end_lr (Loshchilov & Hutter, "SGDR", 2017).
        onecycle: up from learning_rate/25 to learning_rate in the first 30% of the steps, then
            down to end_lr, along cosines (Smith & Topin, "Super-Convergence", 2018).
        """
        from paddle.optimizer import lr

        rate, end = self.learning_rate, self.end_lr
        if self.lr_schedule == "constant":
            return lr.LambdaDecay(rate, lr_lambda=lambda step: 1.0)
        # At step n Paddle's rate is one of n+1 points; its decays end after as many steps.
        last = max(self.total_steps - 1, 1)
        if self.lr_schedule == "polynomial":
            steps = self.decay_steps or last
            return lr.PolynomialDecay(rate, steps, end, self.power, self.cycle)
        if self.lr_schedule == "cosine":
            return lr.CosineAnnealingDecay(rate, T_max=last, eta_min=end)
        return lr.OneCycleLR(
            max_learning_rate=rate, total_steps=max(self.total_steps, 2), end_learning_rate=end
        )

    def _decaying(self, parameters: "Mapping[str, paddle.Tensor]") -> set[str]:
        """Return the generated names of the parameters that decay."""
        chosen: set[str] = set()
        for name in self.weight_decay_layers or parameters:
            names = {
                parameter.name
                for path, parameter in parameters.items()
                if path == name or path.startswith(f"{name}.")
            }
            if not names:
                layers = dict.fromkeys(path.rpartition(".")[0] for path in parameters)
                known = [*layers, *parameters]
                raise ConfigError(unknown_name("weight_decay_layers", name, known))
            chosen |= names
        return chosen


@dataclass(frozen=True)
class CommandOptions(Options):
    """Options of the command itself."""

    heading = "run"

    max_restarts: CountOrZero = option(0, "maximum number of restarts when training dies or hangs")


BLOCKS = (BlockSizes(1, 28, 28, 20, 5, 2), BlockSizes(20, 14, 14, 20, 5, 2))


def net_sizes(has_dropout: bool = False) -> Net:
    """Return the compiled net of `MNIST`: all of its layers, or with dropout the features."""
    if has_dropout:
        return Net(BLOCKS, biases=(True, True))
    return Net(BLOCKS, biases=(True, True, True), classes=10)


def distortion_amounts(augment: tuple[str, ...]) -> dict[str, float]:
    """Return the amounts in a config's `augment`, by name; empty: no augmentation."""
    return {name: float(amount) for name, amount in (item.split("=") for item in augment)}

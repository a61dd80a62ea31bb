"""Optimizers and learning-rate schedules by name, from the `OptimizerOptions` of a training."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Union

import paddle
from paddle.optimizer import lr
from paddle.regularizer import L2Decay

from paddle_mnist.errors import ConfigError, nearest_name

if TYPE_CHECKING:  # it imports this module
    from paddle_mnist.mnist.options import OptimizerOptions


def build_schedule(options: "OptimizerOptions", total_steps: int) -> lr.LRScheduler:
    """Build the schedule, to be stepped after every batch; step `total_steps - 1` is the last.

    constant: learning_rate throughout.
    polynomial: straight down from learning_rate to end_lr.
    cosine: half a cosine from learning_rate to end_lr (Loshchilov & Hutter, "SGDR", 2017).
    onecycle: up from learning_rate/25 to learning_rate in the first 30% of the steps, then
        down to end_lr, along cosines (Smith & Topin, "Super-Convergence", 2018).
    """
    rate, end = options.learning_rate, options.end_lr
    if options.lr_schedule == "constant":
        return lr.LambdaDecay(rate, lr_lambda=lambda step: 1.0)
    # At step n Paddle's rate is one of n+1 points; its decays reach the end after as many steps.
    last = max(total_steps - 1, 1)
    if options.lr_schedule == "polynomial":
        return lr.PolynomialDecay(rate, decay_steps=last, end_lr=end)
    if options.lr_schedule == "cosine":
        return lr.CosineAnnealingDecay(rate, T_max=last, eta_min=end)
    return lr.OneCycleLR(
        max_learning_rate=rate, total_steps=max(total_steps, 2), end_learning_rate=end
    )


def build_optimizer(
    options: "OptimizerOptions",
    parameters: Mapping[str, paddle.Tensor],
    schedule: Union[float, lr.LRScheduler],
) -> paddle.optimizer.Optimizer:
    """Build the optimizer of parameters, by name, such as "conv1.weight".

    weight_decay adds that multiple of a parameter to its gradient (L2), or with adamw shrinks the
    parameter itself by rate x weight_decay (Loshchilov & Hutter, "Decoupled Weight Decay", 2019);
    it acts on all parameters, or on those that `weight_decay_layers` names, by themselves or by
    their layer. Raises ConfigError for a name that is neither a parameter's nor a layer's.
    """
    decaying = _decaying(parameters, options.weight_decay_layers)
    optimized = [*parameters.values()]
    if options.optimizer == "adamw":
        return paddle.optimizer.AdamW(
            learning_rate=schedule,
            parameters=optimized,
            weight_decay=options.weight_decay,
            apply_decay_param_fun=lambda name: name in decaying,
        )
    l2 = L2Decay(options.weight_decay) if options.weight_decay else None
    for parameter in optimized:
        parameter.regularizer = l2 if parameter.name in decaying else None
    makers: dict[str, Callable[..., paddle.optimizer.Optimizer]] = {
        "sgd": paddle.optimizer.SGD,
        "momentum": lambda **kw: paddle.optimizer.Momentum(momentum=options.momentum, **kw),
        "adagrad": paddle.optimizer.Adagrad,
        "adam": paddle.optimizer.Adam,
    }
    return makers[options.optimizer](learning_rate=schedule, parameters=optimized)


def _decaying(parameters: Mapping[str, paddle.Tensor], names: Collection[str]) -> set[str]:
    """Return the generated names of the parameters that decay: all of them if no names are given.

    names: of layers, which stand for all their parameters, and of single parameters.
    """
    if not names:
        return {parameter.name for parameter in parameters.values()}
    layers = dict.fromkeys(name.rpartition(".")[0] for name in parameters)
    chosen: set[str] = set()
    for name in names:
        found = [
            parameter.name
            for path, parameter in parameters.items()
            if path == name or path.startswith(f"{name}.")
        ]
        if not found:
            near = nearest_name(name, [*layers, *parameters])
            raise ConfigError(
                f"weight_decay_layers names {name!r}; "
                + (f"did you mean {near!r}? " if near else "")
                + f"the net's layers are {', '.join(layers)}, and its parameters "
                + ", ".join(parameters)
            )
        chosen.update(found)
    return chosen

"""Record statistics of a model's layers, parameters and gradients while it runs.

`paddle_mnist.metrics.visualdl` writes their histograms.
"""

import contextlib
import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.interfaces import Observer, View
from paddle_mnist.monitor.diagnosis import PATIENCE, Diagnosis, Finding
from paddle_mnist.monitor.hooks import (
    ForwardPasses,
    PassCallback,
    first_tensor,
    forward_hooks,
    leaf_layers,
    select_layers,
)
from paddle_mnist.nn.layers import dense_gradient, densify, own_gradient_hooks
from paddle_mnist.system.arrays import shared_array

log = logging.getLogger("paddle_mnist")

BLOCK = 2**16  # values, which stay in the cache while they are computed with
WHAT = ("outputs", "parameters", "gradients")


def warn(finding: Finding) -> None:
    """Log a finding as a warning."""
    log.warning("%s", finding)


class LayerWatch(Observer):
    """Records statistics of a model's layers and parameters, by tag, and reports problems.

    >>> with watch(model, every=10) as watched:
    ...     model(images)
    ...     print(watched.values["watch/relu1/zeros"], watched.findings)

    `values` holds the statistics of the newest recorded pass:

    watch/LAYER/mean, std, min, max: of the layer's output.
    watch/LAYER/zeros: the share of exact zeros in it.
    watch/LAYER/nonfinite: the number of NaN and infinite elements in it; if there are any, the
        values above are left out.
    watch/LAYER/dead: the number of channels (the second axis) that are all zero in this batch.
    watch/PARAMETER/norm, gradient_norm: Euclidean.
    watch/PARAMETER/update_ratio: the norm of the step's update over that of the parameter.

    If a layer is called several times in one pass, its later outputs are LAYER:2, LAYER:3.
    `shapes` and `dtypes` hold those of the outputs, by layer. `findings` holds each problem once
    (`paddle_mnist.monitor.diagnosis`). Works in training, in evaluation (without gradients and
    updates), and with a loaded model. `remove()`, or leaving a `with` block, ends it.

    As an observer of a `Trainer`, it watches steps, not evaluations, and logs its statistics with
    all other metrics. If several processes share a batch, it sees the outputs of this process's
    first shard, and the gradients of the whole batch.
    """

    def __init__(
        self,
        model: nn.Layer,
        what: Iterable[str] = WHAT,
        every: int = 1,
        layers: Optional[Iterable[str]] = None,
        *,
        on_finding: Callable[[Finding], None] = warn,
        start: int = 0,
        patience: int = PATIENCE,
    ):
        """Watch the first pass and every N-th.

        what: any of "outputs", "parameters" and "gradients".
        every: N.
        layers: names of layers, which include those inside them; by default all that contain no
            others.
        on_finding: called with each finding; by default it logs a warning.
        start: the number of passes before, such as the steps of a resumed run.
        patience: watched passes in a row with only zeros before a channel, layer or gradient is
            reported.

        Raises ConfigError for an unknown name.
        """
        self.what, self.every = set(what), every
        for name in self.what - set(WHAT):
            raise ConfigError(unknown_name("watch", name, WHAT))
        if every < 1:
            raise ConfigError(f"watch: every is {every}; expected at least 1")
        self._layers = leaf_layers(model)
        self._parameters = dict(model.named_parameters())
        if layers is not None:
            self._layers = select_layers(model, layers)
            self._parameters = {
                name: parameter
                for name, parameter in self._parameters.items()
                if name.rpartition(".")[0] in self._layers
            }
        self.diagnosis = Diagnosis(on_finding, patience)
        self.shapes: dict[str, list[int]] = {}
        self.dtypes: dict[str, str] = {}
        self._values: dict[str, float] = {}
        self._gradient_norms: dict[str, paddle.Tensor] = {}
        self._previous_weights: dict[str, paddle.Tensor] = {}
        self._gradient_hooks: list[Any] = []
        self._unfinished_step: Optional[int] = None  # watched, its weight update not yet recorded
        self._model = model
        self._calls: Counter[str] = Counter()  # of each layer, in the pass that is watched
        self._passes = ForwardPasses(model, self._is_due, self._watch_pass, start)

    @property
    def values(self) -> Mapping[str, float]:
        """The statistics of the newest watched pass that are known by now, by tag."""
        values = {**self._values, **dict(self._parameter_statistics())}
        return {tag: value for tag, value in values.items() if math.isfinite(value)}

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, in order; those of gradients up to the previous step."""
        return list(self.diagnosis.findings)

    def remove(self) -> None:
        """Stop watching, and keep the values and findings."""
        self._finish_step()
        self._passes.remove()

    def __enter__(self) -> "LayerWatch":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def on_epoch_start(self, view: View) -> None:
        self._passes.begin_step(view.step)

    def after_step(self, view: View) -> Mapping[str, float]:
        self._passes.begin_step(view.step)
        if self._unfinished_step is None:
            return {}
        for name in self._gradient_norms:  # by now the whole batch's
            gradient = dense_gradient(self._parameters[name])
            if gradient is not None:
                self._gradient_norms[name] = _norm(gradient)
        self._finish_step()
        return self._values

    def _is_due(self, number: int) -> bool:
        self._finish_step()  # the previous step is over when the next pass begins
        return number % self.every == 0 or number == 1

    @contextlib.contextmanager
    def _watch_pass(self, number: int) -> Iterator[Optional[PassCallback]]:
        self._values, self._unfinished_step = {}, number
        self._calls.clear()
        training = self._model.training
        if training and "parameters" in self.what:
            self._previous_weights = {
                name: parameter.clone().detach() for name, parameter in self._parameters.items()
            }
        if training and "gradients" in self.what:
            trained = {n: p for n, p in self._parameters.items() if not p.stop_gradient}
            self._gradient_hooks = [
                parameter.register_hook(functools.partial(self._record_gradient, name))
                for name, parameter in trained.items()
            ]
            own_gradient_hooks.update(map(id, trained.values()))
        if "outputs" in self.what:
            with forward_hooks(self._layers, functools.partial(self._record_output, number)):
                yield functools.partial(self._check_model, number)
        else:
            yield None

    def _record_gradient(self, name: str, gradient: paddle.Tensor) -> None:
        self._gradient_norms[name] = _norm(densify(gradient, self._parameters[name].shape))

    def _record_output(
        self, number: int, name: str, layer: nn.Layer, inputs: Any, output: paddle.Tensor
    ) -> None:
        """Record the statistics of an output, with NumPy: on CPUs much faster than Paddle."""
        self._calls[name] += 1
        if self._calls[name] > 1:
            name = f"{name}:{self._calls[name]}"
        self.shapes[name], self.dtypes[name] = list(output.shape), str(output.dtype)
        values = _as_float32(output)
        with np.errstate(all="ignore"):  # NaN and infinity are reported below
            mean = values.mean()
            statistics = {
                "mean": float(mean),
                "std": _std(values, mean),
                "min": float(values.min()),
                "max": float(values.max()),
                "zeros": np.count_nonzero(values == 0) / values.size,
            }
        root_mean_square, nonfinite = math.hypot(statistics["mean"], statistics["std"]), 0
        # Both minimum and maximum are NaN if any value is.
        if not math.isfinite(statistics["min"] + statistics["max"]):
            nonfinite, statistics = int(values.size - np.isfinite(values).sum()), {}
        dead = _zero_channels(values)
        statistics |= {"nonfinite": nonfinite, "dead": int(dead.sum())}
        self._values |= {f"watch/{name}/{tag}": value for tag, value in statistics.items()}
        layer_input = first_tensor(inputs)
        self.diagnosis.check_layer(number, name, layer, root_mean_square, nonfinite, layer_input)
        # Only a layer without parameters that maps channels one to one, such as a ReLU, can kill a
        # channel, and only if its input is not zero already, as it is in a pooling layer behind the
        # ReLU or at the border of images.
        is_plain = not layer.parameters() and not layer.sublayers()
        if layer_input is not None and is_plain and layer_input.shape[1:2] == output.shape[1:2]:
            if dead.any():
                dead &= ~_zero_channels(_as_float32(layer_input))
            self.diagnosis.check_channels(number, name, dead)

    def _check_model(self, number: int, inputs: Any, output: Any) -> None:
        model_input, outputs = first_tensor(inputs), first_tensor(output)
        if model_input is not None and outputs is not None and outputs.ndim == 2:
            self.diagnosis.check_model(number, _as_float32(model_input), _as_float32(outputs))

    def _finish_step(self) -> None:
        """Record how the watched step changed the parameters, and remove the gradient hooks."""
        if self._unfinished_step is None:
            return
        number, self._unfinished_step = self._unfinished_step, None
        self._values = dict(self.values)
        for hook in self._gradient_hooks:
            hook.remove()
        for name, norm in self._gradient_norms.items():
            self.diagnosis.check_gradient(number, name, float(norm.numpy()))
        self._previous_weights, self._gradient_norms, self._gradient_hooks = {}, {}, []

    def _parameter_statistics(self) -> Iterator[tuple[str, float]]:
        """Yield those statistics of the watched step's parameters that are known by now."""
        for name, previous in self._previous_weights.items():
            norm = float(_norm(previous).numpy())  # without `numpy` ten times as long
            change = float(_norm(self._parameters[name].detach() - previous).numpy())
            yield f"watch/{name}/norm", norm
            if change and norm:  # no change: the step has not updated the weights yet
                yield f"watch/{name}/update_ratio", change / norm
        for name, gradient_norm in self._gradient_norms.items():
            yield f"watch/{name}/gradient_norm", float(gradient_norm.numpy())


def _std(values: np.ndarray, mean: np.float32) -> float:
    """Return the standard deviation, block by block: the differences of all would need memory."""
    flat = values.reshape(-1)
    blocks = (flat[start : start + BLOCK] - mean for start in range(0, flat.size, BLOCK))
    return math.sqrt(sum(float(np.einsum("i,i->", block, block)) for block in blocks) / flat.size)


def _zero_channels(values: np.ndarray) -> np.ndarray:
    """Return whether each channel, on the second axis, is all zero: bool [C]."""
    if values.ndim < 2:
        return np.atleast_1d((values == 0).all())
    other_axes = tuple(axis for axis in range(values.ndim) if axis != 1)
    is_zero: np.ndarray = (values[:1] == 0).all(axis=other_axes)  # few are, in one sample
    is_zero[is_zero] = (values[:, is_zero] == 0).all(axis=other_axes)
    return is_zero


def _as_float32(tensor: paddle.Tensor) -> np.ndarray:
    return shared_array(tensor if tensor.dtype == paddle.float32 else tensor.astype("float32"))


def _norm(tensor: paddle.Tensor) -> paddle.Tensor:
    return tensor.detach().astype("float32").norm()


watch = LayerWatch

"""Read the outputs of a model's layers with forward hooks, and remove the hooks afterwards."""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.nn.layers import evaluation_mode, read_only
from paddle_mnist.system.arrays import as_array

# Called with a layer's name, the layer, its inputs and its output.
LayerCallback = Callable[[str, nn.Layer, Any, paddle.Tensor], None]
# Called with the inputs and the output of a model's forward pass.
PassCallback = Callable[[Any, Any], None]


@contextlib.contextmanager
def recording_outputs(
    layers: Mapping[str, nn.Layer], outputs: dict[str, np.ndarray]
) -> Iterator[None]:
    """Within the context, add each layer's output to a dict; that of its second call as NAME:2."""
    calls: Counter[str] = Counter()

    def record(name: str, layer: nn.Layer, inputs: Any, output: paddle.Tensor) -> None:
        calls[name] += 1
        values = output.astype("float32") if output.dtype == paddle.bfloat16 else output
        outputs[name if calls[name] == 1 else f"{name}:{calls[name]}"] = as_array(values)

    with forward_hooks(layers, record):
        yield


@contextlib.contextmanager
def forward_hooks(layers: Mapping[str, nn.Layer], callback: LayerCallback) -> Iterator[None]:
    """Within the context, call `callback(name, layer, inputs, output)` after each layer's forward.

    output: the layer's output, or the first tensor of several; without one there is no call.
    """

    def make_hook(name: str) -> Any:  # Paddle's types have no hook that returns nothing
        @read_only
        def hook(layer: nn.Layer, inputs: Any, output: Any) -> None:
            tensor = first_tensor(output)
            if tensor is not None and tensor.size:
                callback(name, layer, inputs, tensor)

        return hook

    handles = [layer.register_forward_post_hook(make_hook(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(output: Any) -> Optional[paddle.Tensor]:
    """Return the output, or the first tensor in a tuple, list or dict; None if there is none."""
    if isinstance(output, paddle.Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output
    tensors = map(first_tensor, values) if isinstance(output, (tuple, list, dict)) else ()
    return next((tensor for tensor in tensors if tensor is not None), None)


def leaf_layers(model: nn.Layer) -> dict[str, nn.Layer]:
    """Return the layers that contain no others, by name; a single layer is itself "net"."""
    layers = {name: layer for name, layer in model.named_sublayers() if not layer.sublayers()}
    return layers or {"net": model}


def select_layers(model: nn.Layer, names: Iterable[str]) -> dict[str, nn.Layer]:
    """Return the layers of these names and those inside them. Raises ConfigError."""
    layers = dict(model.named_sublayers())
    selected: dict[str, nn.Layer] = {}
    for name in names:
        if name not in layers:
            raise ConfigError(unknown_name("watch", name, layers))
        selected |= {n: layer for n, layer in layers.items() if f"{n}.".startswith(f"{name}.")}
    return selected


def outputs_of(
    model: nn.Layer, inputs: paddle.Tensor, layers: Collection[str]
) -> dict[str, np.ndarray]:
    """Return the outputs of some layers, by name, for a batch of inputs; in evaluation mode."""
    outputs: dict[str, np.ndarray] = {}

    def record(name: str, layer: nn.Layer, layer_inputs: Any, output: paddle.Tensor) -> None:
        outputs[name] = output.numpy()

    hooks = forward_hooks(select_layers(model, layers), record)
    with evaluation_mode(model), paddle.no_grad(), hooks:
        model(inputs)
    return outputs


class ForwardPasses:
    """Counts the forward passes of a model and opens a context around those that are due.

    The first pass has the number `start` + 1. A trainer calls `begin_step`; then only the first
    training pass of each step counts, and has the number of the step.
    """

    def __init__(
        self,
        model: nn.Layer,
        is_due: Callable[[int], bool],
        make_context: Callable[[int], contextlib.AbstractContextManager[Optional[PassCallback]]],
        start: int = 0,
    ):
        """is_due: called with the number of each pass that counts.

        make_context: called with the number of a pass that is due. If the context yields a
            function, that is called after the pass, with its inputs and its output.
        """
        self.number = start  # of the newest pass
        self._is_due, self._make_context = is_due, make_context
        self._counts_steps = False
        self._step_has_passed = False  # whether the current step has had a training pass
        self._context = contextlib.ExitStack()
        self._callback: Optional[PassCallback] = None
        before: Any = self._before_pass  # Paddle's types have no hook that returns nothing
        after: Any = self._after_pass
        self._handles = [
            model.register_forward_pre_hook(before),
            model.register_forward_post_hook(after),
        ]

    def begin_step(self, steps_done: int) -> None:
        """Count the training passes up to the next call as one step."""
        self.number, self._counts_steps, self._step_has_passed = steps_done, True, False

    @read_only
    def _before_pass(self, model: nn.Layer, inputs: Any) -> None:
        self._close()  # the context of a pass that raised
        if self._counts_steps and (self._step_has_passed or not model.training):
            return
        self._step_has_passed = True
        self.number += 1
        if self._is_due(self.number):
            self._callback = self._context.enter_context(self._make_context(self.number))

    @read_only
    def _after_pass(self, model: nn.Layer, inputs: Any, output: Any) -> None:
        if self._callback:
            self._callback(inputs, output)
        self._callback = None
        # A model without sublayers has the context's own hooks, and Paddle is iterating over them.
        if model.sublayers():
            self._close()

    def _close(self) -> None:
        self._callback = None
        self._context.close()

    def remove(self) -> None:
        """Remove the hooks."""
        self._close()
        for handle in self._handles:
            handle.remove()

"""Looking into a net while it runs, through hooks that are removed afterwards."""

import contextlib
import functools
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.monitor.diagnosis import PATIENCE, Diagnosis, Finding
from paddle_mnist.state import Observer, View

log = logging.getLogger("paddle_mnist")

WHAT = ("outputs", "parameters", "gradients")

Look = Callable[[str, nn.Layer, Any, paddle.Tensor], None]
Finish = Callable[[Any, Any], None]


@contextlib.contextmanager
def _hooked(layers: Mapping[str, nn.Layer], look: Look) -> Iterator[None]:
    """While this is open, `look(name, layer, inputs, output)` follows each layer's forward."""

    def hook(name):
        def follow(layer, inputs, output):
            tensor = _tensor(output)
            if tensor is not None and tensor.size:
                look(name, layer, inputs, tensor)

        follow.only_looks = True
        return follow

    handles = [layer.register_forward_post_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def evaluation_mode(model: nn.Layer) -> Iterator[None]:
    """Put a model in evaluation mode, and each of its layers back in its own mode afterwards."""
    modes = [(layer, layer.training) for layer in model.sublayers(include_self=True)]
    model.eval()
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training


def only_looks(hook: Callable) -> bool:
    """Whether a layer's hook is one of this module's, which change nothing that passes."""
    return getattr(hook, "only_looks", False)


def _tensor(output: Any) -> Optional[paddle.Tensor]:
    """The output, or the first tensor of several; None where there is none."""
    if isinstance(output, paddle.Tensor):
        return output
    several = output.values() if isinstance(output, dict) else output
    found = map(_tensor, several) if isinstance(output, (tuple, list, dict)) else ()
    return next((tensor for tensor in found if tensor is not None), None)


def _leaves(model: nn.Layer) -> dict[str, nn.Layer]:
    """The layers that hold no others, by name."""
    return {name: layer for name, layer in model.named_sublayers() if not layer.sublayers()}


class _Passes:
    """Opens a context around those forward passes of a model that are due.

    Training passes are counted from 1 on top of `start`, so the number of one is that of its step;
    one of an evaluation has the number of the training pass before it. Where batches are cut into
    shards, a step takes several passes: the first of them stands for it.
    """

    def __init__(
        self,
        model: nn.Layer,
        due: Callable[[int, bool], bool],
        around: Callable[[int], contextlib.AbstractContextManager[Optional[Finish]]],
        start: int = 0,
        passes_a_step: int = 1,
    ):
        """due: of a pass's number, and whether it is one of training.

        around: what it gives, if anything, is called with the inputs and the output of the pass.
        """
        self.number = start
        self._due, self._around, self._passes_a_step = due, around, passes_a_step
        self._shard = 0  # of the training pass to come, in its step
        self._inside = contextlib.ExitStack()
        self._finish: Optional[Finish] = None
        self._handles = [
            model.register_forward_pre_hook(self._before),
            model.register_forward_post_hook(self._after),
        ]

    def _before(self, model, inputs) -> None:
        self._close()  # of a pass that was broken off
        first = not model.training or self._shard == 0
        if model.training:
            self.number += first
            self._shard = (self._shard + 1) % self._passes_a_step
        if first and self._due(self.number, model.training):
            self._finish = self._inside.enter_context(self._around(self.number))

    def _after(self, model, inputs, output) -> None:
        if self._finish:
            self._finish(inputs, output)
        self._close()

    def _close(self) -> None:
        self._finish = None
        self._inside.close()

    def remove(self) -> None:
        self._close()
        for handle in self._handles:
            handle.remove()


@contextlib.contextmanager
def printed(
    model: nn.Layer,
    shape: bool = False,
    content: bool = False,
    say: Callable[[str], None] = print,
) -> Iterator[None]:
    """While this is open, each forward pass prints what the tutorial's flags print, in its order.

    Beyond the tutorial's, the pools are among the hyper-parameters, and each shape is followed by
    the layer's name.

    shape: the hyper-parameters of each layer that has any (kernel, padding, stride; sizes of weight
        and bias), then the shapes of the input and of each layer's output.
    content: of each convolution the kernel from its first input to its first output channel; of
        each convolution one random channel of the first image's output, drawn with NumPy's global
        generator; and the last layer's output of the first image.
    say: called with each text.
    """
    layers = _leaves(model)
    convolutions = {n: layer for n, layer in layers.items() if isinstance(layer, nn.Conv2D)}
    first, last = next(iter(layers)), list(layers)[-1]
    numbers = itertools.count(1)
    channels: list[str] = []

    def show_shape(name, layer, inputs, output):
        if name == first:
            say("\n########## print shape of features of every layer ###############")
            say(f"inputs_shape: {list(inputs[0].shape)}")
        say(f"outputs{next(numbers)}_shape: {list(output.shape)} ({name})")

    def show_content(name, layer, inputs, output):
        if name in convolutions:
            channel = np.random.randint(0, output.shape[1])
            blank = "" if channels else "\n"
            channels.append(f"{blank}The {channel}th channel of {name} layer: {output[0][channel]}")
        if name == last:
            show_kernels_and_channels()
            say(f"The output of last layer: {output[0]}\n")

    def show_kernels_and_channels():
        say("\n########## print convolution layer's kernel ###############")
        for name, layer in convolutions.items():
            say(f"{name} params -- kernel weights: {layer.weight[0][0]}")
        for text in channels:
            say(text)
        channels.clear()

    with contextlib.ExitStack() as stack:
        if shape:
            say("\n########## print network layer's superparams ##############")
            for kind in (nn.Conv2D, nn.MaxPool2D, nn.Layer):
                for name, layer in layers.items():
                    if _kind(layer) is kind and (hyperparameters := _hyperparameters(layer)):
                        say(f"{name}-- {hyperparameters}")
            stack.enter_context(_hooked(layers, show_shape))
        if content:
            stack.enter_context(_hooked(layers, show_content))
        try:
            yield
        finally:
            if channels:  # the pass was broken off before the last layer
                show_kernels_and_channels()


def _kind(layer: nn.Layer) -> type:
    """What the tutorial tells apart: convolutions first, then pools, then all others."""
    return next(kind for kind in (nn.Conv2D, nn.MaxPool2D, nn.Layer) if isinstance(layer, kind))


def _hyperparameters(layer: nn.Layer) -> str:
    """A layer's, as the tutorial prints them. Paddle keeps them in private attributes."""
    if isinstance(layer, nn.Conv2D):
        size, padding, stride = list(layer.weight.shape), layer._padding, layer._stride
        return f"kernel_size:{size}, padding:{padding}, stride:{stride}"
    if isinstance(layer, nn.MaxPool2D):
        return f"kernel_size:{layer.ksize}, padding:{layer.padding}, stride:{layer.stride}"
    if isinstance(layer, nn.Linear):
        bias = None if layer.bias is None else list(layer.bias.shape)
        return f"weight_size:{list(layer.weight.shape)}, bias_size:{bias}"
    return layer.extra_repr()


def print_at(
    model: nn.Layer,
    shape: Collection[int],
    content: Collection[int],
    start: int = 0,
    say: Callable[[str], None] = print,
    passes_a_step: int = 1,
) -> _Passes:
    """Print as `printed` does in some batches of a training, counted from 0; gives a handle.

    start: the number of batches that were trained before. passes_a_step: shards of a batch in this
    process, of which the first is printed. The handle's `remove()` ends it.
    """

    def due(number, training):
        return training and (number - 1 in shape or number - 1 in content)

    @contextlib.contextmanager
    def around(number):
        say(f"batch {number - 1}:")
        with printed(model, number - 1 in shape, number - 1 in content, say):
            yield

    return _Passes(model, due, around, start, passes_a_step)


class Watch(Observer):
    """Figures of a net's layers and parameters, by tag, and what is wrong with them in words.

    `values` holds the figures of the newest pass that was looked at:

    watch/LAYER/mean, std, min, max: of the layer's output.
    watch/LAYER/zeros: the share of exact zeros in it.
    watch/LAYER/nonfinite: how many are NaN or infinite; the figures above are then left out.
    watch/LAYER/dead: how many channels (the second axis) are all zero in this batch.
    watch/PARAMETER/norm, gradient_norm: Euclidean.
    watch/PARAMETER/update_ratio: the norm of the step's change over that of the parameter.

    A layer that is called again in one pass has its further outputs as LAYER:2, LAYER:3.
    `shapes` and `dtypes` hold the outputs', by layer. `findings` holds what was found wrong, each
    thing once (`paddle_mnist.monitor.diagnosis`). Works in training, in evaluation (then without
    gradients and changes), and on a model that was loaded. `remove()`, or leaving a `with`,
    ends it.

    As an observer of a `Trainer` its figures are written with all others, those of an evaluation
    as valid/watch/LAYER/.... Where several processes share a batch, outputs are those of this one's
    first shard; gradients are the whole batch's.
    """

    def __init__(
        self,
        model: nn.Layer,
        what: Iterable[str] = WHAT,
        every: int = 1,
        layers: Optional[Iterable[str]] = None,
        *,
        tell: Callable[[Finding], None] = lambda finding: log.warning("%s", finding),
        train_only: bool = False,
        start: int = 0,
        patience: int = PATIENCE,
        passes_a_step: int = 1,
    ):
        """Look at the first pass and every `every`-th, of training and of evaluation alike.

        what: of "outputs", "parameters" and "gradients".
        layers: names of layers, those inside them included; by default all that hold no others.
        tell: called with each finding; by default it is logged.
        train_only: leave evaluations alone.
        start: steps that were trained before, in a training that goes on.
        patience: looks in a row at which something is zero until it is called dead.
        passes_a_step: shards of a batch in this process.
        Raises ConfigError for a name that is none.
        """
        self.what, self.every, self.train_only = set(what), every, train_only
        for name in self.what - set(WHAT):
            raise ConfigError(unknown_name("watch", name, WHAT))
        if every < 1:
            raise ConfigError(f"watch looks every {every} passes; expected at least 1")
        self._layers = _leaves(model) or {"": model}
        self._parameters = dict(model.named_parameters())
        if layers is not None:
            self._layers = _chosen(model, layers)
            self._parameters = {
                name: parameter
                for name, parameter in self._parameters.items()
                if name.rpartition(".")[0] in self._layers
            }
        self._diagnosis = Diagnosis(tell, patience)
        self.shapes: dict[str, list[int]] = {}
        self.dtypes: dict[str, str] = {}
        self._values: dict[str, float] = {}
        self._gradients: dict[str, paddle.Tensor] = {}
        self._before: dict[str, paddle.Tensor] = {}
        self._hooks: list[Any] = []
        self._looked: Optional[int] = None  # the step whose change of the weights is awaited
        self._model = model
        self._evaluated = 0
        self._seen_in_evaluation = False
        self._calls: Counter = Counter()  # of each layer, in the pass that is looked at
        self._passes = _Passes(model, self._due, self._look, start, passes_a_step)

    @property
    def values(self) -> Mapping[str, float]:
        """The figures of the newest pass that was looked at, by tag, as far as they are known."""
        found = {**self._values, **dict(self._figures_of_parameters())}
        return {tag: value for tag, value in found.items() if math.isfinite(value)}

    @property
    def findings(self) -> list[Finding]:
        """What was found wrong so far, in order; in gradients, up to the step before."""
        return list(self._diagnosis.findings)

    def remove(self) -> None:
        """Look no longer; what was seen stays."""
        self._complete()
        self._passes.remove()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *error) -> None:
        self.remove()

    def after_step(self, view: View) -> Mapping[str, float]:
        if self._looked is None:
            return {}
        for name in self._gradients:  # now the whole batch's
            self._gradients[name] = _norm(self._parameters[name].grad)
        self._complete()
        return self._values

    def after_epoch(self, view: View) -> Mapping[str, float]:
        if not self._seen_in_evaluation:
            return {}
        self._complete()
        self._seen_in_evaluation = False
        return {f"valid/{tag}": value for tag, value in self._values.items()}

    def _due(self, number: int, training: bool) -> bool:
        self._complete()  # the look before this pass: its step is done
        if training:
            return number % self.every == 0 or number == 1
        if self.train_only:
            return False
        self._evaluated += 1
        return self._evaluated % self.every == 0 or self._evaluated == 1

    @contextlib.contextmanager
    def _look(self, number: int) -> Iterator[Optional[Finish]]:
        self._values, self._looked = {}, number
        self._calls.clear()
        training = self._model.training
        self._seen_in_evaluation = not training
        if training and "parameters" in self.what:
            self._before = {name: p.clone().detach() for name, p in self._parameters.items()}
        if training and "gradients" in self.what:
            self._hooks = [
                p.register_hook(lambda gradient, name=name: self._keep(name, gradient))
                for name, p in self._parameters.items()
                if not p.stop_gradient
            ]
        if "outputs" in self.what:
            with _hooked(self._layers, functools.partial(self._note, number)):
                yield functools.partial(self._judge_answers, number)
        else:
            yield None

    def _keep(self, name: str, gradient: paddle.Tensor) -> None:
        self._gradients[name] = _norm(gradient)

    def _note(self, number: int, name: str, layer, inputs, output: paddle.Tensor) -> None:
        """Figures of one output. NumPy's, which on a CPU are much quicker than Paddle's."""
        self._calls[name] += 1
        if self._calls[name] > 1:
            name = f"{name}:{self._calls[name]}"
        self.shapes[name], self.dtypes[name] = list(output.shape), str(output.dtype)
        values = _floats(output)
        with np.errstate(all="ignore"):  # what is not finite is told below
            found = {
                "mean": float(values.mean()),
                "std": float(values.std()),
                "min": float(values.min()),
                "max": float(values.max()),
                "zeros": 1 - np.count_nonzero(values) / values.size,
            }
        size, nonfinite = math.hypot(found["mean"], found["std"]), 0
        if not math.isfinite(found["min"] + found["max"]):  # a NaN is both, wherever it is
            nonfinite, found = int(values.size - np.isfinite(values).sum()), {}
        dead = _zero_channels(values)
        found |= {"nonfinite": nonfinite, "dead": int(dead.sum())}
        self._values |= {f"watch/{name}/{what}": value for what, value in found.items()}
        given = _tensor(inputs)
        self._diagnosis.size(number, name, layer, size, nonfinite, given)
        # Only a layer that hands channels on one by one, such as a ReLU, can be what killed one,
        # and not one that was zero before (in pooling after it, or at the border of images).
        plain = not layer.parameters() and not layer.sublayers()
        if given is not None and plain and given.shape[1:2] == output.shape[1:2]:
            own = dead & ~_zero_channels(_floats(given))
            self._diagnosis.channels(number, name, own, self._model.training)

    def _judge_answers(self, number: int, inputs: Any, output: Any) -> None:
        given, answers = _tensor(inputs), _tensor(output)
        if given is not None and answers is not None and answers.ndim == 2:
            self._diagnosis.answers(number, _floats(given), _floats(answers))

    def _complete(self) -> None:
        """The step that was looked at is done, or nothing more will come of it."""
        if self._looked is None:
            return
        number, self._looked = self._looked, None
        self._values = self.values
        for hook in self._hooks:
            hook.remove()
        for name, norm in self._gradients.items():
            self._diagnosis.gradient(number, name, norm.item())
        self._before, self._gradients, self._hooks = {}, {}, []

    def _figures_of_parameters(self) -> Iterator[tuple[str, float]]:
        """Of the step that was looked at, as far as it has come."""
        for name, before in self._before.items():
            size = _norm(before).item()
            change = _norm(self._parameters[name] - before).item()
            yield f"watch/{name}/norm", size
            if change and size:  # else the step is not done yet, or there is none
                yield f"watch/{name}/update_ratio", change / size
        for name, norm in self._gradients.items():
            yield f"watch/{name}/gradient_norm", norm.item()


def _zero_channels(values: np.ndarray) -> np.ndarray:
    """Whether each channel, of the second axis, is all zero: bool [C]."""
    others = tuple(axis for axis in range(values.ndim) if axis != 1)
    return ~(values.any(axis=others) if values.ndim > 1 else values.any(keepdims=True))


def _floats(tensor: paddle.Tensor) -> np.ndarray:
    return tensor.detach().astype("float32").numpy()


@paddle.no_grad()
def _norm(tensor: paddle.Tensor) -> paddle.Tensor:
    return paddle.sqrt((tensor.detach().astype("float32") ** 2).sum())


def _chosen(model: nn.Layer, names: Iterable[str]) -> dict[str, nn.Layer]:
    """The layers of these names, and those inside them. Raises ConfigError."""
    known = dict(model.named_sublayers())
    chosen = {}
    for name in names:
        if name not in known:
            raise ConfigError(unknown_name("watch", name, known))
        chosen |= {n: layer for n, layer in known.items() if f"{n}.".startswith(f"{name}.")}
    return chosen


def outputs_of(
    model: nn.Layer, images: paddle.Tensor, layers: Collection[str]
) -> dict[str, np.ndarray]:
    """The outputs of some layers, by name, for images [B, 1, 28, 28]; in evaluation mode."""
    found: dict[str, np.ndarray] = {}
    look = _hooked(
        _chosen(model, layers), lambda name, layer, i, output: found.update({name: output.numpy()})
    )
    with evaluation_mode(model), paddle.no_grad(), look:
        model(images)
    return found


def watch(model: nn.Layer, what: Iterable[str] = WHAT, every: int = 1, **options: Any) -> Watch:
    """Look into a model while it runs: `Watch(model, what, every, ...)`, to be removed again.

    >>> with watch(model, every=10) as seen:
    ...     model(images)
    ...     print(seen.values["watch/relu1/zeros"], seen.findings)
    """
    return Watch(model, what, every, **options)

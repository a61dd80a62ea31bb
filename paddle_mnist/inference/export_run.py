"""Export what a run has trained: any net, which the caller builds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.structures import explained
from paddle_mnist.errors import ConfigError
from paddle_mnist.inference.export import export_layer
from paddle_mnist.inference.exported import Input, Signature
from paddle_mnist.nn.layers import evaluation_mode
from paddle_mnist.system.arrays import as_array
from paddle_mnist.training.trained_model import Model, load_model

# The specification of an input, or a batch of its samples
Example = Union[paddle.static.InputSpec, np.ndarray, paddle.Tensor]
SPECIFIED_SAMPLES = 4  # in the batch that is drawn for a specification


def export_run(
    weights: Union[str, Path],
    model: Model,
    folder: Union[str, Path],
    inputs: Union[Example, Sequence[Example]],
    *,
    outputs: Sequence[str] = (),
    run: Union[str, Path, None] = None,
    format: str = "paddle",
) -> dict[str, object]:
    """Export the net that a run has trained as files that can be used without this package.

    weights, model, run: see `load_model`. The net takes one input or several, and returns a tensor,
        or several in a tuple, list or dict.
    folder: where the files go; `paddle_mnist.inference.predictor.Predictor` runs them.
    inputs: the specification of the input, whose first dimension is that of the samples and whose
        others are fixed; or a batch of samples, from which it is derived. Pass a list of them for a
        net with several inputs. The exported model is run on this batch, by default on random
        numbers or zeros, and its outputs must be those of the net.
    outputs: names of the outputs; by default the keys of a dict, "output", or "output0", ....
    format: "paddle" or "onnx".

    Returns the contents of the folder's `about.json`. Raises ConfigError, DeviceError, OutputError,
    and CheckpointError, also if the exported model's outputs differ from those of the net.
    """
    trained = load_model(weights, model, run)
    specs, batches = _examples(inputs)
    with evaluation_mode(trained), paddle.no_grad(), explained(batches, "the model"):
        example = trained(*map(paddle.to_tensor, batches))
    names = _output_names(example, outputs)
    keys = list(example) if isinstance(example, Mapping) else []
    signature = Signature(specs, names)
    about = {"weights": str(weights)}
    return export_layer(_AsList(trained, keys), Path(folder), signature, batches, format, about)


def _examples(inputs: Any) -> tuple[tuple[Input, ...], list[np.ndarray]]:
    """Return the specification of each input and a batch of it. Raises ConfigError."""
    if not isinstance(inputs, (list, tuple)):
        named = [_example(inputs, "input")]
    else:
        named = [_example(one, f"input{number}") for number, one in enumerate(inputs)]
    names = [name for name, _ in named]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"inputs are called {', '.join(names) or 'nothing'}; expected at least one, and each "
            "by a name of its own"
        )
    lengths = [len(batch) for _, batch in named]
    if len(set(lengths)) > 1:
        raise ConfigError(
            f"inputs have {', '.join(map(str, lengths))} samples; expected as many of each; of "
            f"a specification there are {SPECIFIED_SAMPLES}"
        )
    specs = tuple(Input(name, batch.dtype.name, batch.shape[1:]) for name, batch in named)
    return specs, [batch for _, batch in named]


def _example(inputs: Any, usual_name: str) -> tuple[str, np.ndarray]:
    """Return the name of an input and a batch of it. Raises ConfigError."""
    if not isinstance(inputs, paddle.static.InputSpec):
        batch = as_array(inputs)
        if batch.ndim < 1 or not batch.size or batch.dtype.kind not in "biuf":
            raise ConfigError(
                f"inputs are {batch.dtype} {list(batch.shape)}; expected a batch of samples "
                "[N, ...], or a paddle.static.InputSpec"
            )
        return usual_name, batch
    samples, *shape = inputs.shape or [1]
    if samples not in (-1, None) or not all(size and size > 0 for size in shape):
        raise ConfigError(
            f"inputs are {inputs}; expected None as the first dimension, and sizes as the others"
        )
    dtype = str(inputs.dtype).rpartition(".")[2].lower()
    numbers = np.random.RandomState(0).standard_normal([SPECIFIED_SAMPLES, *shape])
    batch = numbers if dtype.startswith("float") else np.zeros_like(numbers)
    return inputs.name or usual_name, batch.astype(dtype)


def _output_names(example: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a model's outputs. Raises ConfigError."""
    values = list(example.values()) if isinstance(example, Mapping) else example
    values = values if isinstance(values, (tuple, list)) else [values]
    if not all(isinstance(value, paddle.Tensor) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values)
        raise ConfigError(f"the model returns {kinds}; expected tensors; export a layer around it")
    if names and (len(names) != len(values) or len(set(names)) < len(names)):
        raise ConfigError(
            f"outputs are {', '.join(names)}; expected {len(values)} different names, one for "
            "each tensor that the model returns"
        )
    if isinstance(example, Mapping):
        usual = list(map(str, example))
    else:
        usual = [f"output{number}" for number in range(len(values))] if len(values) > 1 else []
    return tuple(names) or tuple(usual) or ("output",)


class _AsList(nn.Layer):
    """A net that returns its outputs in a list. keys: of the dict that it returns, if it does."""

    def __init__(self, model: nn.Layer, keys: Sequence[Any]):
        super().__init__()
        self.model, self.keys = model, keys

    def forward(self, inputs: Union[paddle.Tensor, list[paddle.Tensor]]) -> list[paddle.Tensor]:
        outputs = self.model(*inputs) if isinstance(inputs, list) else self.model(inputs)
        if self.keys:
            return [outputs[key] for key in self.keys]
        return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]

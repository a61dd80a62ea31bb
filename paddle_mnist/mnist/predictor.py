"""Run a trained or exported MNIST model on images in any of the usual forms."""

import logging
import os
import queue
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint.names import CHECKPOINT_WORDS, TO_PREDICT, find_weights
from paddle_mnist.errors import CheckpointError, ConfigError, DataError
from paddle_mnist.inference.predictor import InferenceFn, Predictor, check_counts, is_exported
from paddle_mnist.mnist.export import (
    INPUT,
    OUTPUTS,
    USUAL_OUTPUTS,
    ExportedModel,
    conv_for,
    signature,
)
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.own_nets import OwnNet, is_tutorials, load_net
from paddle_mnist.mnist.splits import SIZE, noun_of
from paddle_mnist.system.arrays import as_array
from paddle_mnist.system.devices import select_device

log = logging.getLogger("paddle_mnist")


def as_pixels(images: Any) -> np.ndarray:
    """Return images as the exported model takes them: uint8 [N, 28, 28], 0 to 255.

    images: uint8 in 0..255 or floats in 0..1; [28, 28], [1, 28, 28], [N, 28, 28] or
        [N, 1, 28, 28]. Floats are rounded to 256ths, which is exact for `MnistDataset`'s.
    Raises DataError.
    """
    try:
        images = as_array(images)
    except ValueError as error:
        raise DataError(f"images are not an array ({error}); expected uint8 [N, 28, 28]") from error
    form = f"images are {images.dtype} {list(images.shape)}"
    if images.ndim == 4 and images.shape[1] == 1:
        images = images[:, 0]
    if images.ndim == 2:
        images = images[np.newaxis]
    if images.ndim != 3 or images.shape[1:] != (SIZE, SIZE):
        raise DataError(f"{form}; expected [28, 28], [N, 28, 28] or [N, 1, 28, 28]")
    if not len(images):
        raise DataError(f"{form}; expected at least one image")
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if images.dtype.kind != "f":
        raise DataError(f"{form}; expected uint8 (0 to 255) or floats (0 to 1)")
    if not (images.min() >= 0 and images.max() <= 1):
        raise DataError(
            f"{form} from {images.min():g} to {images.max():g}; expected 0 to 1; scale them, or "
            "pass uint8"
        )
    pixels: np.ndarray = np.minimum(np.rint(images * np.float32(256)), 255).astype(np.uint8)
    return pixels


class DigitPredictor(Predictor):
    """Runs a trained or exported MNIST model; any number of threads may call `run` at once.

    `run` takes images in every form that `as_pixels` accepts, and returns float32 arrays [N, ...].

    folder: a run, a checkpoint, a `.pdparams` file, "latest", "best" or "pretrained", as
        `load_model` takes them; or the folder that `export_model` or the command `export` wrote,
        in Paddle's format or as ONNX.
    device: "auto", "cpu" or another, as for `fit`; ONNX runs on the CPU.
    batch_size: the largest number of images computed at once, which bounds the memory.
    threads: CPU threads of one computation. parallel: how many computations may run at once, each
        with its own buffers; further calls wait. Both are for exported models: weights compute one
        call at a time.
    run: the run that "latest", "best" or the name of a checkpoint refers to; by default the newest
        in work/output. outputs: names of `OUTPUTS`, for a net with weights.
    net: of weights that are not the tutorial's; see `paddle_mnist.mnist.own_nets.load_net`.

    Attributes: about, the contents of `about.json`, or the names of the weights and their dataset;
    outputs, the names of the outputs, in order; is_pretrained, whether the weights are those that
    come with the package.
    Raises CheckpointError if there is no MNIST model or it is damaged, ConfigError, and
    DeviceError.
    """

    def __init__(
        self,
        folder: Union[str, Path],
        device: str = "auto",
        threads: int = 1,
        parallel: int = 1,
        batch_size: int = 256,
        *,
        run: Union[str, Path, None] = None,
        outputs: Sequence[str] = USUAL_OUTPUTS,
        net: Optional[OwnNet] = None,
    ):
        self.is_pretrained = str(folder) == "pretrained"
        path = Path(os.path.expanduser(folder))
        if str(folder) in CHECKPOINT_WORDS or not is_exported(path):
            check_counts(threads=threads, parallel=parallel, batch_size=batch_size)
            select_device(device)
            model, self.about = _open_net(folder, run, net)
            self._run_in_python(model, outputs, batch_size)
            return
        if run is not None or net:
            other = f"the net {net}" if run is None else f"the run {run}"
            raise ConfigError(
                f"{folder}, an exported model, and {other} are given; expected one of them"
            )
        super().__init__(path, device, threads, parallel, batch_size)
        expected = {name: OUTPUTS.get(name) for name in self.outputs}
        if self.signature != signature(self.outputs) or self.output_shapes != expected:
            raise CheckpointError(
                f"{folder}: takes {', '.join(map(str, self.signature.inputs))} and gives outputs "
                f"of shapes {self.output_shapes}; expected a model that the command export wrote; "
                "paddle_mnist.inference.predictor.Predictor runs any exported model"
            )

    @property
    def reads_digits(self) -> bool:
        """Whether the model was trained on digits; true if its data are not recorded."""
        dataset = self.about.get("dataset")
        return dataset is None or noun_of(dataset) == "digit"

    def _run_in_python(self, model: nn.Layer, outputs: Sequence[str], batch_size: int) -> None:
        """Compute with a net as it is, instead of an exported model."""
        self.outputs = tuple(outputs) if is_tutorials(model) else USUAL_OUTPUTS
        self.signature, self.batch_size = signature(self.outputs), batch_size
        self.output_shapes = {name: OUTPUTS[name] for name in self.outputs}
        self._idle = queue.LifoQueue()
        self._idle.put(_run_of(model, self.outputs))

    def prepare(self, inputs: Any) -> tuple[np.ndarray, ...]:
        """Return images as the exported model takes them; see `as_pixels`. Raises DataError."""
        return (as_pixels(inputs),)


def _open_net(
    name: Union[str, Path], run: Union[str, Path, None], net: Optional[OwnNet]
) -> tuple[nn.Layer, dict[str, Any]]:
    """Return a net with weights, and where they come from. For the arguments: `DigitPredictor`."""
    if str(name) == "pretrained" and net is not None:
        raise ConfigError(f"the net {net} is given without its weights; expected its run: --run")
    weights = find_weights(name, run, TO_PREDICT)
    if name != "pretrained":
        log.info("weights: %s", weights.path)
    model = load_net(weights, net)
    return model, {"weights": weights.path.name, "dataset": weights.manifest.get("dataset")}


def _run_of(model: nn.Layer, outputs: Sequence[str]) -> InferenceFn:
    """Return the function that computes outputs of images with a net as it is."""
    layer = ExportedModel(model, outputs)
    layer.eval()

    def run(batch: Mapping[str, np.ndarray], indices: Sequence[int]) -> list[np.ndarray]:
        if type(model) is MNIST:
            model.fast_conv = conv_for(len(batch[INPUT]))
        with paddle.no_grad():
            values = layer(paddle.to_tensor(batch[INPUT]))
        return [values[index].numpy() for index in indices]

    return run


def open_predictor(
    name: Optional[str],
    run: Optional[str] = None,
    net: Optional[str] = None,
    outputs: Sequence[str] = USUAL_OUTPUTS,
    **options: Any,
) -> DigitPredictor:
    """Return a predictor for weights or an exported model, by default for the packaged weights.

    For the arguments, see `DigitPredictor`. Raises ConfigError for a model without probabilities.
    """
    if name is None:
        name, run = run or "pretrained", None  # the final weights of the run, if one is given
    if name == "pretrained" and not (run or net):
        log.info("pretrained weights; for those of a run: --run")
    predictor = DigitPredictor(name, run=run, outputs=outputs, net=net, **options)
    if "probabilities" not in predictor.outputs:
        raise ConfigError(
            f"{name}: gives {', '.join(predictor.outputs)}; expected probabilities among them; "
            f"export it with --outputs {','.join(outputs)}"
        )
    return predictor

"""Run an exported MNIST model on images in the forms in which they usually come."""

from pathlib import Path
from typing import Any, Union

import numpy as np

from paddle_mnist.errors import CheckpointError, DataError
from paddle_mnist.inference import predictor
from paddle_mnist.inference.exported import ABOUT, Input, Signature
from paddle_mnist.mnist.arrays import SIZE
from paddle_mnist.mnist.own_nets import refuse_own_net
from paddle_mnist.system.arrays import as_array
from paddle_mnist.system.program import program_name
from paddle_mnist.training.run_directory import RunDirectory

INPUT = "images"
OUTPUTS = {  # and the shape of each for one image
    "logits": (10,),
    "probabilities": (10,),
    "conv1": (20, 28, 28),
    "relu1": (20, 28, 28),
    "max_pool1": (20, 14, 14),
    "conv2": (20, 14, 14),
    "relu2": (20, 14, 14),
    "max_pool2": (20, 7, 7),
}


def signature(outputs: tuple[str, ...]) -> Signature:
    """Return the signature of an MNIST model with these outputs."""
    return Signature((Input(INPUT, "uint8", (SIZE, SIZE)),), outputs)


def as_pixels(images: Any) -> np.ndarray:
    """Return images as the exported model takes them: uint8 [N, 28, 28], 0 to 255.

    images: uint8 in 0..255 or floats in 0..1; [28, 28], [1, 28, 28], [N, 28, 28] or
        [N, 1, 28, 28]. Floats are rounded to 256ths, which is exact for `MnistDataset`'s.
    Raises DataError.
    """
    try:
        images = as_array(images)
    except ValueError as error:
        raise DataError(f"images are no array ({error}); expected uint8 [N, 28, 28]") from error
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
            f"{form} from {images.min():g} to {images.max():g}; expected 0 to 1; divide, or give "
            "uint8"
        )
    return np.minimum(np.rint(images * np.float32(256)), 255).astype(np.uint8)


class Predictor(predictor.Predictor):
    """Runs an exported MNIST model; any number of threads may call `run` at once.

    `run` takes images in every form that `as_pixels` accepts, and returns float32 arrays [N, ...].

    folder: the folder that the command `export` wrote, in Paddle's format or as ONNX.
    device: "auto", "cpu" or "gpu:N", for Paddle's format; ONNX runs on the CPU.
    threads: CPU threads of one computation. parallel: how many computations may run at once, each
        with its own buffers; further calls wait. batch_size: the largest number of images computed
        at once, which bounds the memory.

    Attributes: about, the contents of `about.json`; outputs, the names of the outputs, in order.
    Raises CheckpointError if the folder is not an exported MNIST model or is damaged, and
    DeviceError.
    """

    def __init__(
        self,
        folder: Union[str, Path],
        device: str = "auto",
        threads: int = 1,
        parallel: int = 1,
        batch_size: int = 256,
    ):
        folder = Path(folder)
        is_run_or_its_file = (folder / "config.yaml").exists() or folder.is_file()
        if is_run_or_its_file and not (folder / ABOUT).exists():
            refuse_own_net(
                RunDirectory(folder.parent if folder.is_file() else folder), "export_run"
            )
            raise CheckpointError(
                f"{folder}: not an exported model; expected what {program_name('export')} wrote; "
                f"export it with {program_name('export')} --checkpoint {folder}, or read pictures "
                f"with {program_name('infer')} --checkpoint {folder}"
            )
        super().__init__(folder, device, threads, parallel, batch_size)
        expected = {name: OUTPUTS.get(name) for name in self.outputs}
        if self.signature != signature(self.outputs) or self.output_shapes != expected:
            inputs = ", ".join(map(str, self.signature.inputs))
            raise CheckpointError(
                f"{folder}: takes {inputs} and gives outputs of shapes {self.output_shapes}; "
                "expected those of an exported MNIST model; export again, or use "
                "paddle_mnist.inference.predictor.Predictor, which runs any net"
            )

    def prepare(self, inputs: Any) -> tuple[np.ndarray, ...]:
        """Return images as the exported model takes them; see `as_pixels`. Raises DataError."""
        return (as_pixels(inputs),)

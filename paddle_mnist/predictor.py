"""An exported model, run by Paddle Inference or by ONNX Runtime."""

import hashlib
import importlib
import json
import queue
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from paddle_mnist.errors import CheckpointError, ConfigError, DataError, DeviceError

ABOUT = "about.json"
ONNX = "model.onnx"
SIZE = 28
GPU_MEMORY_MB = 100  # to begin with; Paddle takes more when it needs it

Run = Callable[[np.ndarray], list[np.ndarray]]  # uint8 [B, 28, 28] -> the outputs, in order


def program_file(folder: Path) -> Path:
    """`inference.json`, as Paddle 3 writes it, or `inference.pdmodel`."""
    names = ("inference.json", "inference.pdmodel")
    return next((folder / name for name in names if (folder / name).exists()), folder / names[0])


def as_pixels(images: Any) -> np.ndarray:
    """Images as the exported model takes them: uint8 [N, 28, 28], 0 to 255.

    images: uint8 in 0..255 or floats in 0..1; [28, 28], [1, 28, 28], [N, 28, 28] or
        [N, 1, 28, 28]. Floats are rounded to 256ths, which is exact for `MnistDataset`'s.
    Raises DataError.
    """
    images = np.asarray(images)
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


class Predictor:
    """Runs an exported model; any number of threads may call `run` at once.

    folder: what `tools/export_model.py` wrote, in Paddle's form or as ONNX.
    device: "auto", "cpu" or "gpu:N", for Paddle's form; ONNX runs on the CPU.
    threads: of one computation. parallel: how many computations may run at once, each with
        buffers of its own; others wait. batch_size: the most images that are computed at once,
        which bounds the memory.

    about: what `about.json` says. outputs: names, in the order of the file.
    Raises CheckpointError for what is no exported model or is damaged; DeviceError.
    """

    def __init__(
        self,
        folder: Union[str, Path],
        device: str = "auto",
        threads: int = 1,
        parallel: int = 1,
        batch_size: int = 256,
    ):
        for name, value in (
            ("threads", threads),
            ("parallel", parallel),
            ("batch_size", batch_size),
        ):
            if value < 1:
                raise ConfigError(f"{name} is {value}; expected at least 1")
        folder = Path(folder)
        self.about = _verified(folder)
        self.outputs = tuple(self.about["outputs"])
        self.batch_size = batch_size
        engine = _onnx if ONNX in self.about["files"] else _paddle
        self._idle: queue.LifoQueue[Run] = queue.LifoQueue()
        for run in engine(folder, device, threads, parallel):
            run(np.zeros([1, SIZE, SIZE], np.uint8))  # the first run is slow: it plans
            self._idle.put(run)

    def run(self, images: Any, outputs: Optional[Sequence[str]] = None) -> dict[str, np.ndarray]:
        """The outputs of a number of images, by name: float32 [N, ...], each of its own shape.

        images: see `as_pixels`. outputs: names of `self.outputs`; all of them by default.
        Raises DataError, and ConfigError for an output that the model does not have.
        """
        wanted = self.outputs if outputs is None else tuple(outputs)
        for name in wanted:
            if name not in self.outputs:
                raise ConfigError(
                    f"outputs names {name!r}; this model has {', '.join(self.outputs)}; export it "
                    "with others"
                )
        pixels = as_pixels(images)
        run = self._idle.get()
        try:
            starts = range(0, max(len(pixels), 1), self.batch_size)
            parts = [run(pixels[start : start + self.batch_size]) for start in starts]
        finally:
            self._idle.put(run)
        return {
            name: np.concatenate([part[self.outputs.index(name)] for part in parts])
            for name in wanted
        }


def _verified(folder: Path) -> Mapping[str, Any]:
    """What `about.json` says, once every file is the one it names. Raises CheckpointError."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        files, names = dict(about["files"]), [str(name) for name in about["outputs"]]
    except OSError as error:
        raise CheckpointError(
            f"{folder / ABOUT}: {error.strerror}; expected what tools/export_model.py wrote"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / ABOUT}: damaged ({error!r}); export again") from error
    if not names or any(Path(name).name != name for name in files):
        raise CheckpointError(f"{folder / ABOUT}: names no outputs or strange files; export again")
    for name, expected in files.items():
        path = folder / name
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}; export again") from error
        if found != expected:
            raise CheckpointError(
                f"{path}: SHA-256 {found[:12]}...; {ABOUT} says {str(expected)[:12]}...; "
                "export again"
            )
    return about


def _paddle(folder: Path, device: str, threads: int, parallel: int) -> list[Run]:
    from paddle import inference

    from paddle_mnist.device import select_device

    program = program_file(folder)
    config = inference.Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_glog_info()
    kind, _, number = select_device(device).partition(":")
    if kind == "gpu":
        config.enable_use_gpu(GPU_MEMORY_MB, int(number or 0))
    else:
        config.set_cpu_math_library_num_threads(threads)
    try:
        first = inference.create_predictor(config)
    except (RuntimeError, ValueError, MemoryError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"{program}: this Paddle cannot run it ({reason}); export it again with this version"
        ) from error
    return [_paddle_run(one) for one in [first, *(first.clone() for _ in range(parallel - 1))]]


def _paddle_run(predictor: Any) -> Run:
    given = predictor.get_input_handle(predictor.get_input_names()[0])
    names = predictor.get_output_names()

    def run(pixels: np.ndarray) -> list[np.ndarray]:
        given.copy_from_cpu(pixels)
        predictor.run()
        return [predictor.get_output_handle(name).copy_to_cpu() for name in names]

    return run


def _onnx(folder: Path, device: str, threads: int, parallel: int) -> list[Run]:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise DeviceError(
            "onnxruntime is not installed; install it with pip install 'paddle_mnist[onnx]'"
        ) from error
    if device not in ("auto", "cpu"):
        raise DeviceError(f"device is {device!r}, but ONNX runs on the CPU here; use cpu")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors; it warns of constants that nothing uses
    session = runtime.InferenceSession(
        str(folder / ONNX), options, providers=["CPUExecutionProvider"]
    )
    (given,) = (node.name for node in session.get_inputs())
    # A session may be run by many threads at once.
    return [lambda pixels: session.run(None, {given: pixels})] * parallel

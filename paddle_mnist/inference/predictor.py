"""An exported model, run by Paddle Inference or by ONNX Runtime."""

import hashlib
import importlib
import json
import queue
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from paddle_mnist.errors import CheckpointError, ConfigError, DataError, DeviceError
from paddle_mnist.mnist.arrays import SIZE

ABOUT = "about.json"
ONNX = "model.onnx"
PROGRAMS = ("inference.json", "inference.pdmodel")  # as Paddle 3 writes it, and Paddle 2
PARAMETERS = "inference.pdiparams"
INPUT = "images"
OUTPUTS = {  # and the shape of each, of one image
    "logits": (10,),
    "probabilities": (10,),
    "conv1": (20, 28, 28),
    "relu1": (20, 28, 28),
    "max_pool1": (20, 14, 14),
    "conv2": (20, 14, 14),
    "relu2": (20, 14, 14),
    "max_pool2": (20, 7, 7),
}
GPU_MEMORY_MB = 100  # to begin with; Paddle takes more when it needs it

# uint8 [B, 28, 28], and the places of the outputs that are wanted, or none for all -> those
Run = Callable[..., list[np.ndarray]]


def as_pixels(images: Any) -> np.ndarray:
    """Images as the exported model takes them: uint8 [N, 28, 28], 0 to 255.

    images: uint8 in 0..255 or floats in 0..1; [28, 28], [1, 28, 28], [N, 28, 28] or
        [N, 1, 28, 28]. Floats are rounded to 256ths, which is exact for `MnistDataset`'s.
    Raises DataError.
    """
    try:
        images = np.asarray(images)
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
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}; expected a whole number, at least 1")
        folder = Path(folder)
        self.about = _verified(folder)
        self.outputs = tuple(self.about["outputs"])
        self.batch_size = batch_size
        engine = _onnx if ONNX in self.about["files"] else _paddle
        self._idle: queue.LifoQueue[Run] = queue.LifoQueue()
        for run in engine(folder, self.about["files"], device, threads, parallel):
            found = run(np.zeros([1, SIZE, SIZE], np.uint8))  # the first plans, and is slow
            shapes = [value.shape[1:] for value in found]
            if shapes != [OUTPUTS[name] for name in self.outputs]:
                raise CheckpointError(
                    f"{folder}: gives outputs of shapes {shapes}, but {ABOUT} names "
                    f"{', '.join(self.outputs)}; export again"
                )
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
        places = [self.outputs.index(name) for name in wanted]
        run = self._idle.get()
        try:
            parts = [
                run(pixels[start : start + self.batch_size], places)
                for start in range(0, len(pixels), self.batch_size)
            ]
        finally:
            self._idle.put(run)
        return {name: np.concatenate(values) for name, values in zip(wanted, zip(*parts))}


def _verified(folder: Path) -> Mapping[str, Any]:
    """What `about.json` says, once every file is the one it names. Raises CheckpointError."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        files, names = dict(about["files"]), list(about["outputs"])
    except OSError as error:
        if (folder / "config.yaml").exists() or folder.is_file():  # a run, or one of its files
            raise CheckpointError(
                f"{folder}: not an exported model; expected what tools/export_model.py wrote; "
                f"export it with tools/export_model.py --checkpoint {folder}, or read pictures "
                f"with tools/infer.py --checkpoint {folder}"
            ) from error
        raise CheckpointError(
            f"{folder / ABOUT}: {error.strerror}; expected what tools/export_model.py wrote"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / ABOUT}: damaged ({error!r}); export again") from error
    there = set(files) - {f"{PARAMETERS}.info"}  # what Paddle 2 writes beside, and nobody reads
    forms = [{ONNX}, *({program, PARAMETERS} for program in PROGRAMS)]
    if there not in forms or not names or any(name not in OUTPUTS for name in names):
        raise CheckpointError(
            f"{folder / ABOUT}: names the files {', '.join(map(repr, files))} and the outputs "
            f"{', '.join(map(repr, names))}; expected those of an exported model; export again"
        )
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


def _paddle(
    folder: Path, files: Collection[str], device: str, threads: int, parallel: int
) -> list[Run]:
    from paddle import inference

    from paddle_mnist.system.devices import select_device

    (program,) = (folder / name for name in PROGRAMS if name in files)
    config = inference.Config(str(program), str(folder / PARAMETERS))
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

    def run(pixels: np.ndarray, places: Optional[Sequence[int]] = None) -> list[np.ndarray]:
        wanted = names if places is None else [names[place] for place in places]
        given.copy_from_cpu(pixels)
        predictor.run()
        return [predictor.get_output_handle(name).copy_to_cpu() for name in wanted]

    return run


def _onnx(
    folder: Path, files: Collection[str], device: str, threads: int, parallel: int
) -> list[Run]:
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
    try:
        session = runtime.InferenceSession(
            str(folder / ONNX), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # each of its errors is a class of its own, with no common one
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{folder / ONNX}: cannot be run ({reason}); export again") from error
    (given,) = (node.name for node in session.get_inputs())
    names = [node.name for node in session.get_outputs()]

    def run(pixels: np.ndarray, places: Optional[Sequence[int]] = None) -> list[np.ndarray]:
        wanted = names if places is None else [names[place] for place in places]
        return session.run(wanted, {given: pixels})

    return [run] * parallel  # a session may be run by many threads at once

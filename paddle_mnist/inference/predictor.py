"""Run an exported model, which `about.json` commits and describes, with Paddle or ONNX Runtime."""

import hashlib
import importlib
import queue
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from paddle_mnist.checkpoint.names import exists
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import CheckpointError, ConfigError, DataError, DeviceError
from paddle_mnist.system.arrays import as_array
from paddle_mnist.system.environment import encodable
from paddle_mnist.system.regular_files import MAX_JSON, open_to_read, parse_json, read_bytes

ABOUT = "about.json"
ONNX = "model.onnx"
PROGRAMS = ("inference.json", "inference.pdmodel")  # as Paddle 3 writes it, and Paddle 2
PARAMETERS = "inference.pdiparams"
GPU_MEMORY_MB = 100  # to begin with; Paddle takes more when it needs it

Shape = tuple[int, ...]
FREE = -1  # the size of a dimension that is not fixed
CHECKED_SIZES = 32, 48  # of such dimensions, with which an exported model is checked
# Inputs by name, and the indices of the requested outputs -> those outputs
InferenceFn = Callable[[Mapping[str, np.ndarray], Sequence[int]], list[np.ndarray]]
# The names of a model's inputs and of its outputs, and one function for each parallel computation
Started = tuple[list[str], list[str], list[InferenceFn]]


@dataclass(frozen=True)
class Input:
    """An input of an exported model.

    name: in the program. dtype: NumPy's name of its type. shape: of one sample, without the batch
    dimension, which comes first and is free; -1 stands for any size.
    """

    name: str
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(['N', *map(str, self.shape)])}]"

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": [-1, *self.shape]}

    @classmethod
    def from_about(cls, spec: Mapping[str, Any]) -> "Input":
        """Read what `describe` gave. Raises KeyError, TypeError or ValueError."""
        batch, *shape = spec["shape"]
        if batch != FREE or not all(type(n) is int and (n > 0 or n == FREE) for n in shape):
            raise ValueError(f"the input's shape is {spec['shape']}")
        return cls(str(spec["name"]), np.dtype(spec["dtype"]).name, tuple(shape))


@dataclass(frozen=True)
class Signature:
    """The inputs of an exported model, and the names of its outputs, both in order."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]

    def sized(self, batches: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Return batches of the inputs, repeated to `CHECKED_SIZES` where dimensions are free."""
        is_fixed = not any(FREE in spec.shape for spec in self.inputs)
        return [
            [
                np.resize(batch, [len(batch), *(size if n == FREE else n for n in spec.shape)])
                for spec, batch in zip(self.inputs, batches)
            ]
            for size in (CHECKED_SIZES[:1] if is_fixed else CHECKED_SIZES)
        ]

    def describe(self) -> dict[str, Any]:
        """Return the entries of `about.json`: "input" of a model that has one, else "inputs"."""
        specs = [spec.describe() for spec in self.inputs]
        inputs = {"input": specs[0]} if len(specs) == 1 else {"inputs": specs}
        return {**inputs, "outputs": list(self.outputs)}

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> "Signature":
        """Read the entries of `about.json`. Raises KeyError, TypeError or ValueError."""
        specs = about["inputs"] if "inputs" in about else [about["input"]]
        inputs, outputs = tuple(map(Input.from_about, specs)), about["outputs"]
        if len({spec.name for spec in inputs}) < len(specs) or not inputs:
            raise ValueError(f"inputs are {specs!r}")
        is_named = isinstance(outputs, list) and all(isinstance(name, str) for name in outputs)
        if not is_named or not outputs or len(set(outputs)) < len(outputs):
            raise ValueError(f"outputs are {outputs!r}")
        return cls(inputs, tuple(outputs))


class Predictor:
    """Runs an exported model of any net; any number of threads may call `run` at once.

    folder: a folder that `export_layer` has written, in Paddle's format or as ONNX.
    device: "auto", "cpu" or another, as for `fit`, for Paddle's format; ONNX runs on the CPU.
    threads: CPU threads of one computation. parallel: how many computations may run at once, each
        with its own buffers; further calls wait. batch_size: the largest number of samples
        computed at once, which bounds the memory.

    Attributes: about, the contents of `about.json`; signature, its input and outputs; outputs, the
    names of the outputs in order; output_shapes, by name, for one sample, with -1 for a size that
    depends on the input's.
    Raises CheckpointError if the folder is not an exported model or is damaged; ConfigError for a
    path that is not UTF-8; DeviceError.
    """

    def __init__(
        self,
        folder: Union[str, Path],
        device: str = "auto",
        threads: int = 1,
        parallel: int = 1,
        batch_size: int = 256,
    ):
        check_counts(threads=threads, parallel=parallel, batch_size=batch_size)
        folder = Path(folder)
        if not is_exported(folder):
            raise CheckpointError(_not_exported(folder))
        if encodable(str(folder)) != str(folder):
            raise ConfigError(f"{folder}: Paddle reads models only from a path in UTF-8; move it")
        self.about, self.signature = read_about(folder)
        self.outputs = self.signature.outputs
        self.batch_size = batch_size
        start = _start_onnx if ONNX in self.about["files"] else _start_paddle
        names, given, runs = start(folder, self.about["files"], device, threads, parallel)
        expected = [spec.name for spec in self.signature.inputs]
        if sorted(names) != sorted(expected):
            raise CheckpointError(
                f"{folder}: takes {', '.join(names)}, but {ABOUT} names {', '.join(expected)}; "
                "export again, with only those inputs that the outputs need"
            )
        self._idle: queue.LifoQueue[InferenceFn] = queue.LifoQueue()
        for run in runs:
            self.output_shapes = self._computed_shapes(folder, run, len(given))
            self._idle.put(run)

    def prepare(self, inputs: Any) -> tuple[np.ndarray, ...]:
        """Return each input as the model takes it: [N, ...] of the signature's shape and dtype.

        inputs: an array; for a model with several inputs, a sequence of them or a dict by name.
        Raises DataError for anything else, and for empty arrays.
        """
        expected = self.signature.inputs
        if len(expected) == 1:
            return (_as_input(inputs, expected[0], "inputs are"),)
        named = inputs
        if isinstance(inputs, (tuple, list)) and len(inputs) == len(expected):
            named = {spec.name: values for spec, values in zip(expected, inputs)}
        names = [spec.name for spec in expected]
        if not isinstance(named, Mapping) or set(named) != set(names):
            raise DataError(
                f"inputs are a {type(inputs).__name__}; expected {', '.join(names)}, in this order "
                "or in a dict"
            )
        arrays = [_as_input(named[spec.name], spec, f"{spec.name} is") for spec in expected]
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) > 1:
            raise DataError(
                f"{', '.join(names)} have {', '.join(map(str, lengths))} samples; expected the "
                "same number of each"
            )
        return tuple(arrays)

    def run(self, inputs: Any, outputs: Optional[Sequence[str]] = None) -> dict[str, np.ndarray]:
        """Return the outputs for a batch of inputs by name, each an array [N, ...].

        inputs: see `prepare`. outputs: names of `self.outputs`; all of them by default.
        Raises DataError, and ConfigError for an output that the model does not have.
        """
        names = self.outputs if outputs is None else tuple(outputs)
        for name in names:
            if name not in self.outputs:
                raise ConfigError(
                    f"outputs contains {name!r}, but the outputs of this model are "
                    f"{', '.join(self.outputs)}; choose its outputs when you open or export it"
                )
        arrays = self.prepare(inputs)
        indices = [self.outputs.index(name) for name in names]
        run = self._idle.get()
        try:
            batches = [
                run(
                    self._named(array[start : start + self.batch_size] for array in arrays), indices
                )
                for start in range(0, len(arrays[0]), self.batch_size)
            ]
        finally:
            self._idle.put(run)
        return {name: np.concatenate(values) for name, values in zip(names, zip(*batches))}

    def _named(self, arrays: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
        return {spec.name: array for spec, array in zip(self.signature.inputs, arrays)}

    def _computed_shapes(self, folder: Path, run: InferenceFn, count: int) -> dict[str, Shape]:
        """Run one sample, which is slow the first time; return the shapes of its outputs.

        Raises CheckpointError unless they are those in `about.json`.
        """
        zeros = self.signature.sized([np.zeros(1, spec.dtype) for spec in self.signature.inputs])
        shapes = common_shapes([run(self._named(inputs), range(count)) for inputs in zeros])
        computed = dict(zip(self.outputs, shapes))
        recorded = self.about.get("output_shapes")
        computed_shapes = {name: [-1, *shape] for name, shape in computed.items()}
        if len(shapes) != len(self.outputs) or recorded != computed_shapes:
            raise CheckpointError(
                f"{folder}: gives outputs of shapes {shapes}, but {ABOUT} names {recorded}; export "
                "again"
            )
        return computed


def common_shapes(runs: Sequence[Sequence[np.ndarray]]) -> list[Shape]:
    """Return the shape of a sample of each output; -1 where it differs between runs."""
    return [
        tuple(sizes[0] if len({*sizes}) == 1 else FREE for sizes in zip(*shapes))
        for shapes in zip(*([value.shape[1:] for value in outputs] for outputs in runs))
    ]


def check_counts(**counts: int) -> None:
    """Raise ConfigError unless each value is a whole number, at least 1."""
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} is {value!r}; expected a whole number, at least 1")


def is_exported(folder: Path) -> bool:
    """Return whether a folder holds an exported model, or at least nothing of a run."""
    run = RunDirectory(folder)
    is_of_run = any(path.exists() for path in (run.config, run.checkpoints.folder, run.weights))
    return (folder / ABOUT).exists() or (folder.is_dir() and not is_of_run)


def _not_exported(path: Path) -> str:
    """Return the message for a path that is not an exported model, and what to use for a run."""
    reason = "not an exported model" if exists(str(path)) else "No such file or directory"
    return (
        f"{path}: {reason}; expected a folder that the command export wrote; for weights on digits "
        "use paddle_mnist.DigitPredictor, for a run of another net paddle_mnist.predict_run or "
        "paddle_mnist.export_run"
    )


def read_about(folder: Path) -> tuple[dict[str, Any], Signature]:
    """Read `about.json` and verify every file that it names.

    Raises CheckpointError if it is missing or damaged, or if a file is not the one it names.
    """
    path = folder / ABOUT
    try:
        about: dict[str, Any] = parse_json(read_bytes(path, MAX_JSON), dict)
        files, signature = dict(about["files"]), Signature.from_about(about)
    except OSError as error:
        raise CheckpointError(
            f"{path}: {error.strerror}; expected a folder that the command export wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error!r}); export again") from error
    # Paddle writes parameters if there are any, and Paddle 2 also their .info, which is never read.
    if set(files) - {PARAMETERS, f"{PARAMETERS}.info"} not in [{ONNX}, *({p} for p in PROGRAMS)]:
        raise CheckpointError(
            f"{path}: names the files {', '.join(map(repr, files))}; expected those of an exported "
            "model; export again"
        )
    for name, digest in files.items():
        _verify(folder / name, str(digest))
    return about, signature


def _verify(path: Path, expected: str) -> None:
    try:
        sha256 = hashlib.sha256()
        with open_to_read(path) as file:
            while block := file.read(2**20):
                sha256.update(block)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; export again") from error
    if (digest := sha256.hexdigest()) != expected:
        raise CheckpointError(
            f"{path}: SHA-256 {digest[:12]}...; {ABOUT} says {expected[:12]}...; export again"
        )


def _as_input(values: Any, expected: Input, subject: str) -> np.ndarray:
    try:
        array = as_array(values)
    except ValueError as error:
        raise DataError(f"{subject} not an array ({error}); expected {expected}") from error
    shape = [n if size != FREE else FREE for n, size in zip(array.shape[1:], expected.shape)]
    is_of_shape = array.ndim == 1 + len(shape) and tuple(shape) == expected.shape
    if array.dtype != expected.dtype or not is_of_shape or not array.size:
        raise DataError(
            f"{subject} {array.dtype} {list(array.shape)}; expected {expected}, N at least 1"
        )
    return np.ascontiguousarray(array)


def _start_paddle(
    folder: Path, files: Collection[str], device: str, threads: int, parallel: int
) -> Started:
    """Start a model in Paddle's format. Raises CheckpointError and DeviceError."""
    from paddle import inference

    from paddle_mnist.system.devices import select_device

    (program,) = (folder / name for name in PROGRAMS if name in files)
    parameters = str(folder / PARAMETERS) if PARAMETERS in files else ""
    config = inference.Config(str(program), parameters)
    config.disable_glog_info()
    kind, _, number = select_device(device).partition(":")
    if kind == "gpu":
        config.enable_use_gpu(GPU_MEMORY_MB, int(number or 0))
    elif kind == "xpu":
        config.enable_xpu()
        config.set_xpu_device_id(int(number or 0))
    elif kind != "cpu":
        config.enable_custom_device(kind, int(number or 0))
    else:
        config.set_cpu_math_library_num_threads(threads)
    try:
        first = inference.create_predictor(config)
    except (RuntimeError, ValueError, MemoryError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"{program}: this Paddle cannot run it ({reason}); export it again with this version"
        ) from error
    clones = [first.clone() for _ in range(parallel - 1)]
    runs = [_paddle_run(predictor) for predictor in (first, *clones)]
    return first.get_input_names(), first.get_output_names(), runs


def _paddle_run(predictor: Any) -> InferenceFn:
    handles = {name: predictor.get_input_handle(name) for name in predictor.get_input_names()}
    names = predictor.get_output_names()

    def run(batch: Mapping[str, np.ndarray], indices: Sequence[int]) -> list[np.ndarray]:
        for name, array in batch.items():
            handles[name].copy_from_cpu(array)
        predictor.run()
        return [predictor.get_output_handle(names[index]).copy_to_cpu() for index in indices]

    return run


def _start_onnx(
    folder: Path, files: Collection[str], device: str, threads: int, parallel: int
) -> Started:
    """Start an ONNX model. Raises CheckpointError and DeviceError."""
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
    except Exception as error:  # its errors have no common class
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{folder / ONNX}: cannot be run ({reason}); export again") from error
    names = [node.name for node in session.get_outputs()]

    def run(batch: Mapping[str, np.ndarray], indices: Sequence[int]) -> list[np.ndarray]:
        outputs: list[np.ndarray] = session.run([names[index] for index in indices], dict(batch))
        return outputs

    # many threads may run a session at once
    return [node.name for node in session.get_inputs()], names, [run] * parallel

"""Export a net as files that do not need this package, and check that they compute the same."""

import contextlib
import hashlib
import importlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, cast

import numpy as np
import paddle
from paddle import nn

import paddle_mnist
from paddle_mnist.data.structures import explained, mapped
from paddle_mnist.errors import CheckpointError, ConfigError, DeviceError
from paddle_mnist.inference.predictor import (
    ABOUT,
    CHECKED_SIZES,
    FREE,
    ONNX,
    PARAMETERS,
    PROGRAMS,
    Input,
    Predictor,
    Signature,
    common_shapes,
)
from paddle_mnist.nn.layers import evaluation_mode
from paddle_mnist.system.arrays import as_array
from paddle_mnist.system.environment import encodable, usable_home
from paddle_mnist.system.files import make_folder, remove, sync_folder, write_atomically, writing
from paddle_mnist.training.trained_model import Model, load_model

OPSET = 14  # of ONNX, 2021: old enough for every runtime
MAX_PROGRAM = 1 << 20  # bytes of a program without its parameters
TOLERANCE = 1e-4  # of an output, relative to its largest value, or to 1
SPECIFIED_SAMPLES = 4  # in the batch that is drawn for a specification

# The specification of an input, or a batch of its samples
Example = Union[paddle.static.InputSpec, np.ndarray, paddle.Tensor]


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
    inputs: the specification of the input, whose first dimension is that of the samples; None
        stands for any size of the others, such as the length of texts. Or a batch of samples, from
        which it is derived. Pass a list of them for a net with several inputs. The exported model
        is run on this batch, by default on random numbers or zeros, with 32 and 48 in place of
        None, and its outputs must match those of the net.
    outputs: names of the outputs; by default the keys of a dict, "output", or "output0", ....
    format: "paddle" or "onnx".

    Returns the contents of the folder's `about.json`. Raises ConfigError, DeviceError, OutputError,
    and CheckpointError, also if the exported model's outputs differ from those of the net.
    """
    trained = load_model(weights, model, run)
    layer, signature, batches = as_layer(trained, inputs, outputs)
    about = {"weights": str(weights)}
    return export_layer(layer, Path(folder), signature, batches, format, about)


def as_layer(
    model: nn.Layer, inputs: Union[Example, Sequence[Example]], outputs: Sequence[str] = ()
) -> tuple[nn.Layer, Signature, list[np.ndarray]]:
    """Return a net as `export_layer` takes it, its signature, and a batch of each input.

    inputs, outputs: see `export_run`. Raises ConfigError.
    """
    specs, batches = _examples(inputs)
    with evaluation_mode(model), paddle.no_grad(), explained(batches, "the model"):
        example = model(*map(paddle.to_tensor, batches))
    names = _output_names(example, outputs)
    keys = list(example) if isinstance(example, Mapping) else []
    return _AsList(model, keys), Signature(specs, names), batches


def _examples(inputs: Any) -> tuple[tuple[Input, ...], list[np.ndarray]]:
    """Return the specification of each input and a batch of it. Raises ConfigError."""
    if not isinstance(inputs, (list, tuple)):
        examples = [_example(inputs, "input")]
    else:
        examples = [_example(value, f"input{number}") for number, value in enumerate(inputs)]
    names = [spec.name for spec, _ in examples]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"the inputs' names are {', '.join(names) or 'missing'}; expected at least one input, "
            "and different names"
        )
    return tuple(spec for spec, _ in examples), [batch for _, batch in examples]


def _example(inputs: Any, usual_name: str) -> tuple[Input, np.ndarray]:
    """Return the specification of an input and a batch of it. Raises ConfigError."""
    if "bfloat16" in str(getattr(inputs, "dtype", "")).lower():
        raise ConfigError(
            "inputs are bfloat16, which NumPy lacks, so that no program could pass them to the "
            "exported model; expected float32, and a net that casts it"
        )
    if not isinstance(inputs, paddle.static.InputSpec):
        batch = as_array(inputs)
        if batch.ndim < 1 or not batch.size or batch.dtype.kind not in "biuf":
            raise ConfigError(
                f"inputs are {batch.dtype} {list(batch.shape)}; expected a batch of samples "
                "[N, ...], or a paddle.static.InputSpec"
            )
        return Input(usual_name, batch.dtype.name, batch.shape[1:]), batch
    samples, *shape = (FREE if size is None else size for size in inputs.shape or [1])
    if samples != FREE or not all(size > 0 or size == FREE for size in shape):
        raise ConfigError(
            f"inputs are {inputs}; expected None as the first dimension, and positive sizes"
        )
    dtype = str(inputs.dtype).rpartition(".")[2].lower()
    sizes = [CHECKED_SIZES[0] if size == FREE else size for size in shape]
    numbers = np.random.RandomState(0).standard_normal([SPECIFIED_SAMPLES, *sizes])
    batch = numbers if dtype.startswith("float") else np.zeros_like(numbers)
    return Input(inputs.name or usual_name, dtype, tuple(shape)), batch.astype(dtype)


def _output_names(example: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a model's outputs. Raises ConfigError."""
    if isinstance(example, Mapping):
        usual, values = list(map(str, example)), list(example.values())
    else:
        values = list(example) if isinstance(example, (tuple, list)) else [example]
        usual = [f"output{number}" for number in range(len(values))]
        usual = usual if len(values) > 1 else ["output"]
    if not all(isinstance(value, paddle.Tensor) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values)
        raise ConfigError(f"the model returns {kinds}; expected tensors; wrap it in a layer")
    chosen = tuple(names or usual)
    if len(chosen) != len(values) or len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"outputs are {', '.join(chosen)}; expected {len(values)} different names, one for "
            "each tensor that the model returns"
        )
    return chosen


class _AsList(nn.Layer):
    """A net that returns its outputs in a list. keys: those of a dict that it returns, if any."""

    def __init__(self, model: nn.Layer, keys: Sequence[Any]):
        super().__init__()
        self.model, self.keys = model, keys

    def forward(self, inputs: Union[paddle.Tensor, list[paddle.Tensor]]) -> list[paddle.Tensor]:
        outputs = self.model(*inputs) if isinstance(inputs, list) else self.model(inputs)
        if self.keys:
            return [outputs[key] for key in self.keys]
        return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def export_layer(
    layer: nn.Layer,
    folder: Path,
    signature: Signature,
    check_inputs: Sequence[np.ndarray],
    format: str = "paddle",
    about: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Export a layer to a folder, and check that the exported model computes the same.

    layer: takes a tensor, or a list of them if the signature has several inputs, and returns a
        list of tensors. `to_static` does not accept a `forward(*inputs)`.
    check_inputs: a batch of each input, on which the exported model and the layer must agree.
    format: "paddle": `inference.json`, or `.pdmodel` where Paddle writes that, with
        `inference.pdiparams`; "onnx": `model.onnx`.
    about: further entries of `about.json`, which names the files, the inputs and the outputs, and
        commits them.

    Returns the contents of `about.json`; `difference` is the largest one over all outputs of the
    check. Raises ConfigError for an unknown format or a layer that Paddle cannot export,
    DeviceError where a package is missing, OutputError, and CheckpointError if the exported model
    gives other outputs than the layer; then the folder keeps its contents.
    """
    if format not in EXPORTERS:
        raise ConfigError(f"format is {format!r}; expected {' or '.join(EXPORTERS)}")
    folder = Path(folder)
    if encodable(str(folder)) != str(folder):
        raise ConfigError(f"{folder}: Paddle exports only to a path in UTF-8; choose another one")
    size = sum(value.size * value.element_size() for value in layer.state_dict().values())
    with evaluation_mode(layer), _temporary_folder(folder, size + MAX_PROGRAM) as temporary:
        with explained(check_inputs, "the export"):
            files = EXPORTERS[format](layer, signature, temporary)
        checks = [one_or_all(batches) for batches in signature.sized(check_inputs)]
        with paddle.no_grad():
            outputs = [layer(mapped(inputs, paddle.to_tensor)) for inputs in checks]
        expected = [[value.numpy() for value in values] for values in outputs]
        shapes = zip(signature.outputs, common_shapes(expected))
        contents = {
            **dict(about),
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            **signature.describe(),
            "output_shapes": {name: [-1, *shape] for name, shape in shapes},
            "paddle": paddle.__version__,
            "package": paddle_mnist.__version__,
        }
        write_atomically(temporary / ABOUT, json.dumps(contents).encode())
        with explained(check_inputs, "the exported model"):
            predictor = Predictor(temporary, device="cpu")
        contents["difference"] = max(
            _difference(predictor.run(inputs), dict(zip(signature.outputs, values)))
            for inputs, values in zip(checks, expected)
        )
    _commit(folder, files, contents)
    return contents


@contextlib.contextmanager
def _temporary_folder(output: Path, size: int) -> Iterator[Path]:
    """Make a temporary folder in the output folder, which is removed on errors if it is new.

    Paddle ignores write errors, which then show as a damaged model. So an error inside the block
    becomes an OutputError if a file of `size` bytes cannot be written there.
    """
    is_new = not output.exists()
    make_folder(output)
    try:
        with writing(output):
            temporary = tempfile.TemporaryDirectory(prefix=".export-", dir=output)
        with temporary as name:
            try:
                yield Path(name)
            except Exception:
                for path in Path(name).iterdir():
                    remove(path)
                write_atomically(Path(name, "trial"), bytes(size))
                raise
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # not empty
                output.rmdir()
        raise


def one_or_all(inputs: Sequence[Any]) -> Any:
    """Return what a layer takes: its only input, or the list of all."""
    return inputs[0] if len(inputs) == 1 else list(inputs)


def _commit(folder: Path, files: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """Replace the exported model in a folder; remove `about.json` first, and write it last."""
    make_folder(folder)
    for name in (ABOUT, *PROGRAMS, ONNX):  # while files change, nothing is exported there
        remove(folder / name)
    for name, data in files.items():
        write_atomically(folder / name, data)
    sync_folder(folder)
    write_atomically(folder / ABOUT, json.dumps(about, indent=1).encode())
    sync_folder(folder)


def _write_paddle(layer: nn.Layer, signature: Signature, folder: Path) -> dict[str, bytes]:
    specs = [
        paddle.static.InputSpec([None, *spec.shape], cast(Any, spec.dtype), spec.name)
        for spec in signature.inputs
    ]
    with usable_home():  # Paddle keeps the code that it generates there
        paddle.jit.save(layer, str(folder / "inference"), input_spec=[one_or_all(specs)])
    _name_outputs(folder, signature.outputs)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _name_outputs(folder: Path, names: Sequence[str]) -> None:
    """Give the outputs of a program their names: Paddle saves them by names that it makes up."""
    (path,) = (folder / name for name in PROGRAMS if (folder / name).exists())
    if path.suffix == ".json":
        text = path.read_text(encoding="utf-8")
        named = re.sub(r'"fetch_name_(\d+)"', lambda found: json.dumps(names[int(found[1])]), text)
        path.write_text(named, encoding="utf-8")
        return
    program = importlib.import_module("paddle.base.core").ProgramDesc(path.read_bytes())
    block = program.block(0)
    for operator in map(block.op, range(block.op_size())):
        if operator.type() == "fetch":
            (own_name,) = operator.input("X")
            block._rename_var(own_name.encode(), names[operator.attr("col")].encode())
    path.write_bytes(program.serialize_to_string())


def _write_onnx(layer: nn.Layer, signature: Signature, folder: Path) -> dict[str, bytes]:
    try:
        convert = importlib.import_module("paddle2onnx").export
        importlib.import_module("onnxruntime")
    except ImportError as error:
        raise DeviceError(
            f"{error.name} cannot be imported ({error}); expected paddle2onnx and onnxruntime; "
            "install them with pip install 'paddle_mnist[onnx]'"
        ) from error
    # Its lines of information, but not its warnings, would name the temporary folder.
    importlib.import_module("paddle2onnx.utils").logging.log_level = 1
    _write_paddle(layer, signature, folder)
    (program,) = (folder / name for name in PROGRAMS if (folder / name).exists())
    convert(
        str(program),
        str(folder / PARAMETERS),
        str(folder / ONNX),
        OPSET,
        verbose=False,
        # The other tools install packages while they run, and ONNX Runtime folds constants as well.
        optimize_tool="None",
    )
    return {ONNX: (folder / ONNX).read_bytes()}


def _difference(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference. Raises CheckpointError if it is more than rounding."""
    largest = 0.0
    for name, value in expected.items():
        difference = np.abs(1.0 * outputs[name] - value).max()  # bools cannot be subtracted
        tolerance = TOLERANCE * max(1.0, np.abs(value).max())  # large values are rounded more
        largest = max(largest, float(difference))
        if not difference <= tolerance:
            raise CheckpointError(
                f"{name} of the exported model differs by {difference:.3g} from the net's; "
                f"expected at most {tolerance:.3g}; nothing is exported; report this"
            )
    return largest


EXPORTERS: dict[str, Callable[[nn.Layer, Signature, Path], dict[str, bytes]]] = {
    "paddle": _write_paddle,
    "onnx": _write_onnx,
}

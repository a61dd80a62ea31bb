"""Export a layer as files that need none of this package, and prove that they compute the same."""

import contextlib
import hashlib
import importlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import paddle
from paddle import nn

import paddle_mnist
from paddle_mnist.data.structures import explained
from paddle_mnist.errors import CheckpointError, ConfigError, DeviceError
from paddle_mnist.inference.exported import ABOUT, ONNX, PARAMETERS, PROGRAMS, Signature
from paddle_mnist.inference.predictor import Predictor
from paddle_mnist.nn.layers import evaluation_mode
from paddle_mnist.system.files import (
    make_folder,
    remove,
    sync_folder,
    utf8_folder,
    write_atomically,
    writing,
)
from paddle_mnist.system.surroundings import usable_home

OPSET = 14  # of ONNX, 2021: old enough for every runtime
MAX_PROGRAM = 1 << 20  # bytes of a program without its parameters
TOLERANCE = 1e-4  # of an output, relative to its largest value, or to 1


def export_layer(
    layer: nn.Layer,
    folder: Path,
    signature: Signature,
    check_inputs: Sequence[np.ndarray],
    format: str = "paddle",
    about: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Write a layer for inference into a folder, and check that it computes the same there.

    layer: takes a tensor, or a list of them where the signature has several inputs, and returns a
        list of tensors. `to_static` does not take a `forward(*inputs)`.
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
    if format not in FORMS:
        raise ConfigError(f"format is {format!r}; expected {' or '.join(FORMS)}")
    folder = Path(folder)
    size = sum(value.size * value.element_size() for value in layer.state_dict().values())
    with evaluation_mode(layer), _folder_for_trial(folder, size + MAX_PROGRAM) as temporary:
        with explained(check_inputs, "the export"), utf8_folder(temporary) as writable:
            files = FORMS[format](layer, signature, writable)
        with paddle.no_grad():
            tensors = [paddle.to_tensor(batch) for batch in check_inputs]
            outputs = [value.numpy() for value in layer(_one_or_all(tensors))]
        expected = dict(zip(signature.outputs, outputs))
        contents = {
            **dict(about),
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            **signature.describe(),
            "output_shapes": {name: [-1, *value.shape[1:]] for name, value in expected.items()},
            "paddle": paddle.__version__,
            "package": paddle_mnist.__version__,
        }
        write_atomically(temporary / ABOUT, json.dumps(contents).encode())
        predictor = Predictor(temporary, device="cpu")
        computed = predictor.run(_one_or_all(check_inputs))
        contents["difference"] = _difference(computed, expected)
    _commit(folder, files, contents)
    return contents


@contextlib.contextmanager
def _folder_for_trial(output: Path, size: int) -> Iterator[Path]:
    """Make a temporary folder in the one to export to, on the disk that has to hold the files.

    Paddle ignores errors in writing, which then show as a damaged model. So an error inside the
    block becomes an OutputError if a file of `size` bytes cannot be written there.
    """
    existed = output.is_dir()
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
        if not existed:
            with contextlib.suppress(OSError):  # not empty: another process exports there
                output.rmdir()
        raise


def _one_or_all(inputs: Sequence[Any]) -> Any:
    """Return what a layer takes: its only input, or the list of all."""
    return inputs[0] if len(inputs) == 1 else list(inputs)


def _commit(folder: Path, files: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """Replace what is exported in a folder; `about.json` goes first and comes last."""
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
    with usable_home():  # it keeps the code that it makes of the layer there
        paddle.jit.save(layer, str(folder / "inference"), input_spec=[_one_or_all(specs)])
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
        difference = np.abs(outputs[name] - value).max()
        tolerance = TOLERANCE * max(1.0, np.abs(value).max())  # large values are rounded more
        largest = max(largest, float(difference))
        if not difference <= tolerance:
            raise CheckpointError(
                f"{name} of the exported model differs by {difference:.3g} from the net's; "
                f"expected at most {tolerance:.3g}; nothing is exported; report this"
            )
    return largest


FORMS: dict[str, Callable[[nn.Layer, Signature, Path], dict[str, bytes]]] = {
    "paddle": _write_paddle,
    "onnx": _write_onnx,
}

"""Export a trained model for inference, with the outputs that you choose.

The model takes pixels and needs no code of this package. By default, this command exports the final
weights of the newest run in work/output or, if there is no run, those that come with the package,
and prints which it used. It runs the exported model on 100 images and compares its outputs with
those of the net.
"""

import argparse
import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from paddle_mnist.checkpoint.run import RUNS, RunDirectory
from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._weights import NamedWeights, add_weights_arguments, named_weights
from paddle_mnist.errors import ConfigError, DeviceError, listed
from paddle_mnist.options import split_names
from paddle_mnist.system.devices import require_paddle
from paddle_mnist.system.files import make_folder, write_atomically

if TYPE_CHECKING:
    from paddle_mnist.checkpoint.manifest import Checkpoint
    from paddle_mnist.checkpoint.names import SavedWeights

log = logging.getLogger("paddle_mnist")

OUTPUT = f"{RUNS}/exported"
LEGACY = "FLAGS_enable_pir_api"  # 0: Paddle writes .pdmodel


@command(prints_data=True)
def main(argv: Sequence[str]) -> int:
    """Export a model and print the files and their sizes; return the exit code."""
    args = _parser().parse_args(argv)
    named, folder = named_weights(args), _folder(args)
    if args.legacy and args.format != "paddle":
        raise ConfigError(
            f"--legacy only goes with --format paddle; leave out --legacy or --format {args.format}"
        )
    if args.legacy and os.environ.get(LEGACY) != "0":
        return _export_legacy(argv)
    require_paddle(hide_warnings=True)
    from paddle_mnist.checkpoint.names import find_weights, newest_run
    from paddle_mnist.mnist.export import export_model, variables
    from paddle_mnist.mnist.own_nets import load_net

    if not (any(named) or newest_run()):
        log.info("%s: no run found", RUNS)
        named = NamedWeights("pretrained")
    weights = find_weights(*named)
    kind = "pretrained weights" if named.name == "pretrained" else "weights"
    log.info("%s: %s", kind, weights.path)
    if args.format == "safetensors" and not args.list:
        _export_weights(weights, folder)
        return 0
    model = load_net(weights, args.net)
    if args.list:
        _print_variables(variables(model, weights.checkpoint), weights.checkpoint)
        return 0
    outputs = split_names(args.outputs)
    about: dict[str, Any] = {"weights": weights.path.name}
    about.update({name: weights.manifest.get(name) for name in ("data_hash", "dataset")})
    exported = export_model(model, folder, outputs, args.format, about)
    for file in (*exported["files"], "about.json"):
        path = folder / file
        print(f"{path}  {path.stat().st_size:,} bytes")
    names, difference = ", ".join(exported["outputs"]), exported["difference"]
    print(f"outputs {names}: at most {difference:.2g} from the net's")
    return 0


def _parser() -> Parser:
    parser = Parser("paddle-mnist export", __doc__, "work/output/default work/output/exported")
    add_weights_arguments(parser, "newest run in work/output; if there is none, pretrained")
    parser.usage = "%(prog)s [RUN [FOLDER]] [options]"
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help=f"folder to write [{OUTPUT}]")
    parser.add_argument("--output", metavar="FOLDER", help="the same as FOLDER")
    parser.add_argument(
        "--outputs",
        default="logits,probabilities",
        help="comma-separated outputs [logits,probabilities]",
    )
    parser.add_argument(
        "--format",
        choices=("paddle", "onnx", "safetensors"),
        default="paddle",
        help="format of the model; safetensors holds the weights alone [paddle]",
    )
    parser.add_argument(
        "--legacy", action="store_true", help="write .pdmodel, which Paddle 2 can also read"
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="only list the variables: parameters, persistables, temporaries",
    )
    return parser


def _folder(args: argparse.Namespace) -> Path:
    """Return the folder to write. Raises ConfigError if several are given, or a run's directory."""
    folders = {os.path.abspath(name): name for name in (args.folder, args.output) if name}
    if len(folders) > 1:
        raise ConfigError(
            f"{' and '.join(folders.values())} are given; expected one folder to write"
        )
    folder = Path(*folders.values()) if folders else Path(OUTPUT)
    if RunDirectory(folder).config.exists():
        raise ConfigError(
            f"{folder}: a run's directory; expected another folder to write; --run {folder} "
            "exports the run"
        )
    return folder


def _export_weights(weights: "SavedWeights", folder: Path) -> None:
    """Write weights, of any net, as `model.safetensors`, and print the path and the size."""
    try:
        save = importlib.import_module("safetensors.numpy").save
    except ImportError as error:
        raise DeviceError(
            f"safetensors cannot be imported ({error}); install it with "
            "pip install 'paddle_mnist[safetensors]'"
        ) from error
    from paddle_mnist.nn.state_dict import without_name_table

    arrays = without_name_table(weights.values)
    if halves := [name for name, array in arrays.items() if array.dtype.name == "uint16"]:
        raise ConfigError(
            f"{weights.path}: {listed(halves)} are bfloat16, which NumPy lacks; expected float32"
        )
    path = folder / "model.safetensors"
    make_folder(folder)
    write_atomically(path, save(arrays, {"weights": weights.path.name, "linear": "[in, out]"}))
    print(f"{path}  {path.stat().st_size:,} bytes")


def _export_legacy(argv: Sequence[str]) -> int:
    """Export in another process: Paddle chooses the form of its files when it is imported."""
    command = [sys.executable, "-m", "paddle_mnist", "export", *argv]
    return subprocess.run(command, env={**os.environ, LEGACY: "0"}, check=False).returncode


def _print_variables(
    kinds: Mapping[str, Sequence[tuple[str, Any]]], checkpoint: Optional["Checkpoint"]
) -> None:
    notes = {
        "parameters": "trained by the optimizer",
        "persistables": (
            f"saved in {checkpoint.path.with_suffix('')}"
            if checkpoint
            else "the parameters alone: no optimizer state is saved with these weights"
        ),
        "temporaries": "computed by a training step on one image; not saved in any file",
    }
    width = max(len(name) for rows in kinds.values() for name, _ in rows)
    for kind, rows in kinds.items():
        print(f"{kind}: {notes[kind]}")
        print("\n".join(f"  {name:{width}}  {shape}" for name, shape in rows))

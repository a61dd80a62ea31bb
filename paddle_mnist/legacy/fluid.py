"""Fluid's functions to save and load, with their names and meanings, for today's models.

    save_vars, load_vars                        the variables that are named
    save_params, load_params                    what is trained
    save_persistables, load_persistables        what training needs to go on: the optimizer's too
    save_inference_model, load_inference_model  the part of the net that leads to chosen outputs

Fluid loaded what happened to fit, and left the rest as it was; here everything must fit. See
docs/en/fluid.md, which maps each old call to today's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import paddle
from paddle import nn

from paddle_mnist.checkpoint.contents import load_checkpoint, manifest_entries
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, read_manifest
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.checkpoint.weights import write_weights
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.mnist.export import INPUT, export_model
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.predictor import DigitPredictor
from paddle_mnist.nn.schedule import STATE
from paddle_mnist.nn.state_dict import NAME_TABLE, load_weights
from paddle_mnist.progress import TrainState
from paddle_mnist.system.files import make_folder, sync_folder

PERSISTABLES = "mnist_persistables"  # named as the store names checkpoints

Folder = Union[str, Path]


def save_vars(
    dirname: Folder, model: nn.Layer, vars: Sequence[str], filename: str = "vars.pdparams"
) -> Path:
    """Write chosen variables of a model into one file, and return its path.

    vars: structured names, as `model.state_dict()` has them ("conv1.weight").
    Raises ConfigError for a name that the model does not have, OutputError.
    """
    state_dict = model.state_dict()
    unknown = [name for name in vars if name not in state_dict]
    if unknown or not vars:
        raise ConfigError(
            f"vars are {', '.join(vars) or 'none'}; expected some of {', '.join(state_dict)}"
        )
    path = Path(dirname, filename)
    make_folder(path.parent)
    write_weights(path, {name: state_dict[name] for name in vars})
    sync_folder(path.parent)
    return path


def load_vars(
    dirname: Folder, model: nn.Layer, vars: Sequence[str], filename: str = "vars.pdparams"
) -> None:
    """Load chosen variables; the others keep their values. The file may hold more.

    Raises CheckpointError, with a diff, unless each of them is in the file and fits.
    """
    path = Path(dirname, filename)
    saved, state_dict = safe_load(path), model.state_dict()
    unknown = [name for name in vars if name not in state_dict]
    if unknown or not vars:
        problem = f"the model has no {', '.join(unknown)}" if unknown else "no variables are named"
        raise CheckpointError(f"{path}: {problem}; expected some of {', '.join(state_dict)}")
    missing = [name for name in vars if name not in saved]
    if missing:
        names = ", ".join(str(name) for name in saved if name != NAME_TABLE)
        raise CheckpointError(f"{path}: holds no {', '.join(missing)}; it holds {names}")
    load_weights(model, {**state_dict, **{name: saved[name] for name in vars}}, path)


def save_params(dirname: Folder, model: nn.Layer, filename: str = "params.pdparams") -> Path:
    """Write all parameters into one file, and return its path. Raises OutputError."""
    return save_vars(dirname, model, [name for name, _ in model.named_parameters()], filename)


def load_params(dirname: Folder, model: nn.Layer, filename: str = "params.pdparams") -> None:
    """Load all parameters. Raises CheckpointError, with a diff, unless they fit exactly."""
    path = Path(dirname, filename)
    parameters = dict(model.named_parameters())
    others = {name: value for name, value in model.state_dict().items() if name not in parameters}
    load_weights(model, {**others, **safe_load(path)}, path)


def save_persistables(
    dirname: Folder, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
) -> Path:
    """Write what training needs to go on as one checkpoint, and return its manifest's path.

    These are the parameters, the optimizer's moments and its learning-rate schedule. The position
    in the data is not among them: `Trainer` saves that too. Raises OutputError.
    """
    checkpoint = CheckpointStore(dirname).commit(
        PERSISTABLES,
        {
            PARAMS: SavedState(model.state_dict()),
            OPTIMIZER: SavedState(optimizer.state_dict()),
        },
        TrainState(),
        manifest_entries(model, optimizer),
    )
    return checkpoint.path


def load_persistables(
    dirname: Folder, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
) -> None:
    """Load what `save_persistables` wrote; the next step is the one that would have followed.

    Raises CheckpointError, with a diff, unless all of it fits; then use neither of them further.
    """
    checkpoint = read_manifest(Path(dirname, f"{PERSISTABLES}.json"))
    saved_class, own_class = checkpoint.manifest.get("optimizer"), type(optimizer).__name__
    if saved_class != own_class:
        raise CheckpointError(
            f"{checkpoint.path}: was saved with the optimizer {saved_class}; expected {own_class}"
        )
    if _has_moments(optimizer.state_dict()) and not _has_moments(checkpoint.load(OPTIMIZER)):
        raise CheckpointError(
            f"{checkpoint.path}: was saved before the first step, and the given optimizer has "
            "taken some; expected a new one"
        )
    load_checkpoint(checkpoint, model, optimizer)


def _has_moments(values: Mapping[str, Any]) -> bool:
    return bool(set(values) - {STATE, NAME_TABLE})


def save_inference_model(
    dirname: Folder,
    feeded_var_names: Sequence[str],
    target_vars: Sequence[str],
    model: MNIST,
) -> dict[str, Any]:
    """Write the part of the net that leads from the images to chosen outputs.

    feeded_var_names: the inputs; this net has one, "images". target_vars: names of
    `paddle_mnist.mnist.export.OUTPUTS`; layers after the last of them are left out.
    Returns what `export_model` returns. Raises ConfigError, OutputError.
    """
    if list(feeded_var_names) != [INPUT]:
        raise ConfigError(
            f"feeded_var_names are {', '.join(feeded_var_names) or 'none'}; expected {INPUT}, the "
            "one input of this net"
        )
    return export_model(model, Path(dirname), target_vars)


def load_inference_model(dirname: Folder) -> tuple[DigitPredictor, list[str], list[str]]:
    """Return what runs the program, the names of its inputs, and those of its outputs.

    Raises CheckpointError.
    """
    predictor = DigitPredictor(dirname)
    return predictor, [INPUT], list(predictor.outputs)

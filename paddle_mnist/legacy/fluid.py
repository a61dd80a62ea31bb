"""Provide Fluid's functions to save and load, for today's models.

    save_vars, load_vars                        chosen variables
    save_params, load_params                    the parameters
    save_persistables, load_persistables        the parameters and the optimizer, to resume
    save_inference_model, load_inference_model  the part of the net that computes chosen outputs

Fluid skipped variables that did not fit; here everything must fit. docs/en/fluid.md maps each old
call to today's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import paddle
from paddle import nn

from paddle_mnist.checkpoint.contents import load_checkpoint, optimizer_entries
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, read_manifest
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.checkpoint.store import SPARE, CheckpointStore
from paddle_mnist.checkpoint.weights import write_weights
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.mnist.export import INPUT, export_model
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.predictor import DigitPredictor
from paddle_mnist.nn.state_dict import NAME_TABLE, load_weights
from paddle_mnist.system.files import make_folder, sync_folder
from paddle_mnist.train_state import TrainState

PERSISTABLES = "mnist_persistables"  # named as the store names checkpoints

Folder = Union[str, Path]


def save_vars(
    dirname: Folder, model: nn.Layer, vars: Sequence[str], filename: str = "vars.pdparams"
) -> Path:
    """Write chosen variables of a model into one file, and return its path.

    vars: structured names, as `model.state_dict()` has them ("conv1.weight").
    Raises ConfigError for a name that the model does not have, and OutputError.
    """
    state_dict = model.state_dict()
    _require_known(vars, state_dict)
    path = Path(dirname, filename)
    make_folder(path.parent)
    write_weights(path, {name: state_dict[name] for name in vars})
    sync_folder(path.parent)
    return path


def load_vars(
    dirname: Folder, model: nn.Layer, vars: Sequence[str], filename: str = "vars.pdparams"
) -> None:
    """Load chosen variables; the others keep their values. The file may hold more.

    Raises ConfigError for a name that the model does not have, and CheckpointError, with a diff,
    unless each variable is in the file and fits.
    """
    path = Path(dirname, filename)
    saved, state_dict = safe_load(path), model.state_dict()
    _require_known(vars, state_dict)
    missing = [name for name in vars if name not in saved]
    if missing:
        names = ", ".join(str(name) for name in saved if name != NAME_TABLE)
        raise CheckpointError(f"{path}: holds no {', '.join(missing)}; it holds {names}")
    load_weights(model, {**state_dict, **{name: saved[name] for name in vars}}, path)


def _require_known(vars: Sequence[str], state_dict: Mapping[str, Any]) -> None:
    if not vars or set(vars) - set(state_dict):
        raise ConfigError(
            f"vars are {', '.join(vars) or 'empty'}; expected some of {', '.join(state_dict)}"
        )


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
    """Write the parameters and the optimizer as one checkpoint, and return its manifest's path.

    The optimizer includes its moments and learning-rate schedule. The position in the data is not
    saved; `fit` saves that, too. Raises OutputError.
    """
    checkpoint = CheckpointStore(dirname).commit(
        PERSISTABLES,
        {
            PARAMS: SavedState(model.state_dict()),
            OPTIMIZER: SavedState(optimizer.state_dict()),
        },
        TrainState(),
        optimizer_entries(model, optimizer),
    )
    return checkpoint.path


def load_persistables(
    dirname: Folder, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
) -> None:
    """Load a checkpoint of `save_persistables`; the next step continues the run.

    Raises CheckpointError, with a diff, unless all of it fits. Do not use the model and the
    optimizer after that.
    """
    spare = Path(dirname, f"{PERSISTABLES}{SPARE}.json")  # of a save that was killed
    checkpoint = read_manifest(spare if spare.exists() else Path(dirname, f"{PERSISTABLES}.json"))
    saved_class, own_class = checkpoint.manifest.get("optimizer"), type(optimizer).__name__
    if saved_class != own_class:
        raise CheckpointError(
            f"{checkpoint.path}: was saved with the optimizer {saved_class}; expected {own_class}"
        )
    load_checkpoint(checkpoint, model, optimizer)


def save_inference_model(
    dirname: Folder,
    feeded_var_names: Sequence[str],
    target_vars: Sequence[str],
    model: MNIST,
) -> dict[str, Any]:
    """Write the part of the net that computes chosen outputs from the images.

    feeded_var_names: the inputs; this net has one, "images". target_vars: names in
    `paddle_mnist.mnist.export.OUTPUTS`; layers after the last of them are left out.
    Returns the same as `export_model`. Raises ConfigError, OutputError.
    """
    if list(feeded_var_names) != [INPUT]:
        raise ConfigError(
            f"feeded_var_names are {', '.join(feeded_var_names) or 'empty'}; expected {INPUT}, the "
            "only input of this net"
        )
    return export_model(model, Path(dirname), target_vars)


def load_inference_model(dirname: Folder) -> tuple[DigitPredictor, list[str], list[str]]:
    """Return a predictor, the names of its inputs, and those of its outputs.

    Raises CheckpointError.
    """
    predictor = DigitPredictor(dirname)
    return predictor, [INPUT], list(predictor.outputs)

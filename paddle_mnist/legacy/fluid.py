"""Provide Fluid's functions to save and load, for today's models.

    save_vars, load_vars                        chosen variables
    save_params, load_params                    the parameters
    save_persistables, load_persistables        the parameters and the optimizer, to resume
    save_inference_model, load_inference_model  the part of the net that computes chosen outputs

Fluid skipped variables that did not fit; here everything must fit. docs/en/fluid.md maps each old
call to today's.
"""

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union, cast

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint.contents import load_checkpoint, optimizer_entries
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, read_manifest
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.checkpoint.store import SPARE_SUFFIX, CheckpointStore
from paddle_mnist.checkpoint.weights import write_weights
from paddle_mnist.data.structures import explained, mapped
from paddle_mnist.errors import CheckpointError, ConfigError, unknown_name
from paddle_mnist.inference.export import Example, as_layer, export_layer, one_or_all
from paddle_mnist.inference.predictor import Input, Predictor, Signature, common_shapes
from paddle_mnist.mnist.export import INPUT, USUAL_OUTPUTS, ExportedModel, checked_images
from paddle_mnist.mnist.export import signature as digits_signature
from paddle_mnist.mnist.predictor import DigitPredictor
from paddle_mnist.nn.layers import evaluation_mode
from paddle_mnist.nn.state_dict import NAME_TABLE, load_weights
from paddle_mnist.system.files import make_folder, sync_folder
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.trained_model import build_model

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
    _require_known("vars", vars, state_dict)
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
    _require_known("vars", vars, state_dict)
    missing = [name for name in vars if name not in saved]
    if missing:
        names = ", ".join(str(name) for name in saved if name != NAME_TABLE)
        raise CheckpointError(f"{path}: holds no {', '.join(missing)}; it holds {names}")
    load_weights(model, {**state_dict, **{name: saved[name] for name in vars}}, path)


def _require_known(argument: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(unknown_name(argument, name, known))
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"{argument} are {', '.join(names) or 'empty'}; expected one or more of "
            f"{', '.join(known)}, without repeats"
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
    dirname: Folder, model: nn.Layer, optimizer: Optional[paddle.optimizer.Optimizer] = None
) -> Path:
    """Write all that a model keeps, and the optimizer, as one checkpoint; return its manifest.

    The model keeps its parameters and buffers; the optimizer, if there is one, its moments and
    learning-rate schedule. The position in the data is not saved; `fit` saves that, too. Raises
    OutputError.
    """
    files = {
        PARAMS: SavedState(model.state_dict()),
        OPTIMIZER: SavedState(optimizer.state_dict() if optimizer else {}),
    }
    entries = optimizer_entries(model, optimizer) if optimizer else {}
    return CheckpointStore(dirname).commit(PERSISTABLES, files, TrainState(), entries).path


def load_persistables(
    dirname: Folder, model: nn.Layer, optimizer: Optional[paddle.optimizer.Optimizer] = None
) -> None:
    """Load a checkpoint of `save_persistables`; the next step continues the run.

    Raises CheckpointError, with a diff, unless all of it fits. Do not use the model and the
    optimizer after that.
    """
    spare = Path(dirname, f"{PERSISTABLES}{SPARE_SUFFIX}.json")  # of a save that was killed
    checkpoint = read_manifest(spare if spare.exists() else Path(dirname, f"{PERSISTABLES}.json"))
    saved_class = checkpoint.manifest.get("optimizer", "none")
    own_class = type(optimizer).__name__ if optimizer else "none"
    if saved_class != own_class:
        raise CheckpointError(
            f"{checkpoint.path}: was saved with the optimizer {saved_class}; expected {own_class}"
        )
    if optimizer:
        load_checkpoint(checkpoint, model, optimizer)
    else:
        load_weights(model, checkpoint.load(PARAMS), checkpoint.path.with_suffix(PARAMS))


def save_inference_model(
    dirname: Folder,
    feeded_var_names: Sequence[str],
    target_vars: Sequence[str],
    model: nn.Layer,
    inputs: Union[Example, Sequence[Example], None] = None,
) -> dict[str, Any]:
    """Write the part of a net that computes chosen variables from other ones.

    feeded_var_names: inputs, by the names of `forward`'s parameters, or layers. target_vars: layers
        or outputs, which `export_run` names. A layer's name ("conv1", "body.0") stands for its
        output; if it is fed, the layer and those that only lead to it are left out.
    inputs: of the whole net; see `export_run`. By default they are images of digits, float32
        [N, 1, 28, 28]; then there are also the input "images", their pixels, uint8 [N, 28, 28],
        and the outputs "logits" and "probabilities".

    Returns the same as `export_layer`. Raises ConfigError, also if the net needs inputs that are
    not fed, or does not call a layer exactly once; OutputError; CheckpointError.
    """
    net, signature, batches, own = _whole_net(model, inputs)
    layers, outputs = dict(model.named_sublayers()), {n: i for i, n in enumerate(signature.outputs)}
    sources, results = {**layers, **own}, {**layers, **outputs}  # inputs and outputs come first
    _require_known("feeded_var_names", feeded_var_names, sources)
    _require_known("target_vars", target_vars, results)
    feeds, targets = [sources[n] for n in feeded_var_names], [results[n] for n in target_vars]
    examples = {spec.name: batch for spec, batch in zip(signature.inputs, batches)}
    whole = _Part(net, examples, [*examples], [*feeds, *targets])
    part = _Part(net, examples, feeds, targets)
    with evaluation_mode(net), paddle.no_grad():
        with explained(batches, "the net"):
            runs = [whole.compute(mapped(b, paddle.to_tensor)) for b in signature.sized(batches)]
        named = [*zip([*feeded_var_names, *target_vars], map(runs[0].get, whole.targets))]
        for index, (name, value) in enumerate(named):
            if not isinstance(value, paddle.Tensor) or value.shape[:1] != [len(batches[0])]:
                raise ConfigError(
                    f"{name}: is not one tensor [N, ...] that the net computes exactly once; "
                    "choose another layer, or export the whole net: export_run"
                )
            for other, earlier in named[:index]:
                if other == name or earlier is value:
                    raise ConfigError(f"{other} and {name} are one variable; leave one of them out")
        if not part.is_enough(runs[0]):
            raise ConfigError(
                f"the net needs more than {', '.join(feeded_var_names)} to compute "
                f"{', '.join(target_vars)}; feed more, or export the whole net: export_run"
            )
        for name, key in zip(feeded_var_names, feeds):
            others = [other for other in feeds if other is not key]
            if _Part(net, examples, others, targets).is_enough(runs[0]):
                raise ConfigError(f"feeded_var_names: no target needs {name}; leave it out")
    fed = [[run[key].numpy() for key in feeds] for run in runs]
    specs = [
        Input(name, value.dtype.name, shape)
        for name, value, shape in zip(feeded_var_names, fed[0], common_shapes(fed))
    ]
    return export_layer(part, Path(dirname), Signature(tuple(specs), tuple(target_vars)), fed[0])


def load_inference_model(dirname: Folder) -> tuple[Predictor, list[str], list[str]]:
    """Return a predictor, the names of its inputs, and those of its outputs.

    It is a `DigitPredictor` where "images" are fed and all outputs are the tutorial's. Raises
    CheckpointError.
    """
    try:
        predictor: Predictor = DigitPredictor(dirname)
    except CheckpointError:
        predictor = Predictor(dirname)
    return predictor, [spec.name for spec in predictor.signature.inputs], list(predictor.outputs)


def _whole_net(
    model: nn.Layer, inputs: Any
) -> tuple[nn.Layer, Signature, list[np.ndarray], dict[str, Any]]:
    """Return the values of `as_layer`, and the feeds that the model's input names stand for."""
    names = list(inspect.signature(build_model(model).forward).parameters)
    if inputs is not None:
        net, signature, batches = as_layer(model, inputs)
        specs = [spec.name for spec in signature.inputs]
        return net, signature, batches, {**dict(zip(specs, specs)), **dict(zip(names, specs))}
    start = nn.Identity()  # its output is the model's input
    try:
        net = ExportedModel(nn.Sequential(start, model), USUAL_OUTPUTS)
    except ConfigError as error:
        raise ConfigError(f"{error}; for a net on other data, give inputs") from error
    own = {**dict.fromkeys(names[:1], start), INPUT: INPUT}
    return net, digits_signature(USUAL_OUTPUTS), [checked_images()], own


class _Part(nn.Layer):
    """The part of a net that computes targets from feeds.

    net: as `export_layer` takes it. examples: a batch of each of its inputs. feeds: names of these
    inputs, and layers, which stand for their outputs. targets: layers, and indices of outputs.

    Zeros, of another number of samples, take the place of an input that is not fed: a target that
    depends on it raises an error. Paddle leaves what is computed from them out of the program.
    """

    def __init__(
        self,
        net: nn.Layer,
        examples: Mapping[str, np.ndarray],
        feeds: Sequence[Any],
        targets: Sequence[Any],
    ):
        super().__init__()
        self.net, self.examples, self.feeds, self.targets = net, examples, feeds, targets

    def forward(self, inputs: Union[paddle.Tensor, list[paddle.Tensor]]) -> list[paddle.Tensor]:
        values = self.compute(inputs if isinstance(inputs, list) else [inputs])
        return [values[key] for key in self.targets]

    def compute(self, inputs: Sequence[paddle.Tensor]) -> dict[Any, Any]:
        """Return values by feed and target; None for a layer that is called more than once."""
        fed = dict(zip(self.feeds, inputs))
        values: dict[Any, Any] = {}
        for name, batch in self.examples.items():
            shape, dtype = [len(batch) + 1, *batch.shape[1:]], cast(Any, batch.dtype.name)
            values[name] = fed[name] if name in fed else paddle.zeros(shape, dtype)
        inputs_of_net = one_or_all(list(values.values()))

        def replace_and_keep(layer: nn.Layer, inputs: Any, output: Any) -> Any:
            value = fed.get(layer, output)
            values[layer] = None if layer in values else value
            return value

        with contextlib.ExitStack() as hooks:
            for layer in self.net.sublayers():
                if layer in self.feeds or layer in self.targets:
                    hooks.callback(layer.register_forward_post_hook(replace_and_keep).remove)
            try:
                values.update(enumerate(self.net(inputs_of_net)))
            except Exception:  # after the last target, where numbers of samples do not match
                if not all(key in values for key in self.targets):
                    raise
        return values

    def is_enough(self, values: Mapping[Any, paddle.Tensor]) -> bool:
        """Return whether the feeds are enough to compute what the whole net computes."""
        try:
            outputs = self.forward([values[key] for key in self.feeds])
        except Exception:  # the part also needs an input that is not fed
            return False
        pairs = [(value.numpy(), values[key].numpy()) for key, value in zip(self.targets, outputs)]
        return all(a.shape == b.shape and np.allclose(a, b, equal_nan=True) for a, b in pairs)

"""Load and evaluate the net that a run has trained, which the caller builds."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from paddle import nn

from paddle_mnist.checkpoint.manifest import EXTRA
from paddle_mnist.checkpoint.names import SavedWeights, find_weights
from paddle_mnist.data.collate import CollateFn
from paddle_mnist.data.external import open_loader
from paddle_mnist.data.seeding import VALID, generators_restored
from paddle_mnist.errors import ConfigError
from paddle_mnist.hidden_state.extra_state import LOSS
from paddle_mnist.hidden_state.packing import unpack
from paddle_mnist.interfaces import Loader
from paddle_mnist.metrics.console import log_to_console
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.training.evaluator import evaluate_step
from paddle_mnist.training.first_batch import try_evaluation
from paddle_mnist.training.steps import Loss, Metrics, Step, build_step

log = logging.getLogger("paddle_mnist")

Model = Union[nn.Layer, Callable[[], nn.Layer]]  # a net, or the function that builds it
BATCH_SIZE = 32  # the default of `fit`, and for weights that do not belong to a run


class TrainedModel(NamedTuple):
    """A model with trained weights, and their origin."""

    model: nn.Layer
    weights: SavedWeights

    def open_data(self, data: Any, batch_size: Optional[int], **options: Any) -> Loader:
        """Return a loader of any data, by default with the batch size of the run's evaluation.

        Random samples are seeded as in the run's evaluation. options: of `open_loader`.
        """
        config = self.weights.run.read_config()
        usual = config.get("eval_batch_size") or config.get("batch_size") or BATCH_SIZE
        seed = config.get("seed", 0)
        return open_loader(data, batch_size or usual, seed, split=VALID, **options)


def build_model(model: Model) -> nn.Layer:
    """Return the net, which a function may build. Raises ConfigError."""
    if not isinstance(model, nn.Layer) and callable(model):
        model = model()
    if not isinstance(model, nn.Layer):
        raise ConfigError(
            f"the model is a {type(model).__name__}; expected a paddle.nn.Layer, or a function "
            "that returns one"
        )
    return model


def load_trained(
    weights: Union[str, Path], model: Model, run: Union[str, Path, None] = None
) -> TrainedModel:
    """Load a run's weights into a net; see `load_model`."""
    with generators_restored():
        built = build_model(model)
    saved = find_weights(str(weights), None if run is None else str(run))
    load_weights(built, saved.values, saved.path)
    log_to_console()  # as `fit`, in the same form
    log.info("weights: %s", saved.path)
    return TrainedModel(built, saved)


def load_model(
    weights: Union[str, Path], model: Model, run: Union[str, Path, None] = None
) -> nn.Layer:
    """Return a net with the final weights of a run, or of a checkpoint, in evaluation mode.

    weights: the path of a run, a checkpoint or a `.pdparams` file; or "best" or "latest", for
        that checkpoint of `run`.
    model: the function that builds the net, as `fit` takes it, or the net itself, whose weights
        are replaced.
    run: the run to which "best" and "latest" refer; by default the newest in work/output.

    If the run keeps a moving average of its weights, the average is loaded.
    Raises CheckpointError if the weights are missing or damaged, or do not fit the net.
    """
    trained = load_trained(weights, model, run).model
    trained.eval()
    return trained


def evaluate_run(
    weights: Union[str, Path],
    model: Model,
    data: Any,
    *,
    loss: Optional[Loss] = None,
    metrics: Optional[Metrics] = None,
    step: Optional[Step] = None,
    run: Union[str, Path, None] = None,
    batch_size: Optional[int] = None,
    collate_fn: Optional[CollateFn] = None,
    num_workers: int = 0,
    amp: str = "off",
) -> dict[str, float]:
    """Evaluate the net that a run has trained, on any data; return loss and metrics by name.

    weights, model, run: see `load_model`.
    data: a dataset, or anything else that `fit` takes as `valid`.
    loss, metrics, step, collate_fn, num_workers, amp: see `fit`. A loss that is a layer
    gets the parameters that the run has trained. batch_size: by default the run's.

    With the same arguments as the call to `fit`, it returns the same numbers, to the last bit.
    Computes on Paddle's current device. Raises ConfigError, DataError, CheckpointError, and
    DivergedError if the loss is not finite.
    """
    step = build_step(loss, metrics, step, amp)
    trained = load_trained(weights, model, run)
    if isinstance(loss, nn.Layer) and loss.state_dict():
        _load_loss(loss, trained.weights)
    loader = trained.open_data(data, batch_size, collate_fn=collate_fn, num_workers=num_workers)
    with generators_restored():
        try_evaluation(step, trained.model, loader, "data", is_low_precision=amp != "off")
        return evaluate_step(step, trained.model, loader, "data")


def _load_loss(loss: nn.Layer, weights: SavedWeights) -> None:
    """Load the trained parameters of a loss that is a layer; warn if they were not saved."""
    checkpoint, named = weights.checkpoint, {}
    if checkpoint and checkpoint.has_file(EXTRA):
        path = checkpoint.path.with_suffix(EXTRA)
        named = unpack(checkpoint.load(EXTRA), None, path, None)["named"]
    if LOSS in named:
        load_weights(loss, named[LOSS], weights.path)
    else:
        log.warning(
            "%s: no checkpoint with the parameters of the loss, a %s; evaluating with its current "
            "ones",
            weights.path,
            type(loss).__name__,
        )

"""The parts of a training, for those who take its steps one by one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from paddle_mnist.parallel.world import World
    from paddle_mnist.training.initialize import TrainingParts


def build_parts(arguments: Mapping[str, Any], world: "Optional[World]" = None) -> "TrainingParts":
    """Build a net, its optimizer and its loader, as `fit` does before the first step.

    arguments: those of `fit` for a training on digits, from `paddle_mnist.mnist.setup.parts`.
    world: the processes that train together, of which this is one; by default this one alone.
    """
    import paddle

    from paddle_mnist.data.external import open_loader
    from paddle_mnist.data.sampler import ShardSpec
    from paddle_mnist.nn.ema import NO_AVERAGE, ExponentialMovingAverage
    from paddle_mnist.nn.schedule import Schedule
    from paddle_mnist.training.initialize import TrainingParts

    loading, seed = arguments["loading"], arguments["seed"]
    paddle.seed(seed)
    model = arguments["model"]()
    optimizer = arguments["optimizer"](model.parameters())
    loader = open_loader(
        arguments["train"],
        arguments["batch_size"],
        seed,
        loading.shuffle,
        loading.collate_fn,
        loading.num_workers,
        loading.order,
    )
    grad_shards = arguments["processes"].grad_shards
    rank, size = (world.rank, world.size) if world else (0, 1)
    if grad_shards or size > 1:
        loader = loader.sharded(ShardSpec(grad_shards or size, rank, size))
    ema = arguments["numerics"].ema
    average = ExponentialMovingAverage(model, ema) if ema else NO_AVERAGE
    return TrainingParts(model, loader, Schedule(optimizer), optimizer, average)

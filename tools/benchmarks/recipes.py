"""What a training needs: the configuration of a recipe, and batches without end."""

import itertools
from collections.abc import Iterator
from typing import Any

from paddle_mnist.mnist.config import TrainConfig, read_recipe


def config_of(recipe: str, **changes: Any) -> TrainConfig:
    """Return the configuration of a recipe, with these changes."""
    return TrainConfig.from_mapping({**read_recipe(recipe), **changes})


def endless_batches(loader) -> Iterator:
    """Yield the batches of one epoch after the other."""
    from paddle_mnist.data.loader import epoch_batches

    for epoch in itertools.count():
        yield from epoch_batches(loader, epoch)

"""`TrainConfig`, the configuration of a run on digits, and recipes. Imports no paddle."""

import functools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Optional

import yaml

from paddle_mnist.checkpoint.run import FIT, TRAINED_WITH
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.data.loading import Loading
from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.mnist.incremental import Incremental
from paddle_mnist.mnist.options import (
    CommandOptions,
    ImageOptions,
    LossOptions,
    NetOptions,
    OptimizerOptions,
)
from paddle_mnist.mnist.print_layers import PrintLayers
from paddle_mnist.nn.numerics import Numerics
from paddle_mnist.options import (
    FlatOption,
    Options,
    build_group,
    flat_options,
    flat_values,
    require_known,
)
from paddle_mnist.parallel.processes import Processes
from paddle_mnist.system.yaml_reader import read_yaml
from paddle_mnist.training.arguments import (
    TASK,
    Evaluating,
    FitArguments,
    StartFrom,
    check_together,
)
from paddle_mnist.training.bundled import Console, EarlyStopping, Figures, Profile, VisualDL, Watch

TRAINER = "paddle_mnist.train_and_evaluate"  # what `config.yaml` says a run was trained with
# Entries beside the options, which `fit` records for every run.
RECORDED = (TRAINED_WITH, "monitor", "mode", "parameters", "valid", *TASK)


class TrainConfig:
    """The configuration of one training run on digits: groups of options, immutable.

    It is built from the flat names of the command line and of YAML; options that are left out have
    the values of the recipe `default`. Raises ConfigError for an unknown name or an invalid value.

    The groups are the attributes, such as `saving.every_steps` for `save_every_steps`; `epochs`,
    `batch_size`, `seed`, `output`, `name`, `device`, `resume`, `start_epoch` and `override` are
    attributes by themselves.
    """

    # The groups, in the order of `--help`
    images: ImageOptions
    loading: Loading
    net: NetOptions
    loss: LossOptions
    numerics: Numerics
    early_stopping: EarlyStopping
    start: Optional[StartFrom]
    incremental: Incremental
    optimizer: OptimizerOptions
    processes: Processes
    saving: Saving
    evaluating: Evaluating
    command: CommandOptions
    console: Console
    visualdl: VisualDL
    figures: Figures
    watch: Watch
    print_layers: PrintLayers
    profile: Profile

    epochs: int
    batch_size: int
    seed: int
    output: Optional[str]
    name: str
    device: str
    resume: str
    start_epoch: Optional[int]
    override: tuple[str, ...]

    def __init__(self, **options: object) -> None:
        require_known(options, FLAT_OPTIONS, "config")
        values = {**_defaults(), **options}
        groups = {name: build_group(group, values) for name, group in GROUPS.items()}
        ungrouped = {name: _read(name, values[name]) for name in UNGROUPED}
        vars(self).update(**groups, **ungrouped)
        # Set last: no attribute can be set afterwards.
        self._options = {**values, **ungrouped, **flat_values(groups.values())}
        check_together(self.start, self.resume, self.saving, [self.early_stopping])

    @property
    def options(self) -> Mapping[str, Any]:
        """All values by their flat names."""
        return MappingProxyType(self._options)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], origin: str = "config") -> "TrainConfig":
        """Build a config from names and values.

        origin: where they come from, for errors. Raises ConfigError.
        """
        trainer = values.get(TRAINED_WITH)
        if trainer == FIT:
            raise ConfigError(
                f"{origin}: the arguments of a call to {FIT}, which trains your own net; "
                "expected the configuration of a run on digits; run the script that calls it"
            )
        if trainer == TRAINER:
            values = {name: value for name, value in values.items() if name not in RECORDED}
        require_known(values, FLAT_OPTIONS, origin)
        return cls(**values)

    def replace(self, **options: object) -> "TrainConfig":
        """Return a copy with other values, by flat name."""
        return TrainConfig(**{**self.options, **options})

    def as_dict(self) -> dict[str, object]:
        """Return plain values by flat name, as YAML and JSON can hold them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.options.items()}

    def as_yaml(self) -> str:
        return yaml.safe_dump(self.as_dict(), sort_keys=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainConfig) and self.options == other.options

    def __hash__(self) -> int:
        return hash(tuple(self.options.items()))

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, "_options"):
            raise AttributeError(
                f"{name} cannot be set; call replace, which returns another config"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"TrainConfig({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


UNGROUPED = tuple(flat_options([FitArguments]))
GROUPS: dict[str, type[Options]] = {
    name: StartFrom if name == "start" else kind  # which is optional
    for name, kind in TrainConfig.__annotations__.items()
    if name not in UNGROUPED
}
FLAT_OPTIONS: dict[str, FlatOption] = flat_options([ImageOptions, FitArguments, *GROUPS.values()])


def _read(name: str, value: object) -> Any:
    """Return an option that is in no group; `output` may be left out."""
    return None if value is None and name == "output" else FLAT_OPTIONS[name].read(name, value)


@functools.cache
def _defaults() -> dict[str, Any]:
    """Return the values of the recipe `default`, and those of `fit` for other options."""
    return {name: option.default for name, option in FLAT_OPTIONS.items()} | read_recipe("default")


def read_config(path: Path) -> TrainConfig:
    """Return the configuration of a run, from its `config.yaml`. Raises ConfigError."""
    return TrainConfig.from_mapping(read_yaml(path), origin=str(path))


def continued_schedule(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule of continued training in place of a recipe's.

    It falls in a straight line from half the recipe's peak: docs/en/incremental.md has the
    measurements. schedule: the recipe's lr_schedule and learning_rate.
    """
    return {"lr_schedule": "polynomial", "learning_rate": schedule["learning_rate"] / 2}


def recipes() -> dict[str, Path]:
    """Return the files of the package's recipes, by name."""
    folder = Path(str(resources.files("paddle_mnist.mnist") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_recipe(name: str) -> dict[str, Any]:
    """Return the names and values of a recipe. Raises ConfigError for an unknown name."""
    known = recipes()
    if name not in known:
        raise ConfigError(unknown_name("recipe", name, known))
    return read_yaml(known[name])

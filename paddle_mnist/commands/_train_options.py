"""The options of `train`, and the configuration that they select."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.commands import Parser
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.config import (
    FLAT_OPTIONS,
    TrainConfig,
    continued_schedule,
    read_recipe,
    recipes,
)
from paddle_mnist.mnist.sources import find_source
from paddle_mnist.options import FlatOption, require_known
from paddle_mnist.system.yaml_reader import read_yaml

ALIASES = {"data": "data_url", "output": "train_url"}  # as ModelArts passes them


def add_train_options(parser: Parser) -> None:
    """Add all options of `train`, under their headings, and those that set many at once."""
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        action="append",
        default=[],
        help=f"start from: {', '.join(recipes())}",
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        action="append",
        default=[],
        help="YAML file, lines of 'field: value'; repeatable, later files win",
    )
    parser.add_argument(
        "-o",
        "--set",
        metavar="FIELD=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="set any field below; repeatable, takes several at once",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start over; moves the old run directory aside"
    )
    parser.add_argument(
        "--ignore_unknown",
        action="store_true",
        help="warn of unknown arguments, as with --train_url, instead of refusing them",
    )
    groups: dict[str, Any] = {}
    defaults = {**TrainConfig().as_dict(), "output": "work/output/<recipe>"}
    for name, flat_option in FLAT_OPTIONS.items():
        title = flat_option.heading
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        add_option(groups[title], name, flat_option, defaults[name])
        if name == "nprocs":
            groups[title].add_argument(
                "--num_gpus",
                type=int,
                default=argparse.SUPPRESS,
                metavar="N",
                help="nprocs, as ModelArts passes it; 0: one process on the CPU",
            )


def add_option(
    group: Any, name: str, flat_option: FlatOption, value: Any, absent: Any = argparse.SUPPRESS
) -> None:
    """Add an option to a parser or one of its groups.

    value: its default, for the help. absent: the value if the option is not given.
    """
    value = ",".join(map(str, value)) if isinstance(value, list) else value
    value = str(value).lower() if isinstance(value, bool) else value
    default = "" if value in (None, "") else f" [{value}]"
    bare = flat_option.declared.bare  # the value of an option without one
    group = group.add_mutually_exclusive_group() if name == "device" else group
    group.add_argument(
        f"--{name}",
        *([f"--{ALIASES[name]}"] if name in ALIASES else []),
        dest=name,
        default=absent,
        metavar=flat_option.metavar,
        help=f"{flat_option.help}{default}",
        **({"nargs": "?", "const": bare} if bare else {}),
    )
    if name == "device":
        group.add_argument(
            "--gpu_id",
            dest=name,
            type=_device_of_gpu,
            default=argparse.SUPPRESS,
            metavar="N",
            help="device gpu:N, as Paddle's FAQ writes it",
        )


def add_device_option(parser: Parser) -> None:
    """Add the device to a command that does not train; by default "auto"."""
    add_option(parser, "device", FLAT_OPTIONS["device"], "auto", absent="auto")


def _device_of_gpu(number: str) -> str:
    """Return the name of the device with the number of a GPU."""
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{number!r}; expected the number of a GPU, such as 2")
    return f"gpu:{number}"


def train_config(args: argparse.Namespace) -> TrainConfig:
    """Return the configuration that a command line selects.

    It combines, later ones winning: the recipe, the schedule of continued training, `--num_gpus`,
    the files, -o, the options.
    Without a recipe or a file, if only the embedded digits are found, the recipe is `digits`.
    Raises ConfigError.
    """
    implied: dict[str, Any] = {}
    if "num_gpus" in args:  # 0 on machines without a GPU; nprocs 0 would start one process per core
        count = args.num_gpus
        implied = {"nprocs": count} if count else {"nprocs": 1, "device": "cpu", "gpus": None}
    given = {name: value for name, value in vars(args).items() if name in FLAT_OPTIONS}
    options = {**_fields_from_set(args.set), **given}
    if len(args.recipe) > 1:
        raise ConfigError(f"recipe is {' and '.join(args.recipe)}; expected one; pass files by -c")
    recipe = args.recipe[0] if args.recipe else None if args.config else "default"
    if not args.recipe and not args.config:
        TrainConfig(**{**implied, **options})  # errors come before the search for data
        if not find_source(options.get("data", "auto")).path:  # the embedded digits
            recipe = "digits"
            options.pop("data", None)  # the recipe names them: a second search might find others
    values = read_recipe(recipe) if recipe else {}
    file: dict[str, Any] = {}
    for path in args.config:
        file.update(read_yaml(path, may_be_pipe=True))
    chosen = {**implied, **file, **options}
    if chosen.get("output") is None:
        chosen["output"] = str(Path("work", "output", recipe or _name_of(Path(args.config[-1]))))
    if "lr_schedule" not in chosen and _is_continued(chosen):
        values.update(continued_schedule({**TrainConfig().options, **values}))
    values.update(chosen)
    return TrainConfig.from_mapping(values, origin=", ".join(args.config) or "config")


def _is_continued(given: Mapping[str, Any]) -> bool:
    """Return whether training continues another run, or resumes a run that does."""
    resume = str(given.get("resume", "auto"))
    if given.get("incremental_from") or resume in ("auto", "off", "False"):
        return bool(given.get("incremental_from"))
    run = RunDirectory(resume)
    configs = (run.config, RunDirectory(run.path.parent.parent).config)  # or that of a checkpoint
    config = next((path for path in configs if path.is_file()), None)
    return config is not None and bool(read_yaml(config).get("incremental_from"))


def _name_of(config: Path) -> str:
    """Return the name of a configuration file without its suffix; `net.v1` has none."""
    return config.stem if config.suffix.lower() in (".yaml", ".yml", ".json") else config.name


def _fields_from_set(items: list[str]) -> dict[str, str]:
    """Return the fields of `-o FIELD=VALUE ...`."""
    fields = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"-o {item}: expected FIELD=VALUE")
        fields[name.replace("-", "_")] = value
    require_known(fields, FLAT_OPTIONS, "-o")
    return fields

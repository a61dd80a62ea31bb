"""What the commands in tools/ share: options from `TrainConfig`, one-line errors, exit codes."""

import argparse
import logging
import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Optional, TextIO

import paddle_mnist
from paddle_mnist.errors import (
    ConfigError,
    OutputError,
    PaddleMnistError,
    nearest_name,
    unknown_name,
)
from paddle_mnist.metrics.writers import log_to_console
from paddle_mnist.mnist.config import FIELDS, TrainConfig, choices, read_recipe, read_yaml, recipes
from paddle_mnist.mnist.sources import DIGITS, find_source
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.devices import installed_builds
from paddle_mnist.system.supervisor import supervise
from paddle_mnist.training.run_directory import RunDirectory

ALIASES = {"data": "data_url", "output": "train_url"}  # as ModelArts passes them


class _Version(argparse.Action):
    """Prints the versions and ends. Reads the metadata of packages, imports none of them."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs):
        kwargs["help"] = "print the versions of the package, PaddlePaddle and Python, and exit"
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **kwargs)

    def __call__(self, parser, namespace, values, option_string=None) -> NoReturn:
        builds = [f"{name} {version}" for name, version in installed_builds().items()]
        versions = [*(builds or ["no PaddlePaddle"]), f"Python {platform.python_version()}"]
        print(f"paddle_mnist {paddle_mnist.__version__} ({', '.join(versions)})")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest name that is known; exits with 2.

    Every option may also be written with dashes, `--learning-rate` for `--learning_rate`.
    """

    def __init__(self, **kwargs):
        super().__init__(
            usage="%(prog)s [options]",
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
                prog, max_help_position=36
            ),
            **kwargs,
        )
        self.add_argument("--version", action=_Version)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the options")

    def parse_args(self, argv: Optional[Sequence[str]] = None, namespace=None):
        args, unknown = self.parse_known_args(argv, namespace)
        if unknown:
            name = unknown[0].partition("=")[0].lstrip("-").replace("-", "_")
            near = nearest_name(name, [option[2:] for option in self._long_options()])
            hint = f"did you mean --{near}?" if near else "--help lists the options"
            raise ConfigError(f"unknown argument {unknown[0]}; {hint}")
        return args

    def parse_known_args(self, args: Optional[Sequence[str]] = None, namespace=None):
        args = sys.argv[1:] if args is None else args
        return super().parse_known_args(self._with_underscores(args), namespace)

    def _with_underscores(self, argv: Sequence[str]) -> list[str]:
        """The arguments with every option spelled as it was added; values stay as they are."""
        options = self._long_options()
        end = argv.index("--") if "--" in argv else len(argv)  # after it, nothing is an option
        spelled = []
        for arg in argv[:end]:
            name, equals, value = arg.partition("=")
            option = f"--{name[2:].replace('-', '_')}"
            known = name.startswith("--") and option in options
            spelled.append(f"{option}{equals}{value}" if known else arg)
        return [*spelled, *argv[end:]]

    def _long_options(self) -> list[str]:
        names = [name for action in self._actions for name in action.option_strings]
        return [name for name in names if name.startswith("--")]


def add_train_options(parser: Parser) -> None:
    """One option a field of `TrainConfig`, grouped, and the ways to name many at once."""
    parser.add_argument("--recipe", metavar="NAME", help=f"start from: {', '.join(recipes())}")
    parser.add_argument("-c", "--config", metavar="FILE", help="YAML file, lines of 'field: value'")
    parser.add_argument(
        *("-o", "--set"),
        metavar="FIELD=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="any field below; repeatable, several at once",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start over; moves an old run directory aside"
    )
    groups: dict[str, Any] = {}
    for name, field in FIELDS.items():
        title = field.metadata["group"]
        group = groups.setdefault(title, None) or parser.add_argument_group(title)
        groups[title] = group
        names = [f"--{name}"] + ([f"--{ALIASES[name]}"] if name in ALIASES else [])
        listed = f" ({', '.join(choices(name))})" if choices(name) else ""
        value = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        default = "" if value in (None, "") else f" [{value}]"
        bare = field.metadata["bare"]
        flag = {"nargs": "?", "const": bare} if bare else {}
        group.add_argument(
            *names,
            dest=name,
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=f"{field.metadata['help']}{listed}{default}",
            **flag,
        )
        if name == "nprocs":
            group.add_argument(
                "--num_gpus",
                type=int,
                default=argparse.SUPPRESS,
                metavar="N",
                help="nprocs, as ModelArts passes it; 0: one process on the CPU",
            )


def train_config(args: argparse.Namespace) -> TrainConfig:
    """The configuration that a command line asks for.

    Later ones win: the recipe, the file, -o, the options. Without a recipe or a file, on a
    machine where only the embedded digits are found, the recipe is `digits`.
    """
    given = {}
    for item in args.set:
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"-o {item}: expected FIELD=VALUE")
        given[name.replace("-", "_")] = value
    given.update(_fields_from_options(args))
    for name in given:
        if name not in FIELDS:
            raise ConfigError(unknown_name("-o", name, FIELDS))

    recipe = args.recipe or (None if args.config else "default")
    if not args.recipe and not args.config:
        TrainConfig(**given)  # what is wrong with them is said before a look for the data
        if find_source(given.get("data", "auto")) is DIGITS:
            recipe = "digits"
            given.pop("data", None)  # the recipe says so: no second look, which may find others
    values = read_recipe(recipe) if recipe else {}
    if args.config:
        values.update(read_yaml(args.config))
    values.update(given)
    if not values.get("output"):
        values["output"] = str(Path("work", "output", recipe or Path(args.config).stem))
    return TrainConfig.from_mapping(values, origin=args.config or "config")


def _fields_from_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields that are given as options, with what `--num_gpus` means for them."""
    options = {name: value for name, value in vars(args).items() if name in FIELDS}
    if "num_gpus" not in args:
        return options
    count = args.num_gpus
    if count < 0:
        raise ConfigError(f"num_gpus is {count}; expected a number of GPUs, or 0 for the CPU")
    # ModelArts passes 0 on machines without a GPU; nprocs 0 would start as many as there are cores.
    implied = {"nprocs": count} if count else {"nprocs": 1, "device": "cpu", "gpus": None}
    for name, value in implied.items():
        if options.get(name, "auto") not in ("auto", str(value)):
            meaning = f"nprocs {count}" if count else "one process on the CPU"
            raise ConfigError(
                f"num_gpus is {count}, which means {meaning}, but {name} is {options[name]}; "
                f"expected --num_gpus or --{name}, not both"
            )
    return {**options, **implied}


def write_table(path: Path, mark: str, table: str) -> None:
    """Put a table into a page, between the lines `<!-- MARK -->` and `<!-- end -->`.

    Where text follows the first mark on its own line, as in a table's cell, it stays in that line.
    """
    marks = re.compile(rf"(<!-- {mark} -->(\n?)).*?(<!-- end -->)", re.DOTALL)
    text = path.read_text("utf-8")
    path.write_text(
        marks.sub(lambda found: f"{found[1]}{table}{found[2]}{found[3]}", text), "utf-8"
    )


def supervised(config: TrainConfig, argv: Sequence[str]) -> Optional[int]:
    """Have this command run, and restarted, by another process; gives its exit code.

    None where no restart is asked for, or this is that process. Once a start has moved an old run
    aside, the next are not told to start over again.
    """
    if not config.max_restarts or heartbeat.is_supervised():
        return None
    if int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise ConfigError(
            f"max_restarts is {config.max_restarts}, but Paddle's launch has started this process "
            "as one of several, which cannot be restarted alone; expected plain python with "
            "--nprocs and --max_restarts, or launch's own --elastic_level and --max_restart"
        )
    run = RunDirectory(config.output)
    old = _identity(run.config)

    def command(restart: bool) -> list[str]:
        again = list(argv)
        if restart and (old is None or _identity(run.config) != old):
            again = [arg for arg in argv if arg != "--fresh"]
            again += ["--resume", "auto"] if config.resume == "off" else []
        return [sys.executable, sys.argv[0], *again]

    def step() -> int:
        return max((checkpoint.step for checkpoint in run.checkpoints.all()), default=0)

    # One that starts processes finds out itself which of them hangs, and says so: a little sooner.
    patience = config.hang_timeout + (0 if config.nprocs == 1 else heartbeat.GRACE_SECONDS)
    return supervise(command, step, config.max_restarts, patience)


def _identity(path: Path) -> Optional[tuple[int, int]]:
    """Tells a file from another that comes to its place."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


def run_command(
    main: Callable[[Sequence[str]], Optional[int]], log_to: Optional[TextIO] = None
) -> NoReturn:
    """Run a command's `main(argv)` and exit: 0, or what an error stands for, told in one line.

    log_to: where log lines go, stdout by default; stderr for commands whose output is data.
    """
    heartbeat.start()
    log_to_console(log_to)
    try:
        with signals.handlers_installed(ignore_afterwards=True), signals.interruptible():
            code = main(sys.argv[1:]) or 0
    except PaddleMnistError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except BrokenPipeError:
        print("error: the console: cannot write (Broken pipe)", file=sys.stderr)
        code = OutputError.exit_code
    logging.shutdown()
    try:
        sys.stdout.flush()
    except OSError:  # said above; Python would say it again, and end with 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)

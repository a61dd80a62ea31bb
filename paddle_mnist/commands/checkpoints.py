"""List, verify or prune the checkpoints of a run. PaddlePaddle is not needed."""

import argparse
import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Optional

from paddle_mnist.checkpoint.manifest import UnreadableError
from paddle_mnist.checkpoint.names import exists, find_run
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.checkpoint.saving import best_first
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.commands import Parser, command
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.mnist.config import FLAT_OPTIONS, TrainConfig
from paddle_mnist.system.environment import printable
from paddle_mnist.train_state import TrainState

RETENTION = {name: FLAT_OPTIONS[name] for name in FLAT_OPTIONS if name.startswith("keep_")}


@command(prints_data=True)
def main(argv: Sequence[str]) -> None:
    """List, verify or prune checkpoints; return the exit code."""
    args = _parser().parse_args(argv)
    args.act(args)


def _parser() -> Parser:
    parser = Parser("paddle-mnist checkpoints", __doc__, "list work/output/default")
    parser.usage = "%(prog)s list|verify|prune [RUN] [options]"
    actions = parser.add_subparsers(metavar="ACTION", required=True, title="actions")

    def add(name: str, act: Callable[[argparse.Namespace], None], help: str) -> Parser:
        action = actions.add_parser(
            name,
            prog=f"{parser.prog} {name}",
            help=help,
            example="work/output/default",
            description=f"{help[0].upper()}{help[1:]}.",
        )
        action.usage = "%(prog)s [RUN] [options]"
        action.add_argument(
            "run",
            metavar="RUN",
            nargs="?",
            help="a run, one of its checkpoints, any folder with checkpoints "
            "[newest in work/output]",
        )
        action.set_defaults(act=act)
        return action

    listing = add("list", _list, "list the checkpoints, and files that belong to none")
    listing.add_argument("--json", action="store_true", help="print a JSON object")
    add("verify", _verify, "read every byte of the checkpoints")
    prune = add("prune", _prune, "show which checkpoints are not kept, or delete them")
    prune.add_argument(
        "--yes", action="store_true", help="delete them instead of only listing them"
    )
    for name, flat_option in RETENTION.items():
        help = f"{flat_option.help} [as the run does]"
        prune.add_argument(f"--{name}", metavar=flat_option.metavar, help=help)
    return parser


def _find(name: Optional[str]) -> tuple[CheckpointStore, Optional[RunDirectory]]:
    """Return the checkpoints that a name refers to, and their run; None if they are not in a run.

    name: of a run, a checkpoint, or a folder with checkpoints. Raises CheckpointError if there are
    no checkpoints.
    """
    path = find_run(name).path
    is_of_no_run = not path.is_dir() and exists(str(path))
    run = RunDirectory(path.parent if is_of_no_run else path)
    store, of_run = run.checkpoints, True
    if not store.folder.is_dir():
        store, run = CheckpointStore(run.path), RunDirectory(run.path.absolute().parent)
        if store.folder.absolute() != run.checkpoints.folder or not run.config.exists():
            of_run = False
    if not any((store.all(), store.find_damaged(), store.orphaned_files(), store.quarantined())):
        raise CheckpointError(
            f"{path}: no checkpoint there; expected a run, its checkpoints or one of them"
        )
    return store, run if of_run else None


def _verify(args: argparse.Namespace) -> None:
    """Print the state of each checkpoint. Raises CheckpointError unless all are intact."""
    store, _ = _find(args.run)
    damage = store.find_damaged()
    whole = [checkpoint for checkpoint in store.all() if checkpoint.path not in damage]
    lines = [f"{checkpoint.path}: OK" for checkpoint in whole]
    lines += map(str, damage.values())
    lines += [f"{path}: no manifest names it" for path in store.orphaned_files()]
    print(printable("\n".join(lines)))
    if damage or not whole:
        unread = sum(isinstance(error, UnreadableError) for error in damage.values())
        raise CheckpointError(
            f"{store.folder}: {len(damage) - unread} checkpoints are damaged, "
            f"{f'{unread} cannot be read, ' if unread else ''}{len(whole)} are intact; "
            + (
                "training does not start until all can be read"
                if unread
                else "training quarantines the damaged ones and resumes from the newest intact one"
            )
        )


def _prune(args: argparse.Namespace) -> None:
    """Print which checkpoints are not kept, and with `--yes` delete them."""
    options = {name: getattr(args, name) for name in RETENTION if getattr(args, name) is not None}
    TrainConfig(**options)  # errors in the options come before those on the disk
    if args.run and exists(args.run) and not os.path.isdir(args.run):
        raise ConfigError(f"{args.run}: expected a run; --keep options choose its checkpoints")
    store, run = _find(args.run)
    recorded = run.read_config() if run else {}
    recorded = {name: recorded[name] for name in RETENTION if name in recorded}
    saving = TrainConfig(**{**recorded, **options}).saving
    with run.opened() if run and args.yes else contextlib.nullcontext():
        sizes = {checkpoint.name: checkpoint.size for checkpoint in store.all()}
        dropped = store.prune(saving) if args.yes else store.checkpoints_to_prune(saving)
        names = [checkpoint.name for checkpoint in dropped]
        for name in names:
            print(
                f"{'deleted' if args.yes else 'would delete'} {name}, {sizes.get(name, 0):,} bytes"
            )
        freed = sum(sizes.get(name, 0) for name in names)
        end = "" if args.yes else "; nothing is deleted without --yes"
        print(f"{len(names)} of {len(sizes)} checkpoints, {freed:,} bytes{end}")


def _list(args: argparse.Namespace) -> None:
    """Print the checkpoints, as a table or as JSON."""
    store, _ = _find(args.run)
    contents = _contents(store)
    print(json.dumps(contents, indent=1) if args.json else printable(_as_text(contents)))


def _contents(store: CheckpointStore) -> dict[str, Any]:
    """Return the verified checkpoints by step, and the files that belong to none."""
    damage, checkpoints = store.find_damaged(), store.all()
    whole = [checkpoint for checkpoint in checkpoints if checkpoint.path not in damage]
    best = best_first(whole)[:1]
    rows = []
    for checkpoint in checkpoints:
        state = checkpoint.state
        saved_at = datetime.fromtimestamp(checkpoint.manifest["saved_at"]).astimezone()
        kind = "epoch end" if checkpoint.ends_epoch else "inside"
        rows.append(
            {
                "name": checkpoint.name,
                "step": checkpoint.step,
                "epoch": state.epoch - checkpoint.ends_epoch,
                "bytes": checkpoint.size,
                "saved_at": saved_at.isoformat(timespec="seconds"),
                "monitor": state.monitor,
                "value": _value(state, state.monitor),
                "valid_acc": _value(state, "valid/acc"),
                "what": "breakpoint" if checkpoint.is_breakpoint else kind,
                "newest": checkpoint in whole[-1:],
                "best": checkpoint in best,
                "damaged": checkpoint.path in damage,
            }
        )
    return {
        "folder": str(store.folder),
        "checkpoints": rows,
        "damaged": [str(reason) for reason in damage.values()],
        "leftovers": [str(path) for path in store.orphaned_files()],
        "quarantine": [str(path) for path in store.quarantined()],
    }


def _value(state: TrainState, tag: str) -> Optional[float]:
    """Return a metric of the evaluation of a checkpoint; None if it has none."""
    value = state.metrics.get(tag, math.nan)
    return value if math.isfinite(value) else None


def _as_text(contents: Mapping[str, Any]) -> str:
    checkpoints = contents["checkpoints"]
    monitor = checkpoints[-1]["monitor"] if checkpoints else ""
    title = monitor.replace("/", " ")
    values = [_value_as_text(row, monitor) for row in checkpoints]
    width = max(9, *map(len, [title, *values]))
    columns = ("name", "step", "epoch", "bytes", "saved_at", "value", "what")
    form = f"{{:32}} {{:>7}} {{:>6}} {{:>10}}  {{:25}}  {{:>{width}}}  {{}}"
    lines = [form.format("name", "step", "epoch", "bytes", "saved at", title, "what")]
    for row, value in zip(checkpoints, values):
        marks = [f" [{mark}]" for mark in ("newest", "best", "damaged") if row[mark]]
        shown = {**row, "value": value, "what": row["what"] + "".join(marks)}
        lines.append(form.format(*(shown[name] for name in columns)))
    for kind in ("damaged", "leftovers", "quarantine"):
        lines += [f"{kind}: {item}" for item in contents[kind]]
    return "\n".join(lines)


def _value_as_text(row: Mapping[str, Any], monitor: str) -> str:
    """Return the monitored value of a checkpoint, with its tag if it is not the column's."""
    value = row["value"]
    if value is None:
        return ""
    text = f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.4g}"
    return text if row["monitor"] == monitor else f"{row['monitor']} {text}"

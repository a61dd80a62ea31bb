"""List, verify or prune the checkpoints of a run. PaddlePaddle is not needed."""

import argparse
import contextlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.checkpoint.names import exists, find_run
from paddle_mnist.checkpoint.remote_checkpoints import CHECKPOINTS
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.checkpoint.saving import Saving, best_first
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._weights import OPTIONS, distinct
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.mnist.config import FLAT_OPTIONS, TrainConfig
from paddle_mnist.progress import TrainState
from paddle_mnist.system.files import temporary_folder
from paddle_mnist.system.remote import RemoteFolder, check_url, failure

CONFIG = "config.yaml"
ACTIONS = ("list", "verify", "prune")
RETENTION = {name: one for name, one in FLAT_OPTIONS.items() if name.startswith("keep_")}


@command(prints_data=True)
def main(argv: Sequence[str]) -> None:
    """List, verify or prune checkpoints; return the exit code."""
    args = _parser().parse_args(argv)
    options = {name: getattr(args, name) for name in RETENTION if getattr(args, name) is not None}
    TrainConfig(**options)  # errors in the options come before those on the disk

    name, action = _run_and_action(args)
    if name and "://" in name:
        if action == "prune":
            raise ConfigError(f"{name}: a mirror, which its run prunes; expected a run to prune")
        with _downloaded(name) as folder:
            printed = io.StringIO()
            try:
                with contextlib.redirect_stdout(printed):
                    _act(str(folder), action, args, options)
            except CheckpointError as error:
                raise CheckpointError(str(error).replace(str(folder), name)) from None
            finally:
                print(printed.getvalue().replace(str(folder), name), end="")
    else:
        _act(name, action, args, options)


def _act(
    name: Optional[str], action: str, args: argparse.Namespace, options: Mapping[str, Any]
) -> None:
    """List, verify or prune."""
    store, run = _find(name)
    recorded = run.read_config() if run else {}
    recorded = {name: recorded[name] for name in RETENTION if name in recorded}
    config = TrainConfig(**{**recorded, **options})
    if action == "verify":
        _verify(store)
    elif action == "prune":
        with run.opened() if run and args.yes else contextlib.nullcontext():
            _prune(store, config.saving, delete=args.yes)
    else:
        contents = _list(store)
        print(json.dumps(contents, indent=1) if args.json else _as_text(contents))


def _parser() -> Parser:
    parser = Parser(prog="paddle-mnist checkpoints", description=__doc__)
    parser.usage = "%(prog)s [RUN] [list|verify|prune] [options]"
    parser.add_argument(
        "words",
        metavar="RUN, list, verify, prune",
        nargs="*",
        help="a run, one of its checkpoints, any folder with checkpoints, or the URL of a mirror "
        "[newest run in work/output]; and what to do [list]",
    )
    parser.add_argument(
        *OPTIONS, dest="runs", metavar="RUN", action="append", default=[], help="the same as RUN"
    )
    parser.add_argument("--json", action="store_true", help="list: print a JSON object")
    parser.add_argument(
        "--yes",
        action="store_true",
        help="prune: delete the checkpoints instead of only listing them",
    )
    for name, one in RETENTION.items():
        text = f"prune: {one.help} [as the run does]"
        parser.add_argument(f"--{name}", metavar="VALUE", help=text)
    return parser


def _run_and_action(args: argparse.Namespace) -> tuple[Optional[str], str]:
    """Return what names the run, None for the newest, and what to do. Raises ConfigError."""
    actions = [word for word in args.words if word in ACTIONS]
    runs = distinct([*(word for word in args.words if word not in ACTIONS), *args.runs])
    if len(actions) > 1 or len(runs) > 1:
        raise ConfigError(
            f"{' and '.join(runs if len(runs) > 1 else actions)} are given; expected one run, and "
            f"one of {', '.join(ACTIONS)}; --help lists the options"
        )
    name, action = next(iter(runs), None), next(iter(actions), ACTIONS[0])
    if action == "prune" and name and exists(name) and not os.path.isdir(name):
        raise ConfigError(f"{name}: prune takes a run, and its --keep options choose checkpoints")
    return name, action


def _find(name: Optional[str]) -> tuple[CheckpointStore, Optional[RunDirectory]]:
    """Return the checkpoints that a name leads to, and their run, None if they are of none.

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


def _verify(store: CheckpointStore) -> None:
    """Print the state of each checkpoint. Raises CheckpointError unless all are intact."""
    damage = store.find_damaged()
    whole = [checkpoint for checkpoint in store.all() if checkpoint.path not in damage]
    lines = [f"{checkpoint.path}: OK" for checkpoint in whole]
    lines += map(str, damage.values())
    lines += [f"{path}: no manifest names it" for path in store.orphaned_files()]
    print("\n".join(lines))
    if damage or not whole:
        raise CheckpointError(
            f"{store.folder}: {len(damage)} checkpoints are damaged, {len(whole)} are whole; a "
            "training sets the damaged aside, and goes on from the newest that is whole"
        )


@contextlib.contextmanager
def _downloaded(url: str) -> Iterator[Path]:
    """Download the copy of a run to a folder. Raises CheckpointError if it cannot be read."""
    remote = RemoteFolder(url)
    with temporary_folder() as folder:
        try:
            check_url(url)
            (folder / CHECKPOINTS).mkdir()
            for part in ("", CHECKPOINTS):
                for name, size in remote.sizes(part).items():
                    if part or name == CONFIG:
                        data = remote.read(f"{part}/{name}".lstrip("/"), size)
                        folder.joinpath(part, name).write_bytes(data)
        except Exception as error:  # whatever the driver raises
            raise CheckpointError(
                f"{url.rpartition('@')[2]}: cannot be read ({failure(error)}); expected the mirror "
                "of a run"
            ) from error
        yield folder


def _prune(store: CheckpointStore, saving: Saving, delete: bool) -> None:
    """Print which checkpoints are not kept. delete: delete them, too."""
    sizes = {checkpoint.name: checkpoint.size for checkpoint in store.all()}
    names = [checkpoint.name for checkpoint in store.checkpoints_to_prune(saving)]
    names = store.prune(saving) if delete else names
    for name in names:
        print(f"{'deleted' if delete else 'would delete'} {name}, {sizes.get(name, 0):,} bytes")
    freed = sum(sizes.get(name, 0) for name in names)
    end = "" if delete else "; nothing is deleted without --yes"
    print(f"{len(names)} of {len(sizes)} checkpoints, {freed:,} bytes{end}")


def _list(store: CheckpointStore) -> dict[str, Any]:
    """Return the verified checkpoints by step, and the files that belong to none."""
    damage, checkpoints = store.find_damaged(), store.all()
    whole = [checkpoint for checkpoint in checkpoints if checkpoint.path not in damage]
    best = best_first(whole)[:1]
    rows = []
    for checkpoint in checkpoints:
        state = checkpoint.state
        saved_at = datetime.fromtimestamp(checkpoint.saved_at).astimezone()
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

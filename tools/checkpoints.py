#!/usr/bin/env python
"""List, verify or prune the checkpoints of a run. Needs no PaddlePaddle."""

import contextlib
import dataclasses
import json
import sys
from datetime import datetime

from paddle_mnist.checkpoint.policy import RetentionPolicy
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.commands.cli import Parser, run_command
from paddle_mnist.errors import CheckpointError
from paddle_mnist.mnist.config import FIELDS, TrainConfig
from paddle_mnist.training.run_directory import RunDirectory

KEEP = [name for name in FIELDS if name.startswith("keep_")]
ROW = "{:32} {:>7} {:>6} {:>10}  {:25}  {:>9}  {}"


def main(argv) -> None:
    parser = Parser(prog="tools/checkpoints.py", description=__doc__)
    parser.usage = "%(prog)s RUN [list|verify|prune] [options]"
    parser.add_argument("run", metavar="RUN", help="a run, or any folder with checkpoints")
    actions = ("list", "verify", "prune")
    parser.add_argument("action", nargs="?", default="list", choices=actions, help="[list]")
    parser.add_argument("--json", action="store_true", help="list: print one JSON object")
    parser.add_argument("--yes", action="store_true", help="prune: delete, not only say what")
    for name in KEEP:
        text = f"prune: {FIELDS[name].metadata['help']} [as the run does]"
        parser.add_argument(f"--{name}", metavar="VALUE", help=text)
    args = parser.parse_args(argv)
    given = {k: v for k, v in vars(args).items() if k in KEEP and v is not None}
    TrainConfig(**given)  # what is wrong with them is said before a look at the disk

    store, run = find(args.run)
    config = run.read_config() if run and run.config.exists() else TrainConfig()
    config = dataclasses.replace(config, **given)
    if args.action == "verify":
        verify(store)
    elif args.action == "prune":
        keep = RetentionPolicy(
            **{name.removeprefix("keep_"): getattr(config, name) for name in KEEP}
        )
        with run.opened() if run and args.yes else contextlib.nullcontext():
            prune(store, keep, args.yes)
    else:
        found = listed(store)
        print(json.dumps(found, indent=1) if args.json else as_text(found))


def find(name):
    """The store that RUN names, and the run it is of, or None. Raises CheckpointError."""
    run = RunDirectory(name)
    store = run.checkpoints
    if not store.folder.is_dir():
        store, run = CheckpointStore(run.path), RunDirectory(run.path.absolute().parent)
        if store.folder.absolute() != run.checkpoints.folder or not run.config.exists():
            run = None
    if not any((store.all(), store.find_damaged(), store.orphaned_files(), store.quarantined())):
        raise CheckpointError(f"{name}: no checkpoint there; expected a run, or its checkpoints")
    return store, run


def verify(store) -> None:
    """Says of each what it is. Raises CheckpointError if one is damaged, or none is there."""
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


def prune(store, keep, delete) -> None:
    sizes = {checkpoint.name: checkpoint.size for checkpoint in store.all()}
    names = store.prune(keep) if delete else [one.name for one in store.checkpoints_to_prune(keep)]
    for name in names:
        print(f"{'deleted' if delete else 'would delete'} {name}, {sizes.get(name, 0):,} bytes")
    freed = sum(sizes.get(name, 0) for name in names)
    end = "" if delete else "; nothing is deleted without --yes"
    print(f"{len(names)} of {len(sizes)} checkpoints, {freed:,} bytes{end}")


def listed(store) -> dict:
    """What is there, verified: the checkpoints by step, and what is none."""
    damage, found = store.find_damaged(), store.all()
    whole = [one for one in found if one.path not in damage]
    judged = [one for one in whole if one.info.score is not None]
    best = max(judged, key=lambda one: one.info.score, default=None)
    rows = []
    for one in found:
        ended = one.info.ends_epoch
        time = datetime.fromtimestamp(one.info.time).astimezone()
        kind = "epoch end" if ended else "inside"
        rows.append(
            {
                "name": one.name,
                "step": one.step,
                "epoch": one.state.epoch - ended,
                "bytes": one.size,
                "saved_at": time.isoformat(timespec="seconds"),
                "valid_acc": one.info.score,
                "what": "breakpoint" if one.info.breakpoint else kind,
                "newest": one in whole[-1:],
                "best": one is best,
                "damaged": one.path in damage,
            }
        )
    return {
        "folder": str(store.folder),
        "checkpoints": rows,
        "damaged": [str(reason) for reason in damage.values()],
        "leftovers": [str(path) for path in store.orphaned_files()],
        "quarantine": [str(path) for path in store.quarantined()],
    }


def as_text(found) -> str:
    lines = [ROW.format("name", "step", "epoch", "bytes", "saved at", "valid acc", "what")]
    for row in found["checkpoints"]:
        name, step, epoch, count, time, score, what = list(row.values())[:7]
        marks = [f" [{mark}]" for mark in ("newest", "best", "damaged") if row[mark]]
        score = "" if score is None else f"{score:.4f}"
        lines.append(ROW.format(name, step, epoch, count, time, score, what + "".join(marks)))
    for kind in ("damaged", "leftovers", "quarantine"):
        lines += [f"{kind}: {item}" for item in found[kind]]
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)

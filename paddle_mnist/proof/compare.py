"""Compare what two attempts at the same training have recorded and written."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.metrics.writers import read_jsonl
from paddle_mnist.proof.program import Event

# Of the entries of result.json: times and speeds, what counts interruptions, and file hashes.
_NOT_COMPARED = ("second", "witness", "interruption", "weights_file")


def differing_files(unbroken: Path, killed: Path) -> list[str]:
    """Return a line for each difference between the runs in two folders."""
    configs = [(root, path) for root in (unbroken, killed) for path in root.rglob("config.yaml")]
    runs = sorted({path.parent.relative_to(root) for root, path in configs})
    found = []
    for run in runs:
        one, other = _contents(unbroken / run, unbroken), _contents(killed / run, killed)
        found += [
            f"{Path('/', run, name)}: {one.get(name, 'nothing')} unbroken, "
            f"{other.get(name, 'nothing')} killed"
            for name in dict.fromkeys([*one, *other])
            if one.get(name) != other.get(name)
        ]
    return found


def _contents(path: Path, root: Path) -> dict[str, Any]:
    """Return what a run has written and must be the same, by name."""
    run = RunDirectory(path)
    contents: dict[str, Any] = {}
    for name, value in run.read_result().items():
        if not any(word in name for word in _NOT_COMPARED):
            contents[f"result.json {name}"] = json.dumps(value).replace(str(root), "")
    for name, entry in [*_files(run)]:
        contents[name] = f"SHA-256 {entry['sha256'][:8]}"
    for _, row in read_jsonl(run.metrics):
        if row:
            contents[f"metrics.jsonl, step {row['step']}, {row['tag']}"] = row["value"]
    return contents


def _files(run: RunDirectory) -> Iterator[tuple[str, Any]]:
    """Yield the final weights, and the newest checkpoint's files by suffix, with their hashes."""
    if entry := run.read_result().get("weights_file"):
        yield run.weights.name, entry
    for checkpoint in run.checkpoints.all()[-1:]:
        for name, listed in checkpoint.manifest["files"].items():
            yield f"the newest checkpoint's {Path(name).suffix}", listed


def first_difference(unbroken: Sequence[Event], killed: Sequence[Event]) -> Optional[str]:
    """Return which recorded step or metric differs first, and after which start."""
    known = {_key(event): event for event in unbroken}
    start: Event = {}
    for event in killed:
        start = event if event["event"] == "start" else start
        if event["event"] not in ("step", "metrics"):
            continue
        expected = known.get(_key(event))
        where = f"step {event['step']} of {event['run']}"
        since = f"; the newest start had resumed from {start.get('checkpoint') or 'nothing'}"
        if expected is None:
            return f"{where} is not in the unbroken run{since}"
        if event != expected:
            what = [*_differing(expected, event)]
            return f"{where} differs: {what[0]}{since}"
    return None


def _key(event: Event) -> tuple[Any, ...]:
    return event["event"], event["run"], event["step"], *event.get("values", ())


def _differing(one: Event, other: Event) -> Iterator[str]:
    for name in one:
        first, second = one[name], other[name]
        if first != second and isinstance(first, Mapping):
            yield from _differing(first, second)
        elif first != second and name == "loss":
            yield f"loss {float.fromhex(first)!r} unbroken, {float.fromhex(second)!r} killed"
        elif first != second:
            name = "the checksum of buffers and small weights" if name == "tensors" else name
            yield f"{name} {first} unbroken, {second} killed"


def differing_objects(unbroken: Sequence[Event], killed: Sequence[Event]) -> list[str]:
    """Return the objects that differ where a start resumes from what they were there."""
    known = {_place(event): event["values"] for event in unbroken if event["event"] == "objects"}
    for event in killed:
        values = known.get(_place(event)) if event["event"] == "objects" else None
        if values is not None and values != event["values"]:
            now = event["values"]
            return [
                f"{name}: {values.get(name, 'nothing')} unbroken, {now.get(name, 'nothing')} resumed"
                for name in dict.fromkeys([*values, *now])
                if values.get(name) != now.get(name)
            ]
    return []


def _place(event: Event) -> tuple[Any, ...]:
    return event["run"], event["step"], event["epoch"]


def new_warnings(unbroken: Path, killed: Path) -> list[str]:
    """Return the warnings that only the killed runs have logged, such as the witness's."""
    one, other = (
        [
            line.partition(" WARNING ")[2]
            for path in sorted(root.rglob("train.log"))
            for line in path.read_text(errors="replace").replace(str(root), "").splitlines()
            if " WARNING " in line
        ]
        for root in (unbroken, killed)
    )
    return [*dict.fromkeys(line for line in other if line not in one)]

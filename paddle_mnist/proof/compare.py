"""Compare the records and the files of two attempts at the same training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.metrics.writers import read_jsonl
from paddle_mnist.proof.program import Event
from paddle_mnist.training.witness import first_differing_record

# Words in the names of entries of result.json that are not compared: times, speeds, counts of
# interruptions, and a hash that is compared under the name of its file.
_NOT_COMPARED = ("second", "witness", "interruption", "weights_file")


def differing_files(unbroken: Path, others: Path, name: str) -> list[str]:
    """Return what differs in the files of the runs in two folders, a line each.

    name: of the others, in the lines.
    """
    configs = [(root, path) for root in (unbroken, others) for path in root.rglob("config.yaml")]
    found = []
    for run in sorted({path.parent.relative_to(root) for root, path in configs}):
        one, other = _contents(unbroken / run, unbroken), _contents(others / run, others)
        found += [f"/{run}, {line}" for line in _differences(one, other, name)]
    return found


def _differences(one: dict[str, Any], other: dict[str, Any], name: str) -> list[str]:
    return [
        f"{key}: {one.get(key, 'nothing')} unbroken, {other.get(key, 'nothing')} {name}"
        for key in dict.fromkeys([*one, *other])
        if one.get(key) != other.get(key)
    ]


def _contents(path: Path, root: Path) -> dict[str, Any]:
    """Return what a run has written that must be the same."""
    run, contents = RunDirectory(path), dict[str, Any]()
    for _, row in read_jsonl(run.metrics):
        if row:
            contents[f"metrics.jsonl, step {row['step']} {row['tag']}"] = row["value"]
    result = run.read_result()
    for name, value in result.items():
        if not any(word in name for word in _NOT_COMPARED):
            contents[f"result.json, {name}"] = repr(value).replace(str(root), "")
    files: dict[str, Any] = {run.weights.name: result.get("weights_file") or {}}
    for checkpoint in run.checkpoints.all()[-1:]:
        for name, entry in checkpoint.manifest["files"].items():
            files[f"the newest checkpoint's {Path(name).suffix}"] = entry
    for name, entry in files.items():
        contents[name] = f"SHA-256 {entry.get('sha256', 'unknown'):.8}"
    return contents


def first_difference(unbroken: Path, others: Path, events: Sequence[Event]) -> Optional[str]:
    """Return the step that differs first, and the checkpoint before it; None if all agree.

    unbroken, others: folders of runs. events: what the others recorded.
    """
    for run in dict.fromkeys(event["run"] for event in events):
        one, other = (RunDirectory(root / run.lstrip("/")) for root in (unbroken, others))
        tags = one.read_result().get("metrics", ())
        try:
            found = first_differing_record(other.witness, one.witness, tags)
        except (OSError, ValueError):  # one has none, or a kill has torn its first line
            continue
        if found:
            difference, is_first = found
            step, name = difference["step"], difference["name"]
            before, now = difference["before"], difference["now"]
            origin = _origin(events, run, step, is_first)
            return (
                f"step {step} of {run}, which had {origin}: {name} {before!r} unbroken, {now!r} now"
            )
    return None


def _origin(events: Sequence[Event], run: str, step: int, is_first: bool) -> str:
    """Return from where the start began that wrote a record of a step.

    is_first: whether it is the first start that computed the step. Otherwise it may be any of the
    later ones, so all of them are named.
    """
    newest, origins = "started from the beginning", list[str]()
    for event in (event for event in events if event["run"] == run):
        if event["event"] == "start":
            checkpoint = event["checkpoint"]
            newest = f"resumed from {checkpoint}" if checkpoint else "started from the beginning"
        elif (event["event"], event["step"]) == ("step", step):
            origins.append(newest)
    origins = origins or [newest]  # if it was killed before it reported the step
    return " or ".join(dict.fromkeys(origins[:1] if is_first else origins[1:] or origins))


def differing_objects(unbroken: Sequence[Event], killed: Sequence[Event]) -> list[str]:
    """Return the objects whose values after a resume differ from the unbroken run's."""
    known = _objects(unbroken)
    for place, values in _objects(killed).items():
        if found := _differences(known.get(place, values), values, "resumed"):
            return found
    return []


def _objects(events: Sequence[Event]) -> dict[Any, dict[str, Any]]:
    """Return the values of all objects, by where they were described."""
    return {
        (event["run"], event["step"], event["epoch"]): event["values"]
        for event in events
        if event["event"] == "objects"
    }

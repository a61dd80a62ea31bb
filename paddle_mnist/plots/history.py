"""Read what a training has logged."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

History = Sequence[Mapping[str, Any]]  # the lines of a `metrics.jsonl`


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a `metrics.jsonl`, without a torn last one, where a run was killed."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def series(history: History, tag: str) -> tuple[list[int], list[float]]:
    """Return the steps and values of a tag, in the order of the steps."""
    rows = sorted((row["step"], row["value"]) for row in history if row["tag"] == tag)
    return [step for step, _ in rows], [value for _, value in rows]

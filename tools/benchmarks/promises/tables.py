"""The table of promises."""

from collections.abc import Mapping, Sequence
from typing import Any

from markdown_tables import table as markdown_table

from benchmarks.promises.measuring import STEPS

ROUNDING = 1e-5  # of a metric in float32

Outcome = Mapping[str, Any]


def table(report: Mapping[str, Any]) -> str:
    frameworks = report["frameworks"]
    rows = [
        (promise, *("not installed" if one is None else cell(one) for one in frameworks.values()))
        for promise, cell in CELLS.items()
    ]
    return markdown_table(
        dict.fromkeys(["", *frameworks], ""),
        rows,
        f"A net of two layers with dropout on 1,500 digits of scikit-learn, shuffled, {STEPS} "
        "steps in 6 epochs; saved every 10 steps, with `paddle.Model` every epoch; stopped after "
        f"about 75, and killed at {report['kills']} places. Lightning reads through torchdata's "
        "`StatefulDataLoader`. Bits are those of the final weights.",
    )


def _resumed(outcome: Outcome) -> str:
    if outcome["code"]:
        return "the second call fails"
    bits = "same bits" if outcome["same bits"] else "other bits"
    return f"on from step {outcome['step']}, {bits}"


def _stopped(outcome: Outcome) -> str:
    code = outcome["exit code"]
    return f"exit code {128 - code if code < 0 else code}; {_resumed(outcome)}"


def _kills(outcomes: Sequence[Outcome]) -> str:
    return "<br>".join(dict.fromkeys(map(_resumed, outcomes)))


def _damaged(outcome: Outcome) -> str:
    if outcome["code"]:
        return "the second call fails"
    return f"{'says so' if outcome['is said'] else 'says nothing'}, {_resumed(outcome)}"


def _changed(outcome: Outcome) -> str:
    return "refused" if outcome["code"] else "trains on with it"


def _finished(outcome: Outcome) -> str:
    if outcome["code"]:
        return "the second call fails"
    return "trains nothing" if outcome["step"] == STEPS else _resumed(outcome)


def _metrics(errors: Mapping[str, float]) -> str:
    wrong = [f"{name} by {error:.2g}" for name, error in errors.items() if error > ROUNDING]
    return f"off: {', '.join(wrong)}" if wrong else "exact"


CELLS = {
    "lines of code": lambda one: str(one["lines"]),
    "trained twice": lambda one: "same bits" if one["repeats"] else "other bits",
    "SIGKILL inside an epoch, called again": lambda one: _kills(one["killed"]),
    "the same without dropout": lambda one: _kills(one["killed without dropout"]),
    "SIGTERM, called again": lambda one: _stopped(one["terminated"]),
    "disk full in a save, called again": lambda one: _stopped(one["disk full"]),
    "a byte of the newest checkpoint changed": lambda one: _damaged(one["damaged"]),
    "called again with another `batch_size`": lambda one: _changed(one["another batch size"]),
    "called again when finished": lambda one: _finished(one["finished"]),
    "metrics, over a short last batch": lambda one: _metrics(one["metric errors"]),
    "metrics of two processes": lambda one: _metrics(one["two processes"]["metric errors"]),
    "weights of two processes": lambda one: (
        "same bits" if one["two processes"]["same bits"] else "other bits"
    ),
    "code in a checkpoint's file": lambda one: (
        "is run" if one["with code"]["is run"] else "is not run"
    ),
}

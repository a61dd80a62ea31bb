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
        (
            promise,
            *(
                "not installed" if outcome is None else cell(outcome)
                for outcome in frameworks.values()
            ),
        )
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
    "lines of code": lambda outcome: str(outcome["lines"]),
    "trained twice": lambda outcome: "same bits" if outcome["repeats"] else "other bits",
    "SIGKILL inside an epoch, called again": lambda outcome: _kills(outcome["killed"]),
    "the same without dropout": lambda outcome: _kills(outcome["killed without dropout"]),
    "SIGTERM, called again": lambda outcome: _stopped(outcome["terminated"]),
    "disk full in a save, called again": lambda outcome: _stopped(outcome["disk full"]),
    "a byte of the newest checkpoint changed": lambda outcome: _damaged(outcome["damaged"]),
    "called again with another `batch_size`": lambda outcome: _changed(
        outcome["another batch size"]
    ),
    "called again when finished": lambda outcome: _finished(outcome["finished"]),
    "metrics, over a short last batch": lambda outcome: _metrics(outcome["metric errors"]),
    "metrics of two processes": lambda outcome: _metrics(outcome["two processes"]["metric errors"]),
    "weights of two processes": lambda outcome: (
        "same bits" if outcome["two processes"]["same bits"] else "other bits"
    ),
    "code in a checkpoint's file": lambda outcome: (
        "is run" if outcome["with code"]["is run"] else "is not run"
    ),
}

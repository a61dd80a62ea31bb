"""What the tutorial's weights do to the net: the table, the page's figures and the picture."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from markdown_tables import table

from paddle_mnist.mnist.images import Images
from paddle_mnist.plots.figure import BLUE, GREEN, ORANGE, SKY, VERMILION
from reproduction import charts
from reproduction.claims import Report

LAYERS, CHANNELS = ("conv1", "conv2", "fc"), 20  # of conv2
SMOOTHED = 10  # steps, of the losses in the figure


def without_steps(report: Report) -> dict[str, Any]:
    """Return the report without what it holds of each step."""
    of_steps = ("losses", "gradients", "zeros")
    return {
        way: {name: value for name, value in one.items() if name not in of_steps}
        for way, one in report.items()
    }


def tabulate(report: Report) -> str:
    outputs = [f"{layer} output" for layer in LAYERS]
    columns = {
        "initialization": "",
        **dict.fromkeys(outputs, ".3g"),
        f"active channels of conv2 (of {CHANNELS})": "",
        "first loss": ".2f",
        "last loss": ".2f",
        "valid accuracy": "",
    }
    rows = (
        (
            way,
            *(one["signals"][name] for name in outputs),
            _range(one["awake"], "d"),
            one["losses"][0],
            sum(one["losses"][-10:]) / len(one["losses"][-10:]),
            _range(one["valid_acc"], ".1%"),
        )
        for way, one in report.items()
    )
    return table(columns, rows)


def _range(values: Sequence[float], specification: str) -> str:
    least, most = (f"{extreme(values):{specification}}" for extreme in (min, max))
    return least if least == most else f"{least} to {most}"


def _dies_at(one: Mapping[str, Any]) -> Optional[int]:
    """Return the first step with more than 99% of zeros after the second ReLU."""
    zeros = enumerate(one["zeros"]["relu2"], 1)
    return next((step for step, share in zeros if share > 0.99), None)


def find(report: Report) -> dict[str, Any]:
    """Return what the first way, the tutorial's, does to the net, and how the others train.

    times: how much larger its first gradients are than those of the last way, Paddle's default.
    whole: its nets after all of the tutorial's steps. cut: how many of them no gradient reaches
    any more; constant: whether these give every image the same answer, because conv2 gives 0;
    awake: how many channels of conv2 the others keep.
    """
    first, *_, default = report.values()
    signals, whole = first["signals"], first["whole"]
    gradients = [f"{layer} gradient" for layer in LAYERS]
    reached = [any(layers) for layers in whole["reached"]]
    lost = [draw for draw, is_reached in enumerate(reached) if not is_reached]
    return {
        "draws": len(first["awake"]),
        "steps": len(first["losses"]),
        "first_loss": first["losses"][0],
        "last_loss": first["losses"][-1],
        "chance": math.log(10),
        "dies_at": _dies_at(first),
        "outputs": [signals[f"{layer} output"] for layer in LAYERS],
        "times": [signals[name] / default["signals"][name] for name in gradients],
        "whole": whole,
        "cut": len(lost),
        "constant": all(whole["answers"][n] == 1 and not whole["awake"][n] for n in lost),
        "awake": [count for count, is_reached in zip(whole["awake"], reached) if is_reached],
        "at_chance": [way for way, one in report.items() if max(one["valid_acc"]) < 0.2],
        "trained": [way for way, one in report.items() if min(one["valid_acc"]) > 0.8],
    }


def figure(report: Report, data: Images) -> Any:
    """Draw the first draw's losses, zeros and signals, and the accuracy of every draw."""

    def lines(of: Callable[[Mapping[str, Any]], Sequence[float]]) -> dict[str, charts.Line]:
        drawn = {}
        for way, one in report.items():
            values = of(one)
            drawn[way] = charts.Line(range(1, len(values) + 1), values)
        return drawn

    signals = {
        way: charts.Line(LAYERS, [one["signals"][f"{layer} output"] for layer in LAYERS])
        for way, one in report.items()
    }
    accuracies = {way: one["valid_acc"] for way, one in report.items()}
    first = next(iter(report.values()))
    at, draws = _dies_at(first), len(first["awake"])
    finding = "How initializations train"
    if at:
        finding = f"U(-1, 1) kills the net within {at} steps; other initializations train"
    return charts.panels(
        finding,
        [
            charts.Curves(
                f"loss of the first draw, mean of {SMOOTHED} steps",
                "step",
                "nats",
                lines(lambda one: _smoothed(one["losses"])),
                "log",
            ),
            charts.Curves(
                "zeros after the second ReLU",
                "step",
                "share",
                lines(lambda one: one["zeros"]["relu2"]),
            ),
            charts.Curves(
                "outputs of the layers at step 1", "", "root mean square", signals, "log"
            ),
            charts.Seeds(
                f"accuracy of {draws} draws after {len(first['losses'])} steps",
                "valid accuracy",
                accuracies,
                "{:.0%}",
                with_names=False,
            ),
        ],
        (VERMILION, BLUE, GREEN, ORANGE, SKY, "black"),
    )


def _smoothed(losses: Sequence[float]) -> list[float]:
    """Return the mean of each loss and those before it, up to SMOOTHED."""
    return [
        statistics.fmean(losses[max(0, end - SMOOTHED) : end]) for end in range(1, len(losses) + 1)
    ]

"""What the tutorial's weights do to the net: the table, the verdict and the figure."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from paddle_mnist.mnist.arrays import Data
from reproduction.claims import Report, Verdict, conclude
from reproduction.texts import CONFIRMED, EMPTY, REFUTED, Text, fill, join, named, table

LAYERS, CHANNELS = ("conv1", "conv2", "fc"), 20  # of conv2
SMOOTHED = 10  # steps, of the losses in the figure


def without_steps(report: Report) -> dict[str, Any]:
    """Return the report without what it holds of each step."""
    of_steps = ("losses", "gradients", "zeros")
    return {
        way: {name: value for name, value in one.items() if name not in of_steps}
        for way, one in report.items()
    }


def tabulate(report: Report) -> Text:
    first = next(iter(report.values()))
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
    counts = {"draws": len(first["awake"]), "steps": len(first["losses"])}
    return table(columns, rows, fill("initialization", "note", **counts))


def _range(values: Sequence[float], specification: str) -> Text:
    least, most = (f"{chosen(values):{specification}}" for chosen in (min, max))
    if least == most:
        return named(least)
    return fill("common", "range", least=least, most=most)


def _what_is_left(one: Mapping[str, Any], steps: int) -> Text:
    """Describe the draws that no gradient reaches any more, and the others."""
    count = len(one["reached"])
    cut = [draw for draw, layers in enumerate(one["reached"]) if not any(layers)]
    awake = [one["awake"][draw] for draw in range(count) if draw not in cut]
    why = others = EMPTY
    if cut and all(one["answers"][draw] == 1 and not one["awake"][draw] for draw in cut):
        why = fill("initialization", "constant")
    if awake:
        active = _range(awake, "d")
        others = fill("initialization", "others", awake=active, channels=CHANNELS)
    counts = {"steps": steps, "cut": len(cut), "count": count}
    return fill("initialization", "left", **counts, why=why, others=others)


def _dies_at(one: Mapping[str, Any]) -> Optional[int]:
    """Return the first step with more than 99% of zeros after the second ReLU."""
    zeros = enumerate(one["zeros"]["relu2"], 1)
    return next((step for step, share in zeros if share > 0.99), None)


def judge(report: Report) -> Verdict:
    ways = list(report)
    first, last = report[ways[0]], report[ways[-1]]
    dead = [way for way in ways if max(report[way]["valid_acc"]) < 0.2]
    whole, steps = first["whole"], len(first["losses"])
    result = "at_chance" if ways[0] in dead else "above_chance"
    values = {
        "result": fill("initialization", result, draws=len(first["awake"])),
        "loss": first["losses"][0],
        "steps": whole["steps"],
        "least": min(whole["valid_acc"]),
        "most": max(whole["valid_acc"]),
        "short": steps,
        "dead": join(dead, "semicolon"),
    }
    fine = [way for way in ways if min(report[way]["valid_acc"]) > 0.8]
    details = [
        _signals(first, last),
        _first_steps(first),
        _what_is_left(whole, whole["steps"]),
        fill("initialization", "fine", fine=join(fine, "semicolon")),
    ]
    outcome = REFUTED if ways[0] in dead else CONFIRMED
    return conclude("initialization", outcome, details, **values)


def _signals(one: Mapping[str, Any], default: Mapping[str, Any]) -> Text:
    """Compare the signals of the first step with those of Paddle's default."""
    signals, others = one["signals"], default["signals"]
    outputs = (f"{signals[f'{layer} output']:.3g}" for layer in LAYERS)
    gradients = [f"{layer} gradient" for layer in LAYERS]
    times = (f"{signals[name] / others[name]:.0f}" for name in gradients)
    return fill("initialization", "signal", outputs=join(outputs), times=join(times))


def _first_steps(one: Mapping[str, Any]) -> Text:
    """Say when the second ReLU stops giving anything, and what the loss becomes."""
    losses = {"loss": one["losses"][-1], "chance": math.log(10)}
    at, zeros = _dies_at(one), one["zeros"]["relu2"][-1]
    return fill("initialization", "dead" if at else "alive", at=at, zeros=zeros, **losses)


def figure(report: Report, data: Data) -> Any:
    """Draw the first draw's losses, zeros and signals, and the accuracy of every draw."""
    from paddle_mnist.plots.figure import BLUE, GREEN, ORANGE, SKY, VERMILION
    from reproduction import charts

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
    finding = fill("initialization", "finding" if at else "finding_alive", at=at)
    return charts.panels(
        finding.en,
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

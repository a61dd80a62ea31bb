"""Figures of any training."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from paddle_mnist.plots.classes import confusion, per_class
from paddle_mnist.plots.curves import HealthPanel, compare, curves, health, learning_rate
from paddle_mnist.plots.history import read_history, series

HISTORY = [
    {"step": step, "tag": tag, "value": 1 / step}
    for step in (10, 20)
    for tag in ("train/loss", "train/acc", "train/lr", "valid/loss", "valid/acc")
]


def axis_labels(figure: Figure) -> list[str]:
    return [f"{a.get_xlabel()} {a.get_ylabel()}" for a in figure.axes if a.axison]


def test_torn_last_line_of_the_metrics_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "tag": "a", "value": 2}\n{"step": 2, "t')
    assert read_history(tmp_path / "metrics.jsonl") == [{"step": 1, "tag": "a", "value": 2}]


def test_series_are_in_the_order_of_steps():
    assert series(HISTORY[::-1], "train/lr") == ([10, 20], [0.1, 0.05])


def test_axes_are_labelled_with_units():
    assert axis_labels(curves(HISTORY)) == [
        "step loss (nats)",
        "step accuracy (share of right answers)",
    ]
    assert axis_labels(learning_rate(HISTORY)) == ["step learning rate"]
    assert axis_labels(per_class(np.eye(3, dtype=int), "kind")) == ["kind accuracy (share)"]


def test_confusion_matrix_shows_every_count():
    counts = np.diag(np.arange(100, 110))
    counts[4, 9] = 7
    (axes, _) = confusion(counts).axes
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts[(9, 4)] == "7" and texts[(3, 3)] == "103" and texts[(0, 1)] == "·"


def test_classes_without_samples_have_no_bar():
    counts = np.array([[3, 1, 0], [0, 0, 0], [0, 1, 1]])
    (axes,) = per_class(counts).axes
    assert [bar.get_height() for bar in axes.patches] == [0.75, 0.5]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1", "2"]


def test_health_draws_what_the_watch_measured():
    panels = (
        HealthPanel("zeros", "zeros (share)", ("relu",), limits=(0, 1)),
        HealthPanel("std", "spread", ("conv", "fc"), "log"),
        HealthPanel("dead", "dead channels", ("relu",), limits=(0, 1), grows=True),
    )
    history = [
        {"step": step, "tag": f"watch/{tag}", "value": value}
        for step in (10, 20)
        for tag, value in (("relu/zeros", 0.5), ("conv/std", 2), ("fc/std", 1), ("relu/dead", 7))
    ]
    zeros, spread, dead, empty = health(history, panels).axes
    assert zeros.get_ylim() == (0, 1) and dead.get_ylim()[1] > 7
    assert [line.get_label() for line in spread.lines] == ["conv", "fc"]
    assert spread.get_yscale() == "log" and not empty.axison


def test_run_that_was_not_watched_has_no_health():
    assert health(HISTORY, ()) is None


@pytest.mark.parametrize(
    ("first", "second", "title"),
    [([1, 2], [1, 2], "largest difference: 0"), ([1, 2], [1, 2.5], "largest difference: 0.5")],
)
def test_comparison_states_the_largest_difference(first, second, title):
    def history(values):
        return [
            {"step": step, "tag": tag, "value": value}
            for step, value in enumerate(values)
            for tag in ("train/loss", "valid/acc")
        ]

    figure = compare({"a": history(first), "b": history(second)})
    assert [axes.get_title() for axes in figure.axes] == [title] * 2

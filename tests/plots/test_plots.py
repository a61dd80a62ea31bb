"""Figures of any training."""

import numpy as np
import pytest
from matplotlib.lines import Line2D
from PIL import Image

from paddle_mnist.plots.classes import confusion, per_class
from paddle_mnist.plots.curves import compare, curves, figures_of, health, learning_rate
from paddle_mnist.plots.figure import SAVED_DPI, WIDTH, save_figures
from paddle_mnist.plots.history import curve, evaluated_tag, metric_tags, read_history, series

HISTORY = [
    {"step": step, "tag": tag, "value": 1 / step}
    for step in (10, 20)
    for tag in ("train/loss", "train/acc", "train/lr", "valid/loss", "valid/acc")
]


DAMAGED_LINES = {
    "zeros": bytes(4),
    "torn": b'{"step": 2, "tag',
    "not UTF-8": b'{"step": 2, "tag": "\xff", "value": 1}',
    "without a value": b'{"step": 2, "tag": "a"}',
    "a step that is a list": b'{"step": [2], "tag": "a", "value": 1}',
    "a step too large": b'{"step": 1%s, "tag": "a", "value": 1}' % (b"0" * 400),
    "a value too large": b'{"step": 2, "tag": "a", "value": 1%s}' % (b"0" * 400),
    "nested deeply": b"[" * 200_000,
}


def test_read_history_torn_last_line_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "tag": "a", "value": 2}\n{"step": 2, "t')
    assert read_history(tmp_path / "metrics.jsonl") == [{"step": 1, "tag": "a", "value": 2}]


@pytest.mark.parametrize("damaged", DAMAGED_LINES.values(), ids=DAMAGED_LINES)
def test_read_history_leaves_out_a_damaged_line_and_logs_it(damaged, tmp_path, lines):
    line = b'{"step": 1, "tag": "a", "value": 2}\n'
    (tmp_path / "metrics.jsonl").write_bytes(line + damaged + b"\n" + line)
    assert read_history(tmp_path / "metrics.jsonl") == [{"step": 1, "tag": "a", "value": 2}] * 2
    (warning,) = lines()
    assert "metrics.jsonl: dropping damaged lines (1), such as" in warning


def lines_of(**values):
    """Return a history with values of each tag, in which "__" stands for the slash."""
    return [
        {"step": step, "tag": tag.replace("__", "/"), "value": value}
        for tag, row in values.items()
        for step, value in enumerate(row)
    ]


def test_series_is_in_the_order_of_steps_without_values_that_are_not_finite():
    assert series(HISTORY[::-1], "train/lr") == ([10, 20], [0.1, 0.05])
    assert series(lines_of(a=[1, None, 3]), "a") == ([0, 2], [1, 3])


def test_curve_average_over_few_steps_is_not_drawn():
    for steps, left_out in (
        ([100, 200, 300, 400, 500, 600, 700, 782, 900], None),
        ([100, 200, 206], 206),
        ([100, 200, 210, 220, 230], 210),  # resumed with more lines
    ):
        tags = ("train/loss", "train/lr", "valid/loss")
        history = [{"step": n, "tag": tag, "value": 1 / n} for n in steps for tag in tags]
        drawn = [step for step in steps if step != left_out]
        assert curve(history, "train/loss")[0] == drawn
        train, valid = curves(history).axes[0].lines
        assert list(train.get_xdata()) == drawn and list(valid.get_xdata()) == steps
        assert list(compare({"a": history, "b": history}).axes[0].lines[1].get_xdata()) == drawn
        assert list(learning_rate(history).axes[0].lines[0].get_xdata()) == steps


def test_curves_draws_a_panel_a_metric_and_a_line_a_split():
    history = lines_of(
        valid__mse=[2, 1],
        watch__fc__std=[1, 1],
        train__mse=[3, 2],
        train__lr=[1, 1],
        train__loss=[5, -1],
        valid__loss=[4, 2],
        far__mse=[9, 8],
        pace=[1, 2],
    )
    assert metric_tags(history) == {
        "loss": ["train/loss", "valid/loss"],
        "mse": ["train/mse", "valid/mse", "far/mse"],
        "pace": ["pace"],
    }
    loss, mse, pace = curves(history).axes
    assert [axes.get_ylabel() for axes in (loss, mse, pace)] == ["loss", "mse", "pace"]
    assert [line.get_label() for line in mse.lines] == ["train", "valid", "far"]
    assert mse.get_title(loc="left") == "mse at the end: valid 1, far 8"
    assert list(mse.lines[2].get_ydata()) == [9, 8]


def test_curves_loss_is_logarithmic_if_it_is_positive():
    for low, scale in ((0.1, "log"), (0, "linear")):
        loss, acc = curves(lines_of(train__loss=[1, 2], valid__loss=[1, low], v__acc=[1, 1])).axes
        assert loss.get_yscale() == scale and acc.get_yscale() == "linear"


def test_figures_of_leaves_out_curves_without_metrics_and_health_without_a_watch():
    assert [*figures_of(HISTORY)] == ["curves", "learning_rate"]
    assert [*figures_of(lines_of(train__lr=[1]))] == ["learning_rate"]
    assert [*figures_of(lines_of(watch__fc__std=[1]))] == ["learning_rate", "health"]


def test_health_draws_the_layers_with_a_statistic_and_none_without_zeros():
    zeros = {"watch__relu__zeros": [0.25, 0.5], "watch__fc__zeros": [0, 0]}
    stds = {f"watch__conv{number}__std": [1, 2] for number in range(9)}
    figure = health(lines_of(**zeros, **stds, train__loss=[1, 2]))
    drawn = {axes.get_ylabel(): [*map(Line2D.get_label, axes.lines)] for axes in figure.axes}
    assert drawn == {
        "zeros (share)": ["relu"],
        "spread of outputs (std)": ["conv0", "conv2", "conv4", "conv6", "conv8"],
    }


def test_confusion_shows_every_count():
    counts = np.diag(np.arange(100, 110))
    counts[4, 9] = 7
    (axes, _) = confusion(counts).axes
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert axes.get_title(loc="left") == "7 of 1,052 samples misclassified; most often 4 as 9 (7)"
    assert texts[(9, 4)] == "7" and texts[(3, 3)] == "103" and texts[(0, 1)] == "·"


def test_per_class_draws_no_bar_without_samples():
    (axes,) = per_class(np.array([[3, 1, 0], [0, 0, 0], [0, 1, 1]])).axes
    assert [bar.get_height() for bar in axes.patches] == [0.75, 0.5]
    assert axes.get_title(loc="left") == "lowest accuracy: 2, 50.0%"


def test_compare_draws_what_the_runs_have_in_common():
    first = lines_of(train__loss=[1], valid__loss=[1], valid__acc=[1], far__mse=[-1])
    second = lines_of(train__loss=[2], far__mse=[2], valid__acc=[1])
    assert evaluated_tag([first, second]) == "valid/acc"
    assert evaluated_tag([first, second], "far/mse") == "far/mse"
    assert evaluated_tag([first, second], "valid/loss") == "valid/acc"
    figure = compare({"a": first, "b": second}, "far/mse", {"train/loss": "nats"})
    assert [axes.get_ylabel() for axes in figure.axes] == ["nats", "far/mse"]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["largest difference: 1", "largest difference: 3"]


def test_save_figures_keeps_the_figure_and_returns_its_pixels(tmp_path):
    """The pixels that are returned, for the dashboard, are those of the PNG at half the size."""
    figure = learning_rate(HISTORY)
    canvas, dpi = figure.canvas, figure.dpi
    pixels = save_figures({"rate": figure}, tmp_path)["rate"]
    assert figure.canvas is canvas and figure.dpi == dpi
    with Image.open(tmp_path / "rate.png") as image:
        assert np.array_equal(pixels, np.asarray(image.convert("RGB").reduce(2)))
        assert image.width == WIDTH * SAVED_DPI == 2 * pixels.shape[1]
    assert not save_figures({"rate": learning_rate(HISTORY)}, tmp_path, only=["rate.svg"])


def test_lines_have_no_more_points_than_a_screen_shows():
    """The ends, and peaks of a single step, are among them."""
    values = np.sin(np.arange(50_000)) + 2
    values[[777, 41_000, -1]] = 5, 0.5, 6
    tags = ("train__loss", "train__lr", "watch__fc__std")
    history = lines_of(**dict.fromkeys(tags, values.tolist()))
    shown = [curves(history), learning_rate(history), health(history)]
    shown.append(compare({"a": history, "b": history}))
    for line in (line for figure in shown for line in figure.axes[0].lines):
        points = dict(zip(line.get_xdata(), line.get_ydata()))
        assert len(points) == len(line.get_xdata()) <= 2_000
        assert [points[step] for step in (777, 41_000, 49_999)] == [5, 0.5, 6]
        assert min(points) <= 1
        assert list(points) == sorted(points) and all(values[s] == v for s, v in points.items())


def test_characters_that_the_fonts_lack_are_named_once_a_figure(tmp_path, caplog, recwarn):
    chart = compare({"\U0001f8f0训练": HISTORY, "plain": HISTORY})  # no font has the first
    save_figures({"compare": chart}, tmp_path)
    (line,) = caplog.messages
    assert line.startswith("compare: Matplotlib's fonts lack") and "\U0001f8f0" in line
    assert not recwarn

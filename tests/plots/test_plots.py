"""Figures of any training."""

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from reproduction.charts import Curves, Line, Seeds, bars, panels, reliability

from paddle_mnist.plots.classes import confusion, per_class
from paddle_mnist.plots.curves import (
    HealthPanel,
    compare,
    curves,
    health,
    health_panels,
    learning_rate,
)
from paddle_mnist.plots.figure import COLOURS, SAVED_DPI, WIDTH, save_figures
from paddle_mnist.plots.history import curve, evaluated_tag, metric_tags, read_history, series

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


def lines_of(**values):
    """Return a history with values of each tag, in which "__" stands for the slash."""
    return [
        {"step": step, "tag": tag.replace("__", "/"), "value": value}
        for tag, row in values.items()
        for step, value in enumerate(row)
    ]


def test_values_that_are_not_finite_are_left_out():
    assert series(lines_of(a=[1, None, 3]), "a") == ([0, 2], [1, 3])


def logged(epochs, steps_per_epoch, log_every):
    """Return the steps of a training's lines: every so many, and the end of every epoch."""
    last = epochs * steps_per_epoch
    return sorted({*range(log_every, last, log_every), *range(0, last + 1, steps_per_epoch)} - {0})


SHORT_LINES = {
    "a short run": (logged(4, 94, 100), [94, 188, 282, 376]),
    "later, both parts of a hundred are drawn": (
        logged(7, 94, 100),
        [94, 188, 282, 376, 470, 564, 600, 658],
    ),
    "MNIST": (logged(2, 782, 100)[:10], [100, 200, 300, 400, 500, 600, 700, 782, 900]),
    "epochs that are shorter than a line": (logged(3, 20, 100), [20, 40, 60]),
    "a line that is due at an epoch's end": (logged(2, 200, 100), [100, 200, 300, 400]),
    "an end of few steps": ([100, 200, 206], [100, 200]),
    "resumed with more lines": ([100, 200, 210, 220, 230], [100, 200, 220, 230]),
    "one line": ([6], [6]),
}


@pytest.mark.parametrize("name", SHORT_LINES)
def test_average_over_few_steps_is_not_drawn(name):
    steps, drawn = SHORT_LINES[name]
    history = [
        {"step": step, "tag": tag, "value": 1 / step}
        for step in steps
        for tag in ("train/loss", "train/lr", "valid/loss")
    ]
    assert curve(history, "train/loss")[0] == drawn
    assert curve(history, "valid/loss")[0] == series(history, "train/loss")[0] == steps
    train, valid = curves(history).axes[0].lines
    assert list(train.get_xdata()) == drawn and list(valid.get_xdata()) == steps
    assert list(compare({"a": history, "b": history}).axes[0].lines[1].get_xdata()) == drawn
    assert list(learning_rate(history).axes[0].lines[0].get_xdata()) == steps


def test_every_metric_has_a_panel_and_every_split_a_line():
    history = lines_of(
        valid__mse=[2, 1],
        watch__fc__std=[1, 1],
        train__mse=[3, 2],
        train__lr=[1, 1],
        train__loss=[5, -1],
        valid__loss=[4, 2],
        far__mse=[9, 8],
        pace=[1, 2],
        valid__watch__fc__std=[1, 1],
    )
    assert metric_tags(history) == {
        "loss": ["train/loss", "valid/loss"],
        "mse": ["train/mse", "valid/mse", "far/mse"],
        "pace": ["pace"],
    }
    loss, mse, pace, empty = curves(history).axes
    assert [axes.get_ylabel() for axes in (loss, mse, pace)] == ["loss", "mse", "pace"]
    assert [line.get_label() for line in mse.lines] == ["train", "valid", "far"]
    assert mse.get_title(loc="left") == "mse at the end: valid 1, far 8"
    assert list(mse.lines[2].get_ydata()) == [9, 8] and not empty.axison
    assert [line.get_marker() for line in mse.lines] == ["", "o", "o"]
    assert len({line.get_color() for line in mse.lines}) == 3


def test_loss_is_logarithmic_if_it_is_positive():
    for low, scale in ((0.1, "log"), (0, "linear"), (-1, "linear")):
        loss, acc = curves(lines_of(train__loss=[1, 2], valid__loss=[1, low], v__acc=[1, 1])).axes
        assert loss.get_yscale() == scale and acc.get_yscale() == "linear"


def test_history_without_metrics_has_no_curves():
    assert curves(lines_of(train__lr=[1])) is None


def test_more_splits_than_colours_are_drawn():
    history = lines_of(**{f"split{number}__loss": [1, 2] for number in range(len(COLOURS) + 2)})
    (axes,) = curves(history).axes
    assert len(axes.lines) == len(COLOURS) + 2


def test_axes_are_labelled_with_units():
    labels = {"loss": "loss (nats)", "acc": "accuracy (share)"}
    assert axis_labels(curves(HISTORY, labels)) == [f"step {label}" for label in labels.values()]
    assert axis_labels(curves(HISTORY)) == ["step loss", "step acc"]
    assert axis_labels(learning_rate(HISTORY)) == ["step learning rate"]
    assert axis_labels(per_class(np.eye(3, dtype=int), "kind")) == ["kind accuracy (share)"]


def test_confusion_matrix_shows_every_count():
    counts = np.diag(np.arange(100, 110))
    counts[4, 9] = 7
    (axes, _) = confusion(counts).axes
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert axes.get_title(loc="left") == "7 of 1,052 samples misclassified; most often 4 as 9 (7)"
    assert texts[(9, 4)] == "7" and texts[(3, 3)] == "103" and texts[(0, 1)] == "·"


def test_classes_without_samples_have_no_bar():
    counts = np.array([[3, 1, 0], [0, 0, 0], [0, 1, 1]])
    (axes,) = per_class(counts).axes
    assert [bar.get_height() for bar in axes.patches] == [0.75, 0.5]
    assert axes.get_title(loc="left") == "lowest accuracy: 2, 50.0%"
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


def test_health_of_any_net_has_five_lines_from_the_first_layer_to_the_last():
    layers = [f"block{number}" for number in range(12)]
    history = lines_of(
        **{f"watch__{layer}__std": [1, 2] for layer in layers},
        watch__relu__zeros=[0, 0.5],
        watch__fc__zeros=[0, 0],
        watch__fc__dead=[0, 0],
        **{"watch__fc.weight__update_ratio": [0.1], "watch__fc.bias__update_ratio": [0.1]},
        train__std=[1],
    )
    zeros, std, ratio = panels = health_panels(history)
    assert [panel.tag for panel in panels] == ["zeros", "std", "update_ratio"]
    assert zeros.layers == ["relu"] and ratio.layers == ["fc.weight"]
    assert len(std.layers) == 5 and (std.layers[0], std.layers[-1]) == ("block0", "block11")
    assert len(health(history, panels).axes[1].lines) == 5


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
    assert [axes.get_title(loc="left") for axes in figure.axes] == [title] * 2


def test_runs_are_compared_by_what_they_have_in_common():
    first = lines_of(train__loss=[1], valid__loss=[1], valid__acc=[1], far__mse=[-1])
    second = lines_of(train__loss=[2], far__mse=[2], valid__acc=[1])
    assert evaluated_tag([first, second]) == "valid/acc"
    assert evaluated_tag([first, second], "far/mse") == "far/mse"
    assert evaluated_tag([first, second], "valid/loss") == "valid/acc"
    figure = compare({"a": first, "b": second}, "far/mse", {"train/loss": "nats"})
    assert axis_labels(figure) == ["step nats", "step far/mse"]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["largest difference: 1", "largest difference: 3"]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear"]


def test_runs_without_an_evaluation_in_common_are_compared_by_their_loss():
    first, second = lines_of(train__loss=[1], a__loss=[1]), lines_of(train__loss=[-1], b__loss=[1])
    figure = compare({"a": first, "b": second})
    assert axis_labels(figure) == ["step train/loss"]
    assert figure.axes[0].get_yscale() == "linear"


def test_legend_hides_nothing():
    """It lies between the title and the axes, in as many rows as its names need."""
    for names in (["a", "b"], ["a layer of a long name", "another one of a long name", "c"]):
        history = lines_of(**{f"{name}__loss": [1, 2] for name in names}, x__other=[1])
        figure = curves(history)
        axes, *_ = figure.axes
        figure.draw_without_rendering()
        legend, inside = axes.get_legend().get_window_extent(), axes.get_window_extent()
        title = axes._left_title.get_window_extent()
        assert inside.y1 <= legend.y0 + 1 and legend.y1 <= title.y0 + 1
        assert legend.x1 <= figure.axes[1].get_window_extent().x0
        assert inside.width > figure.bbox.width / 3  # which a long row of names would squeeze


def test_band_is_drawn_around_its_curve():
    lines = {"a": Line([1, 2], [3, 4], [2, 3], [5, 5]), "b": Line([1, 2], [1, 1])}
    figure = panels(
        "finding", [Curves("", "step", "loss", lines, "log"), Seeds("", "", {"a": [0.1, 0.3]})]
    )
    curve, seeds = figure.axes
    (band,) = curve.collections
    limits = band.get_paths()[0].get_extents()
    assert (limits.ymin, limits.ymax) == (2, 5)
    assert (figure.get_suptitle(), curve.get_yscale()) == ("finding", "log")
    points, mean = seeds.lines
    assert list(points.get_ydata()) == [0.1, 0.3] and list(mean.get_ydata()) == [0.2, 0.2]
    assert [label.get_text() for label in seeds.get_xticklabels()] == ["20.00%\na"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_bars_are_means_and_show_every_seed():
    figure = bars("t", ["one", "two"], {"a": [[0.5, 0.7], [0.1]], "b": [[0], [1]]}, "share")
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.6, 0.1, 0, 1])
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5, 0.7]]


def test_accuracy_of_few_images_has_a_wide_interval():
    figure = reliability("t", {"net": [(2, 0.4, 0.0), (1000, 0.99, 0.99), (9, 1.0, 1.0)]})
    above, below = figure.axes
    (segments,) = (one.get_segments() for one in above.collections)
    spans = [(low, high) for (_, low), (_, high) in segments]
    assert spans[0] == pytest.approx((0, 0.8419), abs=1e-4)  # Clopper & Pearson's table
    assert spans[1] == pytest.approx((0.9817, 0.9952), abs=1e-4)
    assert spans[2] == pytest.approx((0.6637, 1), abs=1e-4)
    assert [bar.get_height() for bar in below.patches] == [2, 1000, 9]


def test_files_have_twice_the_pixels_that_are_shown(tmp_path):
    save_figures({"rate": learning_rate(HISTORY)}, tmp_path)
    assert matplotlib.image.imread(tmp_path / "rate.png").shape[1] == WIDTH * SAVED_DPI == 1680


def test_figure_is_drawn_for_files_and_remains_as_it_was(tmp_path):
    """The pixels that are returned, for the dashboard, are those of the PNG at half the size."""
    figure = learning_rate(HISTORY)
    canvas, dpi = figure.canvas, figure.dpi
    pixels = save_figures({"rate": figure}, tmp_path)["rate"]
    assert figure.canvas is canvas and figure.dpi == dpi
    with Image.open(tmp_path / "rate.png") as image:
        assert np.array_equal(pixels, np.asarray(image.convert("RGB").reduce(2)))
    assert pixels.shape[1] == WIDTH * dpi
    assert not save_figures({"rate": learning_rate(HISTORY)}, tmp_path, only=["rate.svg"])

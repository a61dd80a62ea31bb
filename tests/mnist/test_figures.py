"""Figures of digits, one at a time."""

import numpy as np

from paddle_mnist.mnist import figures
from paddle_mnist.mnist.arrays import Classes
from paddle_mnist.plots.classes import confusion, per_class
from paddle_mnist.plots.figure import save_figures


def test_figures_call_classes_by_their_names(tmp_path):
    classes = Classes("class", ("$1", "Coat", "$2", *(f"kind {n}" for n in range(3, 10))))
    shares = np.zeros((1, 10))
    shares[0, [1, 2]] = 0.75, 0.25
    drawn = {
        "confusion": confusion(np.eye(10, dtype=int), classes.noun, classes.names),
        "per_class": per_class(np.eye(10, dtype=int), classes.noun, classes.names),
        "mistakes": figures.mistakes(np.zeros((1, 28, 28)), [2], shares, "one", classes=classes),
    }
    save_figures(drawn, tmp_path)
    (matrix, _), (bars,) = drawn["confusion"].axes, drawn["per_class"].axes
    assert (matrix.get_ylabel(), bars.get_xlabel()) == ("true class", "class")
    for axis in (matrix.xaxis, matrix.yaxis, bars.xaxis):
        ticks = [label.get_text() for label in axis.get_ticklabels()][:3]
        assert ticks == [r"\$1", "Coat", r"\$2"]
    title = drawn["mistakes"].axes[0].get_title()
    assert title == "label \\$2 (25%)\npredicted Coat (75%)"


def test_drawable_names_that_the_font_lacks_are_logged_and_numbered(lines):
    english = Classes("class", tuple("zero one two three four five six seven eight nine".split()))
    assert figures.drawable(english).names == english.names and not lines()
    drawn = figures.drawable(Classes("class", tuple("零一二三四五六七八九")))
    assert drawn[3] == "3" and "figures show the classes by number" in lines()[-1]


def test_feature_maps_scales_each_channel():
    """Around 0 where a layer has both signs; a channel of zeros stays even."""
    signed = np.zeros((3, 2, 2))
    signed[0, 0] = -4, 2
    signed[1, 1] = 1, 0.5
    figure = figures.feature_maps(np.ones((28, 28)), {"conv": signed, "relu": abs(signed)}, "$")
    assert figure.get_suptitle() == r"\$"
    _, conv, relu = (axes.images[0].get_array() for axes in figure.axes)
    assert conv[0, :2].tolist() == [0, 0.75] and relu[0, :2].tolist() == [1, 0.5]
    assert conv[1, 3:5].tolist() == [1, 0.75] and relu[1, 3:5].tolist() == [1, 0.5]
    assert (conv[:2, 6:8] == 0.5).all() and (relu[:2, 6:8] == 0).all()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[1] == "conv: 3 channels of 2 x 2, orange below 0, purple above"

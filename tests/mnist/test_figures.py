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

"""What the detector of non-digits and the packaged net learn from: drawings and fonts."""

import numpy as np
import paddle
import pytest
from detector import letters
from detector.examples import unusual_digits
from detector.shapes import UNUSUAL_DIGITS
from reproduction import pretrained

from paddle_mnist import MNIST, DigitPredictor
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.images import open_data

FOOT = "sevens with a foot"


@pytest.mark.parametrize("form", UNUSUAL_DIGITS)
def test_unusual_digits_look_like_their_digit(form):
    drawn = unusual_digits(form, 20, first=500)
    assert drawn.shape == (20, 28, 28) and not (drawn == unusual_digits(form, 20)).all()
    answers = DigitPredictor("pretrained").run(drawn)["probabilities"].argmax(axis=1)
    assert (answers == UNUSUAL_DIGITS[form][0]).mean() > (0.4 if form == FOOT else 0.75)


def test_learn_drawn_digits_teaches_the_last_layer_alone(monkeypatch):
    monkeypatch.setattr(pretrained, "STEPS", 60)
    monkeypatch.setattr(pretrained, "DRAWN", 100)
    model, before = MNIST(pretrained=True), MNIST(pretrained=True).state_dict()
    for parameter in model.fc.parameters():  # which has learned such digits
        parameter.set_value(paddle.zeros_like(parameter))
    drawn = unusual_digits(FOOT, 40, first=500)[:, np.newaxis] / np.float32(255)

    def share_right():
        return (model(paddle.to_tensor(drawn)).argmax(axis=1).numpy() == 7).mean()

    assert share_right() == 0
    pretrained.learn_drawn_digits(model, open_data("digits"), [FOOT], 0.3, 0.0)
    assert share_right() > 0.5
    changed = [name for name, value in model.state_dict().items() if (value != before[name]).any()]
    assert changed == ["fc.weight", "fc.bias"]


def test_font_that_is_missing_names_all_packages_to_install():
    with pytest.raises(
        ConfigError, match=r"no font Missing\.ttf; install it: apt-get install"
    ) as why:
        letters.font_of("Missing.ttf", 20)
    words = str(why.value).split()
    assert {*letters.GREEK_FONTS, *letters.HANDWRITING, *letters.UNSEEN_HANDWRITING} < {*words}
    assert len(letters.HANDWRITING) == len(letters.UNSEEN_HANDWRITING)
    assert not {*letters.WRITTEN} & {*letters.UNSEEN_WRITTEN}

"""Answer a picture drawn on the page: with words, probabilities, and what the net saw."""

import math
from concurrent import futures
from typing import NamedTuple, Optional, Union

import numpy as np

from paddle_mnist.errors import DataError
from paddle_mnist.mnist import figures
from paddle_mnist.mnist.detector import digit_scores
from paddle_mnist.mnist.infer import reads_digits
from paddle_mnist.mnist.pictures import read_digit
from paddle_mnist.mnist.predictor import DigitPredictor
from paddle_mnist.mnist.reading import reading

OUTPUTS = ("probabilities", "conv1", "conv2")  # layers are shown of models that give them
PICTURES = ("pixels", "conv1", "conv2")  # fields of an `Answer`
PATIENCE = 10  # seconds for an answer
SHOWN = 280  # pixels of a side

Picture = Union[str, bytes, None]  # the path of a file, a file's bytes, or no picture


class Answer(NamedTuple):
    """The page's answer to a picture.

    words: the digit, or why none is read; then there are neither probabilities nor layers.
    probabilities: of each digit. pixels: what the net saw; conv1, conv2: two layers' feature maps,
    all uint8 [H, W], enlarged.
    """

    words: str
    probabilities: Optional[dict[str, float]] = None
    pixels: Optional[np.ndarray] = None
    conv1: Optional[np.ndarray] = None
    conv2: Optional[np.ndarray] = None


def answer(predictor: DigitPredictor, picture: Picture) -> Answer:
    """Read the digit in a picture, and answer in English. predictor: it gives probabilities."""
    if picture is None:
        return Answer("Draw a digit.")
    try:
        digit = read_digit(picture)
    except DataError as error:
        return Answer(capitalized(str(error)))
    names = [name for name in OUTPUTS if name in predictor.outputs]
    outputs = {name: value[0] for name, value in predictor.run(digit.pixels, names).items()}
    score = digit_scores(digit.pixels[np.newaxis])[0] if reads_digits(predictor) else None
    result = reading("", digit, outputs["probabilities"], score)
    if result.error:
        return Answer(capitalized(result.error), pixels=enlarged(digit.pixels))
    words = f"{result.digit}, probability {result.probability:.1%}"
    words += "" if score is None else f", score {score:.2f}"
    return Answer(
        f"{words} {result.note}".strip(),
        {str(number): float(value) for number, value in enumerate(outputs["probabilities"])},
        enlarged(digit.pixels),
        **{name: enlarged(tiles(outputs[name])) for name in names[1:]},
    )


def answer_in_time(
    workers: futures.Executor, predictor: DigitPredictor, picture: Picture
) -> Answer:
    """Return `answer`, computed by a worker, or after PATIENCE seconds that there is none."""
    future = workers.submit(answer, predictor, picture)
    try:
        return future.result(PATIENCE)
    except futures.TimeoutError:
        future.cancel()
        return Answer(f"No answer within {PATIENCE} s; try again, or with a smaller picture.")


def tiles(maps: np.ndarray) -> np.ndarray:
    """Arrange feature maps [C, H, W] side by side as uint8.

    Each is scaled from its smallest value, black, to its largest, white.
    """
    page = figures.tiles(figures.stretched(maps), columns=math.ceil(math.sqrt(len(maps))))
    pixels: np.ndarray = np.rint(np.ma.filled(page, 0)[:-1, :-1] * 255).astype(np.uint8)
    return pixels


def enlarged(pixels: np.ndarray) -> np.ndarray:
    """Repeat pixels until the longer side has about SHOWN of them."""
    times = max(2, SHOWN // max(pixels.shape))
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def capitalized(words: str) -> str:
    """Return a sentence with a capital letter at its beginning."""
    return words[:1].upper() + words[1:]

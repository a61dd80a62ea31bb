"""The weights that come with the package."""

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_mnist.mnist import pretrained
from paddle_mnist.mnist.images import Images
from paddle_mnist.system.files import write_atomically
from reproduction.accuracy import BEST
from reproduction.claims import SEED, Experiment, Workspace
from reproduction.trainings import FRUGAL, run_folder, train

RECIPE = "best"
# Few of MNIST's ones have the long upstroke of German handwriting, so a net that has seen only
# MNIST takes one in eight of them for a 7. The first lesson teaches these to its last layer, the
# second all forms of digits that are rare in MNIST, such as a 7 with a foot. Of each lesson: the
# forms (None: all), the weight of their loss, and the weight of the squared distance from the
# parameters before the lesson, near which it keeps them.
LESSONS = ((["flagged ones"], 0.03, 1.0), (None, 0.1, 0.3))
DRAWN = 1000  # of each form, by code
STEPS, RATES = 500, (0.01, 0.001)  # the second rate for the last two fifths of the steps
BATCH, DRAWN_BATCH = 256, 64


def measure(work: Workspace, folder: Path) -> dict[str, Any]:
    """Train RECIPE, or resume it, teach it rare forms of digits; write and return the about.json.

    A run that the table of RECIPE made with this seed is used again.
    """
    trained = run_folder(work.output, BEST.rows[RECIPE].name(SEED))
    train(RECIPE, {**FRUGAL, "seed": SEED, "data": work.data.path}, trained)
    result = json.loads((trained / "result.json").read_text("utf-8"))
    kept = {name: result[name] for name in ("dataset", "steps", "paddle", "numpy", "package")}
    return package(trained / "mnist.pdparams", work.data, kept)


def package(trained: Path, data: Images, of_training: dict[str, Any]) -> dict[str, Any]:
    """Teach trained weights rare forms, put them into the package, and return the about.json."""
    import paddle
    from detector.shapes import UNUSUAL_DIGITS

    from paddle_mnist import MNIST, MnistDataset, evaluate, load_model

    model = load_model(trained, MNIST)
    for forms, share, penalty in LESSONS:
        learn_drawn_digits(model, data, forms or list(UNUSUAL_DIGITS), share, penalty)
    contents = io.BytesIO()
    paddle.save(model.state_dict(), contents)
    scores = {}
    for mode in ("eval", "valid"):
        evaluation = evaluate(model, MnistDataset(mode, data))
        scores.update({f"{mode}_acc": evaluation.accuracy, f"{mode}_loss": evaluation.loss})
    about = {
        "sha256": hashlib.sha256(contents.getvalue()).hexdigest(),
        "command": "python tools/reproduce.py --only pretrained --data MNIST",
        "recipe": RECIPE,
        "seed": SEED,
        "sha256_before_drawn_digits": hashlib.sha256(trained.read_bytes()).hexdigest(),
        **scores,
        **of_training,
    }
    write_atomically(pretrained.WEIGHTS, contents.getvalue())
    write_atomically(pretrained.RECORD, (json.dumps(about, indent=1) + "\n").encode())
    return about


def learn_drawn_digits(
    model: Any, data: Images, forms: Sequence[str], share: float, penalty: float
) -> None:
    """Train the last layer on MNIST's training split and on some of UNUSUAL_DIGITS.

    forms, share, penalty: one of LESSONS.
    """
    import paddle
    from detector.examples import unusual_digits
    from detector.shapes import UNUSUAL_DIGITS

    from paddle_mnist import MnistDataset
    from paddle_mnist.mnist.export import DIVISOR

    dataset = MnistDataset("train", data)
    drawn = [unusual_digits(form, DRAWN) for form in forms]
    digits = np.repeat([UNUSUAL_DIGITS[form][0] for form in forms], list(map(len, drawn)))
    pixels = np.concatenate(drawn)[:, np.newaxis] / np.float32(DIVISOR)
    random, entropy = np.random.RandomState(SEED), paddle.nn.functional.cross_entropy
    last = model.fc.parameters()
    before = [parameter.clone().detach() for parameter in last]
    rate = paddle.optimizer.lr.PiecewiseDecay([STEPS * 3 // 5], list(RATES))
    optimizer = paddle.optimizer.Momentum(rate, momentum=0.9, parameters=last)
    model.eval()
    for _ in range(STEPS):
        batch = dataset.batch(random.randint(len(dataset), size=BATCH))
        images, labels = map(paddle.to_tensor, batch)
        chosen = random.randint(len(pixels), size=DRAWN_BATCH)
        shown, answers = paddle.to_tensor(pixels[chosen]), paddle.to_tensor(digits[chosen, None])
        moved = sum(((now - then) ** 2).sum() for now, then in zip(last, before))
        of_mnist, of_drawn = entropy(model(images), labels), entropy(model(shown), answers)
        (of_mnist + share * of_drawn + penalty * moved).backward()
        optimizer.step()
        model.clear_gradients()
        rate.step()


CLAIM = Experiment("pretrained", measure)

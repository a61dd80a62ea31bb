"""The weights that come with the package."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from paddle_mnist.mnist import pretrained
from paddle_mnist.mnist.images import Images
from paddle_mnist.system.files import write_atomically
from reproduction.claims import SEED, Experiment, Report, Workspace
from reproduction.ladder import BEST
from reproduction.trainings import FRUGAL, run_folder, train

RECIPE = "best"
# Few of MNIST's ones have the long upstroke of German handwriting: a net that has seen only MNIST
# takes one in eight of them for a 7. Its last layer learns them, and is held near what it was.
FLAGGED = 1000  # ones, drawn by code
STEPS, RATES = 500, (0.01, 0.001)  # the second rate for the last two fifths of the steps
BATCH, FLAGGED_BATCH = 256, 64
SHARE, PENALTY = 0.03, 1.0  # of the flagged ones' loss; of the squared distance from the start


def measure(work: Workspace, folder: Path) -> dict[str, Any]:
    """Train RECIPE, or resume it, teach it flagged ones; write and return the about.json.

    A run that the table of RECIPE made with this seed is used again.
    """
    trained = run_folder(work.output, BEST.rows[RECIPE].name(SEED))
    train(RECIPE, {**FRUGAL, "seed": SEED, "data": work.data.path}, trained)
    result = json.loads((trained / "result.json").read_text("utf-8"))
    kept = {name: result[name] for name in ("dataset", "steps", "paddle", "numpy", "package")}
    return package(trained / "mnist.pdparams", work.data, kept)


def package(trained: Path, data: Images, of_training: dict[str, Any]) -> dict[str, Any]:
    """Teach trained weights flagged ones, put them into the package, and return the about.json."""
    import paddle

    from paddle_mnist import MNIST, MnistDataset, evaluate, load_model

    model = load_model(trained, MNIST)
    learn_flagged_ones(model, data)
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
        "sha256_before_flagged_ones": hashlib.sha256(trained.read_bytes()).hexdigest(),
        **scores,
        **of_training,
    }
    write_atomically(pretrained.WEIGHTS, contents.getvalue())
    write_atomically(pretrained.RECORD, (json.dumps(about, indent=1) + "\n").encode())
    return about


def learn_flagged_ones(model: Any, data: Images) -> None:
    """Train the last layer on flagged ones beside MNIST's training split."""
    import paddle
    from detector.examples import flagged_ones

    from paddle_mnist import MnistDataset
    from paddle_mnist.mnist.export import DIVISOR

    dataset, flagged = MnistDataset("train", data), flagged_ones(FLAGGED) / np.float32(DIVISOR)
    random, entropy = np.random.RandomState(SEED), paddle.nn.functional.cross_entropy
    last = model.fc.parameters()
    before = [parameter.clone().detach() for parameter in last]
    rate = paddle.optimizer.lr.PiecewiseDecay([STEPS * 3 // 5], list(RATES))
    optimizer = paddle.optimizer.Momentum(rate, momentum=0.9, parameters=last)
    ones = paddle.ones([FLAGGED_BATCH, 1], "int64")
    model.eval()
    for _ in range(STEPS):
        images, labels = map(
            paddle.to_tensor, dataset.batch(random.randint(len(dataset), size=BATCH))
        )
        drawn = paddle.to_tensor(flagged[random.randint(FLAGGED, size=FLAGGED_BATCH), np.newaxis])
        moved = sum(((now - then) ** 2).sum() for now, then in zip(last, before))
        loss = (
            entropy(model(images), labels) + SHARE * entropy(model(drawn), ones) + PENALTY * moved
        )
        loss.backward()
        optimizer.step()
        model.clear_gradients()
        rate.step()


def tabulate(about: Report) -> str:
    return (
        f"accuracy on the eval split {about['eval_acc']:.2%}, loss {about['eval_loss']:.4f}; "
        f"SHA-256 {about['sha256'][:12]}..."
    )


CLAIM = Experiment("pretrained", measure, tabulate, code=())

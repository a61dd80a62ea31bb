"""Whether the tutorial saves the weights that it trained, and what a net takes of a file."""

import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markdown_tables import table

from paddle_mnist.errors import CheckpointError
from reproduction.claims import Experiment, Report
from reproduction.workspace import Scale

THEIRS = "`save` of its `Trainer`, the file"  # ways to leave weights behind
CALLERS = "`train(model)` of its part two, the caller's net"
OURS = "`Trainer.save` here, the file"
TITLES = {
    THEIRS: "the file written by `save` of its `Trainer`",
    CALLERS: "the caller's net after `train(model)` of its part two",
    OURS: "the file written by this package's `Trainer.save`",
}
IMAGES, SEEDS = 12_800, (1, 2, 3)  # of a short training


def _new_net() -> Any:
    from paddle_mnist import MNIST

    return MNIST(fast_conv="off")


def _train(model: Any, data: str) -> Any:
    """Train the model for some steps of Adam, and return it."""
    import paddle

    from paddle_mnist import BatchLoader, MnistDataset, Trainer

    optimizer = paddle.optimizer.Adam(0.001, parameters=model.parameters())
    trainer = Trainer("not written", model, optimizer, log_every=IMAGES)
    trainer.train_epoch(BatchLoader(MnistDataset("train", data, IMAGES), 64, shuffle=True), 0)
    return model


def _accuracy(model: Any, data: str) -> float:
    from paddle_mnist import MnistDataset, evaluate

    return evaluate(model, MnistDataset("eval", data)).accuracy


def measure_globals(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Return, for each way, the accuracies of the trained nets and of what is left, by seed."""
    report: dict[str, Any] = {}
    for seed in SEEDS:
        for way, (trained, kept) in _train_in_each_way(data, output, seed).items():
            accuracies = report.setdefault(way, {"trained": [], "kept": []})
            accuracies["trained"].append(_accuracy(trained, data))
            accuracies["kept"].append(_accuracy(kept, data))
    return report


def _train_in_each_way(data: str, output: Path, seed: int) -> dict[str, tuple[Any, Any]]:
    """Return the net that was trained and the one that is left, for each way.

    The ways are the document's two, rewritten around the same short training, and this package's.
    """
    import paddle

    from paddle_mnist import Trainer

    paddle.seed(seed)
    model = _new_net()  # the module's, as in a notebook

    class TheirTrainer:
        def __init__(self, model):
            self.model = model

        def train(self):
            _train(self.model, data)

        def save(self, path):
            paddle.save(model.state_dict(), path)

    def train(model):
        model = _new_net()
        return _train(model, data)

    trainer, their_path = TheirTrainer(_new_net()), str(output / "theirs.pdparams")
    trainer.train()
    trainer.save(their_path)
    callers = _new_net()
    inside = train(callers)
    own, own_path = _train(_new_net(), data), output / "ours.pdparams"
    Trainer(own_path, own, paddle.optimizer.SGD(parameters=own.parameters())).save()
    return {
        THEIRS: (trainer.model, _load(their_path)),
        CALLERS: (inside, callers),
        OURS: (own, _load(str(own_path))),
    }


def _load(path: str) -> Any:
    import paddle

    model = _new_net()
    model.set_state_dict(paddle.load(path))
    return model


def tabulate_globals(report: Report) -> str:
    rows = (
        (TITLES[way], _spread(one["trained"]), _spread(one["kept"])) for way, one in report.items()
    )
    headers = (
        "weights left behind",
        "accuracy of the trained net",
        "accuracy of the weights left behind",
    )
    return table(dict.fromkeys(headers, ""), rows)


def _spread(accuracies: Sequence[float]) -> str:
    mean, sd = statistics.mean(accuracies), statistics.stdev(accuracies)
    return f"{mean:.1%} (sd {sd:.1%}, {min(accuracies):.1%} to {max(accuracies):.1%})"


def find_lost(report: Report) -> dict[str, Any]:
    """Name the ways whose weights are far below those of the trained nets with every seed."""
    lost = (way for way, one in report.items() if max(one["kept"]) < min(one["trained"]) - 0.1)
    return {"lost": list(lost)}


def measure_partly(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Load a trained net's weights into one with another second convolution: Paddle's way, ours."""
    import paddle
    from paddle import nn

    from paddle_mnist.nn.state_dict import load_weights

    report: dict[str, Any] = {"trained": [], "loaded": [], "untouched": True}
    for seed in SEEDS:
        paddle.seed(seed)
        trained, other = _train(_new_net(), data), _new_net()
        other.conv2 = nn.Conv2D(20, 20, 3, padding=1)
        before = other.conv2.weight.numpy()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other.set_state_dict(trained.state_dict())
        report["trained"].append(_accuracy(trained, data))
        report["loaded"].append(_accuracy(other, data))
        report["untouched"] &= bool((other.conv2.weight.numpy() == before).all())
        report["warnings"] = [" ".join(str(warning.message).split()) for warning in caught]
    try:
        load_weights(other, trained.state_dict(), "the file")
    except CheckpointError as error:
        report["refused"] = " ".join(str(error).split())
    return report


def tabulate_partly(report: Report) -> str:
    warnings = "; ".join(f"`{warning}`" for warning in report["warnings"]) or "-"
    refused = f"`{report['refused']}`" if "refused" in report else "no error"
    rows = [
        ("into the original net", None, _spread(report["trained"])),
        (
            "with `set_state_dict`",
            f"no error; warning: {warnings}",
            _spread(report["loaded"]),
        ),
        ("with this package", refused),
    ]
    headers = ("loaded into a net with 3x3 kernels in conv2", "outcome", "accuracy")
    return table(dict.fromkeys(headers, ""), rows)


SETTINGS = {"images": IMAGES, "seeds": SEEDS}
CLAIMS = (
    Experiment("globals", measure_globals, tabulate_globals, find_lost, settings=SETTINGS),
    Experiment("partly", measure_partly, tabulate_partly, settings=SETTINGS),
)

"""Whose weights the document's ways to train leave behind, and what a net takes of a file."""

import statistics
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction.compared import Scale
from reproduction.shown import SAVING, Shown

IMAGES = 12_800  # of a short training
SEEDS = (1, 2, 3)
SPREAD = f"Means of {len(SEEDS)} seeds."


def _trained(model: Any, data: str) -> Any:
    """The model, after some hundred steps of Adam."""
    import paddle

    from paddle_mnist import BatchLoader, MnistDataset, Trainer

    optimizer = paddle.optimizer.Adam(0.001, parameters=model.parameters())
    trainer = Trainer("not written", model, optimizer, log_every=IMAGES)
    trainer.train_epoch(BatchLoader(MnistDataset("train", data, IMAGES), 64, shuffle=True), 0)
    return model


def _accuracy(model: Any, data: str) -> float:
    from paddle_mnist import MnistDataset, evaluate

    return evaluate(model, MnistDataset("eval", data)).accuracy


def globals_(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Accuracies of the nets that were trained and of what is left, by way; one for each seed."""
    output.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for seed in SEEDS:
        for way, both in _ways(data, output, seed).items():
            kept = found.setdefault(way, {"trained": [], "kept": []})
            for name, net in zip(kept, both):
                kept[name].append(_accuracy(net, data))
    return found


def _ways(data: str, output: Path, seed: int) -> dict[str, tuple[Any, Any]]:
    """The document's two ways, re-written around the same short training, and this package's: the
    net that was trained, and the one that is left."""
    import paddle

    from paddle_mnist import MNIST, Trainer

    paddle.seed(seed)
    model = MNIST(fast_conv="off")  # the module's, as in a notebook

    class Theirs:
        def __init__(self, given):
            self.model = given

        def train(self):
            _trained(self.model, data)

        def save(self, path):
            paddle.save(model.state_dict(), path)

    def train(model):
        model = MNIST(fast_conv="off")
        return _trained(model, data)

    trainer, path = Theirs(MNIST(fast_conv="off")), str(output / "theirs.pdparams")
    trainer.train()
    trainer.save(path)
    given = MNIST(fast_conv="off")
    inside = train(given)
    own, own_path = _trained(MNIST(fast_conv="off"), data), output / "ours.pdparams"
    Trainer(own_path, own, paddle.optimizer.SGD(parameters=own.parameters())).save()
    return {
        "`save` of its `Trainer`, the file": (trainer.model, _loaded(path)),
        "`train(model)` of its part two, the caller's net": (inside, given),
        "`Trainer.save` here, the file": (own, _loaded(str(own_path))),
    }


def _loaded(path: str) -> Any:
    import paddle

    from paddle_mnist import MNIST

    model = MNIST(fast_conv="off")
    model.set_state_dict(paddle.load(path))
    return model


def globals_table(report: Mapping[str, Any]) -> str:
    rows = ["| what is left behind | accuracy of the net that was trained | of what is left |"]
    rows.append("|---|---|---|")
    for way, one in report.items():
        rows.append(f"| {way} | {_spread(one['trained'])} | {_spread(one['kept'])} |")
    return "\n".join([*rows, "", SPREAD])


def _spread(found: Sequence[float]) -> str:
    mean, sd = statistics.mean(found), statistics.stdev(found)
    return f"{mean:.1%} (sd {sd:.1%}, {min(found):.1%} to {max(found):.1%})"


def globals_verdict(report: Mapping[str, Any]) -> str:
    lost = [way for way, one in report.items() if max(one["kept"]) < min(one["trained"]) - 0.1]
    judged = "Refuted of the document's code" if lost else "Confirmed"
    return f"{judged}: the training is lost in {'; '.join(lost) or 'none'}."


def partly(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """A trained net's weights for a net with another second convolution: Paddle's way, and ours."""
    import paddle
    from paddle import nn

    from paddle_mnist import MNIST
    from paddle_mnist.checkpoint.contents import load_weights
    from paddle_mnist.errors import CheckpointError

    report: dict[str, Any] = {"trained": [], "loaded": [], "untouched": True}
    for seed in SEEDS:
        paddle.seed(seed)
        trained, other = _trained(MNIST(fast_conv="off"), data), MNIST(fast_conv="off")
        other.conv2 = nn.Conv2D(20, 20, 3, padding=1)
        before = other.conv2.weight.numpy()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            other.set_state_dict(trained.state_dict())
        report["trained"].append(_accuracy(trained, data))
        report["loaded"].append(_accuracy(other, data))
        report["untouched"] &= bool((other.conv2.weight.numpy() == before).all())
        report["warnings"] = [" ".join(str(one.message).split()) for one in told]
    try:
        load_weights(other, trained.state_dict(), "the file")
    except CheckpointError as error:
        report["refused"] = " ".join(str(error).split())
    return report


def partly_table(report: Mapping[str, Any]) -> str:
    warned = "; ".join(report["warnings"]) or "nothing"
    return "\n".join(
        [
            "| loaded into a net with 3x3 kernels in conv2 | what happens | accuracy |",
            "|---|---|---|",
            f"| into the net it is from | | {_spread(report['trained'])} |",
            f"| `set_state_dict` | no error; warned: {warned} | {_spread(report['loaded'])} |",
            f"| here | {report.get('refused', 'no error')} | |",
            "",
            SPREAD,
        ]
    )


def partly_verdict(report: Mapping[str, Any]) -> str:
    if not report["untouched"]:
        return "Confirmed: it is loaded whatever its shape."
    here = "refused, with the difference" if "refused" in report else "no error either"
    return (
        "Refuted: loaded in part, with a warning for each tensor left out "
        f"({len(report['warnings'])}) and no error, and the accuracy goes from "
        f"{statistics.mean(report['trained']):.1%} to "
        f"{statistics.mean(report['loaded']):.1%}; here {here}."
    )


CLAIMS = (
    Shown(
        "globals",
        "the tutorial, parts two and three",
        "a training's weights are those that are saved, and that the caller has",
        f"{IMAGES:,} images by Adam; the eval split",
        globals_,
        globals_table,
        globals_verdict,
        settings=[IMAGES, SEEDS],
        uses=(_trained, _accuracy, _loaded, _ways, *SAVING),
    ),
    Shown(
        "partly",
        "saving, loading and incremental training in Fluid",
        "weights are loaded into whatever net is there",
        "the weights of a short training, into a net whose second convolution has another shape; "
        "by `set_state_dict`, Fluid's own calls being gone from Paddle",
        partly,
        partly_table,
        partly_verdict,
        settings=[IMAGES, SEEDS],
        uses=(_trained, _accuracy, *SAVING),
    ),
)

"""Whose weights the document's ways to train leave behind, and what a net takes of a file."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.compared import Scale
from reproduction.shown import Shown

IMAGES = 12_800  # of a short training


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
    """The document's two ways, re-written around the same short training, and this package's."""
    import paddle

    from paddle_mnist import MNIST, Trainer

    paddle.seed(1)
    output.mkdir(parents=True, exist_ok=True)
    model = MNIST()  # the module's, as in a notebook

    class Theirs:
        def __init__(self, given):
            self.model = given

        def train(self):
            _trained(self.model, data)

        def save(self, path):
            paddle.save(model.state_dict(), path)

    def train(model):
        model = MNIST()
        return _trained(model, data)

    trainer, path = Theirs(MNIST()), str(output / "theirs.pdparams")
    trainer.train()
    trainer.save(path)
    given = MNIST()
    inside = train(given)
    own, own_path = _trained(MNIST(), data), output / "ours.pdparams"
    Trainer(own_path, own, paddle.optimizer.SGD(parameters=own.parameters())).save()
    return {
        "`save` of its `Trainer`, the file": _both(trainer.model, _loaded(path), data),
        "`train(model)` of its part two, the caller's net": _both(inside, given, data),
        "`Trainer.save` here, the file": _both(own, _loaded(str(own_path)), data),
    }


def _loaded(path: str) -> Any:
    import paddle

    from paddle_mnist import MNIST

    model = MNIST()
    model.set_state_dict(paddle.load(path))
    return model


def _both(trained: Any, kept: Any, data: str) -> dict[str, float]:
    return {"trained": _accuracy(trained, data), "kept": _accuracy(kept, data)}


def globals_table(report: Mapping[str, Any]) -> str:
    rows = ["| what is left behind | accuracy of the net that was trained | of what is left |"]
    rows.append("|---|---|---|")
    for way, one in report.items():
        rows.append(f"| {way} | {one['trained']:.1%} | {one['kept']:.1%} |")
    return "\n".join(rows)


def globals_verdict(report: Mapping[str, Any]) -> str:
    lost = [way for way, one in report.items() if one["kept"] < one["trained"] - 0.1]
    judged = "Refuted of the document's code" if lost else "Confirmed"
    return f"{judged}. The training is lost in: {'; '.join(lost) or 'none'}."


def partly(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """A trained net's weights for a net with another second convolution: Paddle's way, and ours."""
    import paddle
    from paddle import nn

    from paddle_mnist import MNIST
    from paddle_mnist.checkpoint.contents import load_weights
    from paddle_mnist.errors import CheckpointError

    paddle.seed(1)
    trained, other = _trained(MNIST(), data), MNIST()
    other.conv2 = nn.Conv2D(20, 20, 3, padding=1)
    before = other.conv2.weight.numpy()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        other.set_state_dict(trained.state_dict())
    report = {
        "trained": _accuracy(trained, data),
        "loaded": _accuracy(other, data),
        "untouched": bool((other.conv2.weight.numpy() == before).all()),
        "warnings": [" ".join(str(one.message).split()) for one in told],
    }
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
            f"| into the net it is from | | {report['trained']:.1%} |",
            f"| `set_state_dict` | no error; warned: {warned} | {report['loaded']:.1%} |",
            f"| here | {report.get('refused', 'no error')} | |",
        ]
    )


def partly_verdict(report: Mapping[str, Any]) -> str:
    if not report["untouched"]:
        return "Confirmed: it is loaded whatever its shape."
    here = "refused, with the difference" if "refused" in report else "no error either"
    return (
        f"Refuted: loaded in part, with {len(report['warnings'])} warning(s) and no error, and the "
        f"accuracy goes from {report['trained']:.1%} to {report['loaded']:.1%}; here {here}."
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
        settings=IMAGES,
        uses=(_trained, _accuracy, _loaded, _both),
    ),
    Shown(
        "partly",
        "saving, loading and incremental training in Fluid",
        "weights are loaded into the net that is there",
        "the weights of a short training, into a net whose second convolution has another shape; "
        "by `set_state_dict`, Fluid's own calls being gone from Paddle",
        partly,
        partly_table,
        partly_verdict,
        settings=IMAGES,
        uses=(_trained, _accuracy),
    ),
)

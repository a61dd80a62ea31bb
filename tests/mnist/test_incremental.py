"""A net that continues with other data: softened first, and what it forgets."""

import json

import numpy as np
import paddle
import pytest
from fit_rows import train
from small_nets import Points

from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.incremental import Incremental

ROW = "SGD with clipping"


class Renamed(Points):
    """The same points, with each class under the next one's name."""

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point, (label + 1) % 3


def test_incremental_softens_a_net_that_is_wrong_about_new_data(tmp_path, lines):
    """Its predictions stay; what it could before is stored beside what it can now."""
    source = train(ROW, tmp_path / "source", epochs=40)
    trained = load(source.weights)
    options = {"incremental_from": str(source.weights.parent), "epochs": 1}
    for folder, data, factor in (("same", Points(), 1), ("renamed", Renamed(), 10)):
        splits = {"train": data, "valid": {"new": data, "old": Points()}, "monitor": "new/loss"}
        result = train(ROW, tmp_path / folder, callbacks=[Incremental("2")], **splits, **options)
        first = load(tmp_path / folder / "checkpoints/model_epoch0_step0.pdparams")
        assert first["0.weight"].tolist() == trained["0.weight"].tolist()
        for name in ("2.weight", "2.bias"):
            np.testing.assert_allclose(trained[name], first[name] * factor, 1e-6)
        values = json.loads((tmp_path / folder / "result.json").read_text())
        before = source.metrics["valid/acc"]
        assert values["metrics_before"]["old/acc"] == before
        lost = max(0, before - result.metrics["old/acc"])
        assert values["lost"].get("old/acc", 0) == pytest.approx(lost)
    assert len([line for line in lines() if "divided by 10" in line]) == 1
    with pytest.raises(ConfigError, match=r"soften: unknown name '3'"):
        train(ROW, tmp_path / "new", callbacks=[Incremental("3")], **options)
    batches = paddle.io.DataLoader(Points(), batch_size=8)
    with pytest.raises(ConfigError, match=r"soften reads the first training batches twice"):
        train(ROW, tmp_path / "new", callbacks=[Incremental("2")], train=batches, **options)


def test_init_from_a_net_that_is_sure_of_other_digits_is_softened_or_warns(tool, tmp_path):
    """Else its features become zero for every image, and do not come back."""
    options = ["--figures", "false", "--visualdl", "false", "--watch", "0", "--output"]
    tool("train", "--recipe", "digits", "--data", "digits#0-4", "--epochs", 3, *options, "old")
    start = ["--data", "digits", "--recipe", "default", "--epochs", 1, "--init_from", "old"]
    softened = tool("train", *start, *options, "softened").stdout
    assert "the outputs of fc are divided by 10" in softened and "guessing" not in softened
    warned = tool("train", *start, "--soften", "false", *options, "warned").stdout
    assert "divided by" not in warned
    assert (
        warned.count("where guessing gives 2.303: the net in old is confident in wrong answers")
        == 1
    )
    accuracies = [
        json.loads((tmp_path / run / "result.json").read_text())["eval_acc"]
        for run in ("softened", "warned")
    ]
    assert accuracies[0] > accuracies[1]

"""Exporting any net: the engine knows no digits."""

import json
import shutil

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_mnist.errors import CheckpointError, ConfigError, DataError
from paddle_mnist.inference.export import export_layer
from paddle_mnist.inference.exported import Input, Signature
from paddle_mnist.inference.predictor import Predictor

SIGNATURE = Signature((Input("tokens", "int64", (5,)),), ("embedded", "scores"))
TOKENS = np.arange(20).reshape(4, 5) % 7


class Scores(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.linear = nn.Linear(15, 2)

    def forward(self, tokens):
        embedded = self.embedding(tokens)
        return [embedded, self.linear(paddle.flatten(embedded, 1))]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    export_layer(Scores(), folder, SIGNATURE, [TOKENS])
    return folder


def edit(folder, **changes):
    path = folder / "about.json"
    about = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in about.items() if value is not None}))


def test_export_layer_any_net_predicts_its_outputs(tmp_path):
    net = Scores()
    about = export_layer(net, tmp_path, SIGNATURE, [TOKENS], about={"weights": "mine"})
    assert about["weights"] == "mine" and about["difference"] < 1e-6
    assert about["input"] == {"name": "tokens", "dtype": "int64", "shape": [-1, 5]}
    assert about["output_shapes"] == {"embedded": [-1, 5, 3], "scores": [-1, 2]}
    predictor = Predictor(tmp_path, batch_size=3)
    assert predictor.output_shapes == {"embedded": (5, 3), "scores": (2,)}
    outputs = predictor.run(TOKENS)
    for name, expected in zip(SIGNATURE.outputs, net(paddle.to_tensor(TOKENS))):
        np.testing.assert_allclose(outputs[name], expected.numpy(), rtol=0, atol=1e-6)
    assert list(predictor.run(TOKENS, ["scores"])) == ["scores"]


def test_predictor_of_version_0_1_reads_it_without_output_shapes(exported, tmp_path):
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    edit(tmp_path, output_shapes=None)
    assert Predictor(tmp_path).run(TOKENS)["scores"].shape == (4, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"output_shapes": {"embedded": [-1, 5, 3], "scores": [-1, 3]}},
        {"outputs": ["scores", "embedded"]},
        {"input": {"name": "tokens", "dtype": "nonsense", "shape": [-1, 5]}},
        {"input": {"name": "tokens", "dtype": "int64", "shape": [-1, -1]}},
        {"input": {"name": "words", "dtype": "int64", "shape": [-1, 5]}},
        {"inputs": [{"name": "tokens", "dtype": "int64", "shape": [-1, 5]}] * 2},
    ],
)
def test_predictor_about_of_another_model_raises(exported, tmp_path, changes):
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    edit(tmp_path, **changes)
    with pytest.raises(CheckpointError, match="export again"):
        Predictor(tmp_path)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (TOKENS[0], r"int64 \[5\]; expected int64 \[N, 5\]"),
        (TOKENS[:0], "at least 1"),
        (TOKENS.astype("int32"), "int32"),
        ([[1, 2], [3]], "no array"),
    ],
)
def test_predictor_wrong_inputs_raises(exported, inputs, message):
    with pytest.raises(DataError, match=message):
        Predictor(exported).run(inputs)


def test_export_layer_unknown_format_raises(tmp_path):
    with pytest.raises(ConfigError, match="expected paddle or onnx"):
        export_layer(Scores(), tmp_path, SIGNATURE, [TOKENS], format="torch")
    assert not list(tmp_path.iterdir())

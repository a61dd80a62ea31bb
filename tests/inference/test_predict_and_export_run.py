"""Predicting with nets that `fit` has trained, and exporting them."""

import collections
import json

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.static import InputSpec
from small_nets import WIDTH, Points, TwoHeads, perceptron, with_dropout

from paddle_mnist import (
    DigitPredictor,
    Figures,
    VisualDL,
    export_run,
    fit,
    load_model,
    predict_run,
)
from paddle_mnist.errors import CheckpointError, ConfigError, DataError
from paddle_mnist.inference.predictor import Predictor

POINTS = Points().points


class Named(nn.Layer):
    """The net of two heads, with its outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.heads = TwoHeads()

    def forward(self, points):
        classes, total = self.heads(points)
        return {"classes": classes, "total": total}


class Flagged(nn.Layer):
    """A net with an output of truth values."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)

    def forward(self, points):
        outputs = self.linear(points)
        return outputs, outputs > 0


class PointsAndWords(nn.Layer):
    """A net of two inputs."""

    def __init__(self):
        super().__init__()
        self.points, self.words = nn.Linear(WIDTH, 4), nn.Embedding(7, 4)

    def forward(self, points, words):
        return self.points(points) * self.words(words).sum(axis=1)


WORDS = np.arange(len(POINTS) * 5).reshape(-1, 5) % 7
SPECS = [InputSpec([None, WIDTH], "float32", "points"), InputSpec([None, 5], "int64", "words")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`saved(NET, *INPUTS)` gives the path of new weights, and the outputs in evaluation mode."""

    def save(make, *inputs):
        model = make()
        model.eval()
        path = tmp_path_factory.mktemp("weights") / "net.pdparams"
        paddle.save(model.state_dict(), str(path))
        with paddle.no_grad():
            return path, model(*map(paddle.to_tensor, inputs))

    return save


@pytest.fixture(scope="module")
def weights(saved):
    path, _ = saved(with_dropout, POINTS)
    return path


def assert_close(values, expected):
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5)


# ------------------------------------------------------------------ predict


def ready(*batches):
    """Return a function that yields these batches, each time that it is called."""
    return lambda: iter(batches)


def test_predict_run_any_data_gives_outputs_in_its_order(saved):
    """The last batch, of one sample, too; whatever the data are."""
    path, expected = saved(with_dropout, POINTS)
    for data in (
        Points(),
        paddle.io.DataLoader(Points(), batch_size=9),
        [*POINTS],  # a list is a dataset of samples
        ready(POINTS),
        ready((POINTS[:20], None), (POINTS[20:], None)),
    ):
        outputs = predict_run(path, with_dropout, data)
        assert isinstance(outputs, np.ndarray)
        assert_close(outputs, expected)


def test_predict_run_several_outputs_keep_their_structure(run_of_fit):
    model = load_model(run_of_fit, perceptron)
    Pair = collections.namedtuple("Pair", "best all")

    def forward(model, batch):
        return {"a": Pair(batch["point"], [model(batch["point"])])}

    data = Points(target="dict")
    options = {"run": run_of_fit, "batch_size": 5, "forward": forward}
    outputs = predict_run("latest", perceptron, data, **options)
    assert list(outputs) == ["a"] and outputs["a"].best.tolist() == POINTS.tolist()
    assert_close(outputs["a"].all[0], model(paddle.to_tensor(POINTS)))


def test_predict_run_net_that_draws_numbers_repeats_its_predictions(weights):
    outputs = []
    for seed, num_workers in ((1, 0), (2, 0), (2, 2)):
        paddle.seed(seed)
        options = {"num_workers": num_workers, "forward": lambda _, batch: paddle.rand([33, 1])}
        outputs.append(predict_run(weights, with_dropout, Points(), batch_size=33, **options))
    assert (outputs[0] == outputs[1]).all() and (outputs[0] == outputs[2]).all()


class Cut(nn.Layer):
    """A net that also computes without its second input."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, words, lengths=None):
        hidden = self.words(words)
        if lengths is not None:
            hidden = hidden * (paddle.arange(5) < lengths.unsqueeze(1)).unsqueeze(-1).astype(
                "float32"
            )
        return self.out(hidden.sum(axis=1))


def test_predict_run_without_labels_takes_the_inputs_of_the_training(tmp_path):
    samples = [(words, 1 + words[0] % 5, words[1] % 3) for words in WORDS]
    fit(
        Cut,
        samples,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: paddle.optimizer.SGD(0.1, parameters),
        epochs=1,
        output=tmp_path,
        callbacks=[Figures(draw=False), VisualDL(())],
    )
    expected = predict_run(tmp_path, Cut, samples)
    unlabelled = [sample[:2] for sample in samples]
    for name in (tmp_path, tmp_path / "model.pdparams"):
        assert (predict_run(name, Cut, unlabelled) == expected).all()
    for wrong in ([*WORDS], [(*sample, 0) for sample in samples]):
        with pytest.raises(DataError, match=r"trained with 2 inputs.*give forward"):
            predict_run(tmp_path, Cut, wrong)


def test_predict_run_wrong_data_raises(weights):
    for data, forward, message in (
        (Points(target="dict"), None, "a batch is a dict; expected the input"),
        (Points(), lambda model, batch: model(batch[0]).sum(), "without an axis for the samples"),
        (Points(), lambda model, batch: 3, "an output of the model is a int"),
        ([], None, "have no batches"),
        (
            ready(*([np.zeros([2, length, WIDTH], "float32")] for length in (3, 5, 5))),
            None,
            r"outputs of batch 2 are float32 \[2, 5, 3\], .* \[2, 3, 3\]; expected .* pad them",
        ),
        (
            ready(POINTS[:8], POINTS[8:]),
            lambda model, batch: [model(batch)] * (9 - len(batch)),
            "outputs of batch 2 are ",
        ),
    ):
        with pytest.raises(DataError, match=message):
            predict_run(weights, with_dropout, data, forward=forward)


# ------------------------------------------------------------------ export


def test_export_run_computes_as_the_net(saved, tmp_path):
    path, expected = saved(with_dropout, POINTS)
    spec = InputSpec([None, WIDTH], "float32", "point")
    about = export_run(path, with_dropout, tmp_path, spec)
    assert about["input"] == {"name": "point", "dtype": "float32", "shape": [-1, WIDTH]}
    assert about["outputs"] == ["output"] and about["weights"] == str(path)
    assert about["output_shapes"] == {"output": [-1, 3]} and about["difference"] < 1e-5
    predictor = Predictor(tmp_path, batch_size=8)
    assert predictor.output_shapes == {"output": (3,)}
    assert_close(predictor.run(POINTS)["output"], expected)


def test_export_run_names_several_outputs(saved, tmp_path):
    for model, options, names in (
        (TwoHeads, {}, ["output0", "output1"]),
        (TwoHeads, {"outputs": ["c", "t"]}, ["c", "t"]),
        (Named, {}, ["classes", "total"]),
        (Flagged, {"outputs": ["scores", "is_positive"]}, ["scores", "is_positive"]),
    ):
        path, expected = saved(model, POINTS)
        export_run(path, model, tmp_path / names[0], POINTS[:3], **options)
        predictor = Predictor(tmp_path / names[0])
        outputs = predictor.run(POINTS)
        assert list(outputs) == names and [*predictor.run(POINTS, names[1:])] == names[1:]
        for number, value in enumerate(outputs.values()):
            assert_close(value, expected[names[number] if model is Named else number])


def test_export_run_names_several_inputs(saved, tmp_path):
    path, expected = saved(PointsAndWords, POINTS, WORDS)
    assert_close(predict_run(path, PointsAndWords, ready((POINTS, WORDS, None))), expected)
    for inputs, names in (
        ([POINTS, WORDS], ["input0", "input1"]),
        (SPECS, ["points", "words"]),
    ):
        about = export_run(path, PointsAndWords, tmp_path, inputs)
        assert [spec["name"] for spec in about["inputs"]] == names and "input" not in about
        predictor = Predictor(tmp_path, batch_size=8)
        for given in ((POINTS, WORDS), dict(zip(reversed(names), (WORDS, POINTS)))):
            assert_close(predictor.run(given)["output"], expected)
    for inputs, message in (
        ({"points": POINTS, "word": WORDS}, "points, words"),
        ((WORDS, POINTS), r"points is int64 \[33, 5\]"),
        ((POINTS, WORDS[1:]), "33, 32 samples"),
    ):
        with pytest.raises(DataError, match=message):
            predictor.run(inputs)


class AnyLength(nn.Layer):
    """A net of texts of any length, with an output for each word and one for the text."""

    def __init__(self):
        super().__init__()
        self.words, self.gru, self.out = nn.Embedding(7, 4), nn.GRU(4, 4), nn.Linear(4, 3)

    def forward(self, words, lengths=None):
        outputs, last = self.gru(self.words(words), sequence_length=lengths)
        return outputs, self.out(last[0])


def any_length(form, saved, folder, lengths):
    """Export a net for texts of any length, and compare it with the net for two lengths."""
    specs = [InputSpec([None, None], "int64", "words"), InputSpec([None], "int64", "lengths")]
    inputs = [(WORDS, *lengths), (WORDS[:, :4], *lengths)]
    path, _ = saved(AnyLength, *inputs[0])
    about = export_run(
        path, AnyLength, folder, specs[: len(inputs[0])], format=form, outputs=["states", "text"]
    )
    described = about["inputs"] if lengths else [about["input"]]
    assert [spec["shape"] for spec in described] == [[-1, -1], [-1]][: len(inputs[0])]
    assert about["output_shapes"] == {"states": [-1, -1, 4], "text": [-1, 3]}
    predictor, model = Predictor(folder, batch_size=8), load_model(path, AnyLength)
    assert predictor.output_shapes == {"states": (-1, 4), "text": (3,)}
    for batch in inputs:
        computed = predictor.run(batch if lengths else batch[0])
        for value, expected in zip(computed.values(), model(*map(paddle.to_tensor, batch))):
            assert_close(value, expected)
    for words, shape in ((WORDS[:, :, np.newaxis], r"\[33, 5, 1\]"), (WORDS[:, :0], r"\[33, 0\]")):
        with pytest.raises(DataError, match=rf"int64 {shape}; expected int64 \[N, -1\]"):
            predictor.run((words, *lengths) if lengths else words)


def test_export_run_for_any_length_computes_as_the_net(saved, tmp_path):
    any_length("paddle", saved, tmp_path, [np.arange(len(WORDS)) % 4 + 1])


def test_export_run_to_onnx_computes_as_the_net(saved, tmp_path):
    pytest.importorskip("paddle2onnx", reason="needs the extra onnx")
    path, expected = saved(PointsAndWords, POINTS, WORDS)
    export_run(path, PointsAndWords, tmp_path, SPECS, format="onnx")
    assert_close(Predictor(tmp_path, batch_size=8).run((POINTS, WORDS))["output"], expected)


def test_export_run_to_onnx_for_any_length_computes_as_the_net(saved, tmp_path):
    pytest.importorskip("paddle2onnx", reason="needs the extra onnx")
    any_length("onnx", saved, tmp_path, [])  # Paddle2ONNX drops `sequence_length`


def test_export_run_wrong_inputs_raises(weights, tmp_path):
    for inputs, options, message in (
        (InputSpec([None, 0], "float32"), {}, "and positive sizes"),
        (InputSpec([None, None], "float32"), {}, r"the batch is \[float32 \[4, 32\]\]$"),
        (InputSpec([8, WIDTH], "float32"), {}, "None"),
        (np.float32(3), {}, "expected a batch of samples"),
        (POINTS[:, 1:], {}, r"^the model fails with .*; the batch is \[float32 \[33, 5\]\]$"),
        (InputSpec([None, 2], "float32"), {}, r"the batch is \[float32 \[4, 2\]\]$"),
        ([POINTS, POINTS], {}, "the model fails with TypeError"),
        (POINTS, {"outputs": ["a", "b"]}, "expected 1 different names"),
        ([POINTS, SPECS[0]], {}, r"the batch is \[float32 \[33, 6\], float32 \[4, 6\]\]$"),
        ([], {}, "expected at least one"),
        (POINTS, {"format": "torch"}, "expected paddle or onnx"),
    ):
        with pytest.raises(ConfigError, match=message):
            export_run(weights, with_dropout, tmp_path, inputs, **options)
        assert not list(tmp_path.iterdir())


def test_predictor_wrong_input_or_description_raises(weights, tmp_path):
    about = export_run(weights, with_dropout, tmp_path, POINTS)
    predictor = Predictor(tmp_path)
    for inputs, message in (
        (POINTS[0], r"float32 \[6\]; expected float32 \[N, 6\]"),
        (POINTS[:0], "at least 1"),
        (POINTS.astype("int32"), "int32"),
        ([[1, 2], [3]], "not an array"),
    ):
        with pytest.raises(DataError, match=message):
            predictor.run(inputs)
    with pytest.raises(CheckpointError, match=r"takes float32 \[N, 6\] and gives outputs of"):
        DigitPredictor(tmp_path)
    for changes in (
        {"output_shapes": {"output": [-1, 4]}},
        {"output_shapes": None},
        {"outputs": ["scores", "more"]},
        {"outputs": []},
        {"outputs": "output"},
        {"files": {"model.onnx": "", "inference.json": ""}},
        {"input": {**about["input"], "dtype": "nonsense"}},
        {"input": {**about["input"], "shape": [-1, 0]}},
        {"input": {**about["input"], "name": "words"}},
    ):
        (tmp_path / "about.json").write_text(json.dumps({**about, **changes}))
        with pytest.raises(CheckpointError, match="export again"):
            Predictor(tmp_path)

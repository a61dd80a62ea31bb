"""Predicting with what `fit` has trained, and exporting it."""

import collections
import json

import numpy as np
import paddle
import pytest
from fit_rows import ROWS, WIDTH, Points, perceptron, train
from paddle import nn
from paddle.static import InputSpec

from paddle_mnist import DigitPredictor, export_run, load_model, predict_run
from paddle_mnist.errors import CheckpointError, ConfigError, DataError
from paddle_mnist.inference.predictor import Predictor

POINTS = Points().points
MODELS = {row: ROWS[row].get("model", perceptron) for row in ROWS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the run of a row, trained when it is first asked for."""
    folder, trained = tmp_path_factory.mktemp("runs"), {}

    def run(row):
        if row not in trained:
            trained[row] = train(row, folder / row).weights.parent
        return trained[row]

    return run


def computed(run, row, *inputs):
    """Return what the net computes of all samples at once, in evaluation mode."""
    model = load_model(run, MODELS[row])
    assert not any(layer.training for layer in model.sublayers(include_self=True))
    with paddle.no_grad():
        return model(*map(paddle.to_tensor, inputs))


# ------------------------------------------------------------------ predict


def ready(*batches):
    """Return a function that yields these batches, each time that it is called."""
    return lambda: iter(batches)


@pytest.mark.parametrize("row", ["dropout", "LSTM"])
def test_predict_run_any_data_gives_outputs_in_its_order(row, runs):
    """The last batch, of one sample, too; whatever the data are."""
    expected = computed(runs(row), row, POINTS).numpy()
    for data in (
        Points(),
        paddle.io.DataLoader(Points(), batch_size=9),
        [*POINTS],  # a list is a dataset of samples
        ready(POINTS),
        ready((POINTS[:20], None), (POINTS[20:], None)),
    ):
        outputs = predict_run(runs(row), MODELS[row], data)
        assert isinstance(outputs, np.ndarray) and outputs.shape == expected.shape
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)


def test_predict_run_several_outputs_keep_their_structure(runs):
    run, data = runs("dict batches"), Points(target="dict")
    classes, totals = computed(run, "dict batches", POINTS)
    Pair = collections.namedtuple("Pair", "best all")

    def forward(model, batch):
        return {"a": Pair(batch["point"], [*model(batch["point"])])}

    named = predict_run(
        "latest", MODELS["dict batches"], data, run=run, batch_size=5, forward=forward
    )
    assert list(named) == ["a"] and named["a"].best.tolist() == POINTS.tolist()
    np.testing.assert_allclose(named["a"].all[0], classes.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(named["a"].all[1], totals.numpy(), rtol=1e-5, atol=1e-5)


class Noisy(nn.Layer):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, 3)

    def forward(self, points):
        return self.fc(points) + paddle.rand([len(points), 3])


def test_predict_run_net_that_draws_numbers_repeats_its_predictions(tmp_path):
    train("SGD with clipping", tmp_path, model=Noisy)
    outputs = []
    for seed, num_workers in ((1, 0), (2, 0), (2, 2)):
        paddle.seed(seed)
        outputs.append(predict_run(tmp_path, Noisy, Points(), num_workers=num_workers).tolist())
    assert outputs == outputs[:1] * 3


def test_predict_run_wrong_data_raises(runs):
    for data, forward, message in (
        (Points(target="dict"), None, "a batch is a dict; expected the input"),
        (Points(), lambda model, batch: model(batch[0]).sum(), "without an axis for the samples"),
        (Points(), lambda model, batch: 3, "an output of the model is a int"),
        ([], None, "have no batches"),
    ):
        with pytest.raises(DataError, match=message):
            predict_run(runs("dropout"), MODELS["dropout"], data, forward=forward)


# ------------------------------------------------------------------ export


@pytest.mark.parametrize("row", ["dropout", "LSTM"])
def test_export_run_computes_as_the_net(row, runs, tmp_path):
    spec = InputSpec([None, WIDTH], "float32", "point")
    about = export_run(runs(row), MODELS[row], tmp_path, spec)
    assert about["input"] == {"name": "point", "dtype": "float32", "shape": [-1, WIDTH]}
    assert about["outputs"] == ["output"] and about["weights"] == str(runs(row))
    expected = computed(runs(row), row, POINTS).numpy()
    assert about["output_shapes"] == {"output": [-1, 3]} and about["difference"] < 1e-5
    predictor = Predictor(tmp_path, batch_size=8)
    assert predictor.output_shapes == {"output": (3,)}
    outputs = predictor.run(POINTS)["output"]
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)


class Named(nn.Layer):
    """The net of two heads, with its outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.heads = MODELS["dict batches"]()

    def forward(self, points):
        classes, total = self.heads(points)
        return {"classes": classes, "total": total}


def test_export_run_several_outputs_are_named(runs, tmp_path):
    run, model = runs("dict batches"), MODELS["dict batches"]
    expected = [value.numpy() for value in computed(run, "dict batches", POINTS)]
    named = Named()
    load_model(run, named.heads)
    paddle.save(named.state_dict(), str(tmp_path / "named.pdparams"))
    calls = {
        "usual": ((run, model), {}, ["output0", "output1"]),
        "chosen": ((run, model), {"outputs": ["c", "t"]}, ["c", "t"]),
        "dict": ((tmp_path / "named.pdparams", Named), {}, ["classes", "total"]),
    }
    for name, (places, options, names) in calls.items():
        export_run(*places, tmp_path / name, POINTS[:3], **options)
        outputs = Predictor(tmp_path / name).run(POINTS)
        assert list(outputs) == names
        assert [*Predictor(tmp_path / name).run(POINTS, names[1:])] == names[1:]
        for value, other in zip(outputs.values(), expected):
            np.testing.assert_allclose(value, other, rtol=0, atol=1e-5)


class PointsAndWords(nn.Layer):
    def __init__(self):
        super().__init__()
        self.points, self.words = nn.Linear(WIDTH, 4), nn.Embedding(7, 4)

    def forward(self, points, words):
        return self.points(points) * self.words(words).sum(axis=1)


WORDS = np.arange(len(POINTS) * 5).reshape(-1, 5) % 7
SPECS = [InputSpec([None, WIDTH], "float32", "points"), InputSpec([None, 5], "int64", "words")]


def test_export_run_several_inputs_are_named(tmp_path):
    net, weights = PointsAndWords(), str(tmp_path / "net.pdparams")
    paddle.save(net.state_dict(), weights)
    expected = net(paddle.to_tensor(POINTS), paddle.to_tensor(WORDS)).numpy()
    predicted = predict_run(weights, PointsAndWords, ready((POINTS, WORDS, None)))
    np.testing.assert_allclose(predicted, expected, rtol=0, atol=1e-5)
    for form, inputs, names in (
        ("paddle", SPECS, ["points", "words"]),
        ("paddle", [POINTS, WORDS], ["input0", "input1"]),
        ("onnx", SPECS, ["points", "words"]),
    ):
        if form == "onnx":
            pytest.importorskip("paddle2onnx", reason="needs the extra onnx")
        about = export_run(weights, PointsAndWords, tmp_path / form, inputs, format=form)
        assert [one["name"] for one in about["inputs"]] == names and "input" not in about
        predictor = Predictor(tmp_path / form, batch_size=8)
        for given in ((POINTS, WORDS), dict(zip(reversed(names), (WORDS, POINTS)))):
            outputs = predictor.run(given)["output"]
            np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)
    for inputs, message in (
        ({"points": POINTS, "word": WORDS}, "points, words"),
        ((WORDS, POINTS), r"points is int64 \[33, 5\]"),
        ((POINTS, WORDS[1:]), "33, 32 samples"),
    ):
        with pytest.raises(DataError, match=message):
            predictor.run(inputs)


def test_export_run_wrong_inputs_raises(runs, tmp_path):
    for inputs, options, message in (
        (InputSpec([None, None], "float32"), {}, "None"),
        (InputSpec([8, WIDTH], "float32"), {}, "None"),
        (np.float32(3), {}, "expected a batch of samples"),
        (POINTS[:, 1:], {}, r"^the model fails with .*; the batch is \[float32 \[33, 5\]\]$"),
        (InputSpec([None, 2], "float32"), {}, r"the batch is \[float32 \[4, 2\]\]$"),
        ([POINTS, POINTS], {}, "the model fails with TypeError"),
        (POINTS, {"outputs": ["a", "b"]}, "expected 1 different names"),
        (POINTS, {"format": "torch"}, "expected paddle or onnx"),
    ):
        with pytest.raises(ConfigError, match=message):
            export_run(runs("dropout"), MODELS["dropout"], tmp_path, inputs, **options)
        assert not list(tmp_path.iterdir())


def changed(folder, about, **changes):
    """Return the folder, whose about.json has other values."""
    (folder / "about.json").write_text(json.dumps({**about, **changes}))
    return folder


def test_predictor_of_a_folder_with_another_description_raises(runs, tmp_path):
    about = export_run(runs("dropout"), MODELS["dropout"], tmp_path, POINTS)
    former = {name: value for name, value in about.items() if name != "output_shapes"}
    assert Predictor(changed(tmp_path, former)).run(POINTS)["output"].shape == (33, 3)
    for changes in (
        {"output_shapes": {"output": [-1, 4]}},
        {"outputs": ["scores", "more"]},
        {"input": {**about["input"], "dtype": "nonsense"}},
        {"input": {**about["input"], "shape": [-1, -1]}},
        {"input": {**about["input"], "name": "words"}},
    ):
        with pytest.raises(CheckpointError, match="export again"):
            Predictor(changed(tmp_path, about, **changes))


def test_predictor_wrong_input_raises(runs, tmp_path):
    export_run(runs("dropout"), MODELS["dropout"], tmp_path, POINTS)
    predictor = Predictor(tmp_path)
    for inputs, message in (
        (POINTS[0], r"float32 \[6\]; expected float32 \[N, 6\]"),
        (POINTS[:0], "at least 1"),
        (POINTS.astype("int32"), "int32"),
        ([[1, 2], [3]], "no array"),
    ):
        with pytest.raises(DataError, match=message):
            predictor.run(inputs)


def test_digit_predictor_of_another_net_raises(runs, tmp_path):
    export_run(runs("dropout"), MODELS["dropout"], tmp_path, POINTS)
    with pytest.raises(CheckpointError, match=r"takes float32 \[N, 6\] and gives outputs of"):
        DigitPredictor(tmp_path)

"""Exported models: the same outputs in each engine; and what is refused."""

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle
import pytest
from conftest import ROOT

from paddle_mnist import MNIST, MnistDataset, evaluate
from paddle_mnist.commands.export_model import main as export_command
from paddle_mnist.errors import CheckpointError, ConfigError, DataError, DeviceError, OutputError
from paddle_mnist.mnist import pretrained
from paddle_mnist.mnist.export import OUTPUTS, ExportedModel, export_model, variables
from paddle_mnist.mnist.predictor import DigitPredictor, as_pixels


@pytest.fixture(scope="module")
def model():
    return MNIST(pretrained=True)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    export_model(model, folder, OUTPUTS)
    return folder


@pytest.fixture(scope="module")
def images():
    return np.random.RandomState(0).randint(0, 256, (300, 28, 28)).astype(np.uint8)


def outputs_of(model, images):
    with paddle.no_grad():
        return [value.numpy() for value in ExportedModel(model, OUTPUTS)(paddle.to_tensor(images))]


def test_pretrained_weights_are_those_of_their_manifest(model, real_data):
    about = pretrained.about()
    data = pretrained.WEIGHTS.read_bytes()
    assert hashlib.sha256(data).hexdigest() == about["sha256"] and len(data) < 100_000
    assert paddle.load(str(pretrained.WEIGHTS))["conv1.weight"].shape == [20, 1, 5, 5]
    evaluation = evaluate(model, MnistDataset("eval", real_data))
    assert evaluation.accuracy == pytest.approx(about["eval_acc"], abs=2e-4)
    assert evaluation.count == 10_000
    assert about["dataset"] == "mnist" and about["eval_acc"] > 0.99


def test_export_model_chosen_output_leaves_out_later_layers(model, tmp_path, exported):
    about = export_model(model, tmp_path, ["max_pool1"])
    assert about["outputs"] == ["max_pool1"] and about["difference"] < 1e-4
    parameters = tmp_path / "inference.pdiparams"
    assert parameters.stat().st_size < 5_000 < (exported / parameters.name).stat().st_size
    with pytest.raises(ConfigError, match="'logits', but the outputs of this model are max_pool1"):
        DigitPredictor(tmp_path).run(np.zeros([28, 28], np.uint8), ["logits"])


def test_as_pixels_any_form_gives_the_same_pixels(images):
    for form in (images[0], images[:1], images[:5], images[:5, np.newaxis]):
        expected = form.reshape(-1, 28, 28)
        for converted in (form, form.astype(np.float32) / 256, form / 256):
            assert np.array_equal(as_pixels(converted), expected), form.shape


def test_as_pixels_other_values_raises():
    for images, message in (
        (np.zeros((27, 28), np.uint8), r"uint8 \[27, 28\]; expected \[28, 28\]"),
        (np.zeros((0, 28, 28), np.uint8), "at least one"),
        (np.zeros((28, 28), np.int64), "int64"),
        (np.full((28, 28), 255.0), "to 255"),
        (np.full((28, 28), np.nan), "expected 0 to 1"),
        ("nonsense", "expected"),
    ):
        with pytest.raises(DataError, match=message):
            as_pixels(images)


def test_predictor_in_threads_answers_each_its_own(exported, images):
    predictor = DigitPredictor(exported, parallel=2)
    expected = predictor.run(images)["logits"]

    def ask(number):
        part = slice(number * 30, number * 30 + 30)
        for _ in range(5):
            answer = predictor.run(images[part], ["logits"])["logits"]
            np.testing.assert_allclose(answer, expected[part], rtol=0, atol=1e-5)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(8)))


def flip(folder):
    path = folder / "inference.pdiparams"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def name_files_elsewhere(folder):
    about = json.loads((folder / "about.json").read_text())
    about["files"] = {"../inference.json": "", "inference.pdiparams": ""}
    (folder / "about.json").write_text(json.dumps(about))


DAMAGE = {
    "no weights": lambda folder: (folder / "inference.pdiparams").unlink(),
    "a flipped bit": flip,
    "part of about.json": lambda folder: os.truncate(folder / "about.json", 100),
    "files elsewhere": name_files_elsewhere,
}


def test_predictor_of_a_path_that_is_not_utf_8_raises(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / os.fsdecode(b"caf\xe9"))
    with pytest.raises(ConfigError, match="only from a path in UTF-8; move it"):
        DigitPredictor(folder)


@pytest.mark.parametrize("damage", DAMAGE)
def test_predictor_damaged_export_raises(exported, tmp_path, damage):
    folder = shutil.copytree(exported, tmp_path / "exported")
    DAMAGE[damage](folder)
    with pytest.raises(CheckpointError):
        DigitPredictor(folder)


@pytest.mark.slow
def test_export_command_legacy_is_read_by_the_predictor(tmp_path, model, images):
    command = [sys.executable, str(ROOT / "tools/export_model.py"), "--legacy", "--output", "out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "inference.pdmodel" in names and "inference.json" not in names
    logits = DigitPredictor(tmp_path / "out").run(images[:10])["logits"]
    np.testing.assert_allclose(logits, outputs_of(model, images[:10])[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", ["paddle", "onnx"])
def test_export_model_any_format_gives_the_chosen_outputs(model, tmp_path, images, form, capsys):
    if form == "onnx":
        pytest.importorskip("paddle2onnx", reason="needs the extra onnx")
    chosen = [*reversed(OUTPUTS)]
    assert export_model(model, tmp_path, chosen, form)["outputs"] == chosen
    outputs = DigitPredictor(tmp_path, batch_size=128).run(images)
    assert list(outputs) == chosen
    assert ".export-" not in capsys.readouterr().out  # the temporary folder
    for name, expected in zip(OUTPUTS, outputs_of(model, images)):
        assert outputs[name].dtype == np.float32
        np.testing.assert_allclose(outputs[name], expected, rtol=0, atol=1e-4)


def test_export_model_that_fails_keeps_the_export_before(model, tmp_path, images):
    export_model(model, tmp_path, ["logits"])
    broken = MNIST()
    broken.fc.bias.set_value(np.full(10, np.nan, np.float32))
    with pytest.raises(CheckpointError, match="nothing is exported"):
        export_model(broken, tmp_path, ["logits"])
    assert np.isfinite(DigitPredictor(tmp_path).run(images[:2])["logits"]).all()


def test_export_model_that_cannot_be_written_names_the_cause(model, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        with pytest.raises(OutputError, match="File too large"):
            export_model(model, tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_variables_lists_three_kinds(model):
    kinds = variables(model)
    assert dict(kinds["parameters"])["conv2.weight"] == [20, 20, 5, 5]
    assert sum(np.prod(shape) for _, shape in kinds["parameters"]) == 20_350
    assert kinds["persistables"] == kinds["parameters"]
    assert dict(kinds["temporaries"])["max_pool2"] == [1, 20, 7, 7]


def test_export_model_onnx_without_its_packages_names_the_extra(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "paddle2onnx", None)
    with pytest.raises(DeviceError, match=r"pip install 'paddle_mnist\[onnx\]'"):
        export_model(model, tmp_path / "new", format="onnx")
    assert not list(tmp_path.iterdir())


def test_safetensors_hold_the_weights_for_programs_without_paddle(model, tmp_path, capsys):
    pytest.importorskip("safetensors", reason="needs the extra safetensors")
    assert export_command(["pretrained", str(tmp_path), "--format", "safetensors"]) == 0
    path = tmp_path / "model.safetensors"
    assert capsys.readouterr().out == f"{path}  {path.stat().st_size:,} bytes\n"
    data = path.read_bytes()  # as any language reads it
    size = int.from_bytes(data[:8], "little")
    header, arrays = json.loads(data[8 : 8 + size]), data[8 + size :]
    assert header.pop("__metadata__")["linear"] == "[in, out]"
    state = model.state_dict()
    assert header.keys() == state.keys()
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        array = np.frombuffer(arrays[first:end], "<f4").reshape(entry["shape"])
        assert entry["dtype"] == "F32" and np.array_equal(array, state[name].numpy())


@pytest.mark.parametrize(
    ("is_installed", "options", "code", "said"),
    [
        (False, [], 5, "pip install 'paddle_mnist[safetensors]'"),
        (True, ["--legacy"], 2, "leave out --legacy or --format safetensors"),
    ],
)
def test_safetensors_refused_in_one_line(
    is_installed, options, code, said, tmp_path, capsys, monkeypatch
):
    if not is_installed:
        monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    words = ["pretrained", str(tmp_path / "new"), "--format", "safetensors", *options]
    assert export_command(words) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()

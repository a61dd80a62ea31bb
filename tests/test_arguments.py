"""Values of NumPy, `range` and `pathlib` are taken wherever a number, a list or a string is."""

import inspect
import json
from pathlib import Path, PurePosixPath

import numpy as np
import paddle
import pytest
from fit_rows import Points, ProgramError, StopsAt, arguments, bits, stop, train, with_dropout
from paddle.nn import functional as F
from test_options import Entry

from paddle_mnist import (
    BatchLoader,
    MnistDataset,
    ResumableBatchSampler,
    evaluate_run,
    fit,
    load_data,
    load_model,
    predict_run,
    watch,
)
from paddle_mnist.errors import ConfigError
from paddle_mnist.options import plain
from paddle_mnist.training.arguments import FitArguments

# A value of each argument of `fit` that is a number, text or a list, in other forms. The options of
# its groups: test_options.py.
FIT = {
    "epochs": (3, np.int64(3), np.uint8(3), np.array(3)),
    "batch_size": (4, np.int64(4)),
    "seed": (7, np.int32(7)),
    "output": ("a/b", np.str_("a/b"), Path("a/b"), PurePosixPath("a/b"), Entry("a/b")),
    "name": ("net", np.str_("net")),
    "resume": ("a/b", Path("a/b"), Entry("a/b")),
    "fresh": (True, np.bool_(True)),
    "override": (("epochs", "seed"), ["epochs", "seed"], np.array(["epochs", "seed"])),
}


def fit_arguments(**given):
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(fit).parameters.items()
    }
    given = {"output": "run", "monitor": "valid/acc", **given}
    return FitArguments(**{**defaults, **arguments("SGD with clipping", **given)})


def test_arguments_of_fit_are_kept_as_plain_values():
    for name, (expected, *others) in FIT.items():
        for value in (expected, *others):
            kept = getattr(fit_arguments(**{name: value}), name)
            assert kept == expected and type(kept) is type(expected), (name, value)


def test_run_with_numpys_numbers_resumes_with_plain_ones(tmp_path):
    numpys = {
        "seed": np.int64(5),
        "epochs": np.array(2),
        "batch_size": np.uint8(8),
        "grad_shards": np.int32(2),
        "ema": np.float64(0.5),
        "save_every_steps": np.int64(3),
        "check_shape": range(2),
        "must_match": {"crop": np.int64(28), "sizes": np.arange(3), "list": Path("a/b")},
        "shuffle": np.bool_(True),
    }
    plains = {**{name: plain(value) for name, value in numpys.items()}, "check_shape": [0, 1]}
    whole = train("BatchNorm", tmp_path / "plain", **plains)
    with pytest.raises(ProgramError):
        train("BatchNorm", tmp_path / "run", callbacks=[StopsAt(7, stop)], **numpys)
    resumed = train("BatchNorm", tmp_path / "run", **plains)
    assert bits(resumed) == bits(whole)
    assert train("BatchNorm", tmp_path / "run", **numpys).stopped == "already finished"


def test_optimizer_with_equal_numbers_of_another_type_resumes(tmp_path):
    def adam(beta):
        return lambda parameters: paddle.optimizer.Adam(0.01, beta, parameters=parameters)

    train("dropout", tmp_path, optimizer=adam(np.float32(0.5)))
    assert train("dropout", tmp_path, optimizer=adam(0.5)).stopped == "already finished"
    with pytest.raises(ConfigError, match=r"optimizer.beta1: 0.5 .* 0.75"):
        train("dropout", tmp_path, optimizer=adam(np.float32(0.75)))


def test_other_functions_take_numpys_numbers(tiny, tmp_path):
    train("dropout", tmp_path)
    two = np.int64(2)
    dataset = MnistDataset("train", tiny, limit=np.int64(9))
    assert len(dataset) == 9
    images, _ = next(load_data(np.str_("train"), np.int64(4), tiny)())
    assert images.shape[0] == 4
    assert len(ResumableBatchSampler(Points(), batch_size=two, seed=np.int64(5))) == 17
    assert len(BatchLoader(dataset, np.int64(4), seed=np.uint8(5))) == 3
    options = {"loss": F.cross_entropy, "batch_size": two, "num_workers": np.int64(0)}
    assert evaluate_run(str(tmp_path), with_dropout, Points(), **options)
    outputs = predict_run("best", with_dropout, Points(), run=tmp_path, batch_size=two)
    assert outputs.shape == (33, 3)
    model = load_model(tmp_path, with_dropout)
    with watch(model, every=np.int64(1), what=["outputs"], patience=two) as watched:
        model(paddle.ones([2, 6]))
    assert json.dumps(watched.values)

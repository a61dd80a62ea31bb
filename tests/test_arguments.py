"""Values of NumPy, `range` and `pathlib` are taken wherever a number, a list or a string is."""

import inspect
import json
from pathlib import Path, PurePosixPath

import numpy as np
import paddle
import pytest
import yaml
from fit_rows import Points, ProgramError, StopsAt, arguments, bits, stop, train, with_dropout
from flat_options import FLAT
from hypothesis import given
from hypothesis import strategies as st
from paddle.nn import functional as F

import paddle_mnist
from paddle_mnist import (
    BatchLoader,
    MnistDataset,
    ResumableBatchSampler,
    TrainConfig,
    Trainer,
    evaluate_run,
    fit,
    load_data,
    load_model,
    options,
    predict_run,
    watch,
)
from paddle_mnist._arguments import accepts_numpy, plain
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.config import FLAT_OPTIONS
from paddle_mnist.training.arguments import GROUPS, FitArguments

NUMBERS = st.one_of(
    st.integers(-(2**31), 2**31 - 1).flatmap(
        lambda number: st.sampled_from([np.int32(number), np.int64(number), np.array(number)])
    ),
    st.booleans().map(np.bool_),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.floats().map(np.longdouble),
    st.text(max_size=4).map(np.str_),
)


@given(
    st.recursive(NUMBERS, lambda x: st.lists(x) | st.tuples(x, x) | st.dictionaries(st.text(), x))
)
def test_nothing_of_numpy_is_left(value):
    def check(converted):
        assert type(converted) in (bool, int, float, str, list, tuple, dict)
        if isinstance(converted, dict):
            converted = list(converted.values())
        for entry in converted if isinstance(converted, (list, tuple)) else ():
            check(entry)

    check(plain(value))
    assert plain(plain(value)) == plain(value) or "nan" in repr(value)
    json.dumps(plain(value))


class Entry:
    """A path that is no `pathlib.Path`, as `os.scandir` gives."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


def twins(value):
    """The forms in which a caller may have a plain value."""
    if isinstance(value, bool):
        return [np.bool_(value)]
    if isinstance(value, int):
        return [np.int64(value), np.uint8(value), np.array(value)]
    if isinstance(value, float):
        return [np.float64(value), np.float32(value), np.array(value)]
    if isinstance(value, str):
        return [np.str_(value)]
    numbers = [list(value), tuple(value), np.array(value)]
    return [*numbers, range(value[0], value[-1] + 1)] if isinstance(value[0], int) else numbers


# A value of each argument of `fit`, other than its default, that is a number, text or a list.
FIT = {
    "epochs": 3,
    "batch_size": 4,
    "seed": 7,
    "output": "folder",
    "name": "net",
    "monitor": "valid/acc",
    "mode": "max",
    "shuffle": False,
    "num_workers": 1,
    "drop_last": True,
    "steps_per_epoch": 2,
    "max_steps": 4,
    "eval_batch_size": 5,
    "schedule_every": "epoch",
    "accumulate": 2,
    "ema": 0.5,
    "amp": "O1",
    "deterministic": True,
    "fresh": True,
    "resume": "off",
    "override": ["epochs", "seed"],
    "init_from": "run",
    "init_partial": True,
    "incremental_from": "run",
    "soften": "fc",
    "save_at_start": False,
    "rehearse": False,
    "save_every_epochs": 2,
    "save_every_steps": 3,
    "save_every_seconds": 2.5,
    "save_on_exception": False,
    "keep_epochs": True,
    "keep_last": 2,
    "keep_every_minutes": 1.5,
    "keep_best": False,
    "keep_breakpoints": True,
    "break_lock_after": 90.5,
    "stop_signals": ["SIGUSR2"],
    "mirror": "elsewhere",
    "mirror_timeout": 5.5,
    "eval_every_epochs": 2,
    "eval_every_steps": 3,
    "early_stop_patience": 2,
    "early_stop_min_delta": 0.5,
    "log_every": 5,
    "watch": 2,
    "profile": 1,
    "check_shape": [1, 2],
    "check_content": [3, 4],
    "visualdl": ["scalars", "text"],
    "figures": True,
    "device": "cpu",
    "nprocs": 2,
    "gpus": "0,1",
    "grad_shards": 2,
    "hang_timeout": 8.5,
}
NEEDED = {
    "mode": {"monitor": "valid/acc"},
    "early_stop_min_delta": {"early_stop_patience": 2},
    "init_partial": {"init_from": "run"},
    "soften": {"incremental_from": "run"},
}
# Nets, data, functions, objects of this package's.
OTHERS = "model train valid optimizer loss metrics step state must_match callbacks".split()
WITHOUT_A_FLAT_NAME = ["name", "monitor", "mode", "fresh"]


def fit_arguments(**given):
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(fit).parameters.items()
    }
    given = {"output": "run", **given}
    return FitArguments(**{**defaults, **arguments("SGD with clipping", **given)})


def argument(name, given):
    """Return the value of an argument, or of an option of its groups, by its flat name."""
    built = fit_arguments(**given)
    if name in WITHOUT_A_FLAT_NAME:
        return getattr(built, name)
    return options.flat_values(built.groups)[name]


def test_every_argument_of_fit_is_in_the_table():
    own = options.flat_options([FitArguments])
    assert {*FIT} == {*own, *FLAT, *WITHOUT_A_FLAT_NAME}
    assert {*own, *WITHOUT_A_FLAT_NAME, *OTHERS, *GROUPS} == {*inspect.signature(fit).parameters}


@pytest.mark.parametrize("name", FIT)
def test_arguments_of_fit(name):
    needed = NEEDED.get(name, {})
    expected = argument(name, {name: FIT[name], **needed})
    assert list_if_tuple(expected) == FIT[name]
    for value in twins(FIT[name]):
        actual = argument(name, {name: value, **needed})
        assert actual == expected and type(actual) is type(expected)


def list_if_tuple(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", ["init_from", "incremental_from", "resume", "output"])
@pytest.mark.parametrize("kind", [Path, PurePosixPath, Entry])
def test_paths_of_fit(name, kind):
    assert argument(name, {name: kind("a/b")}) == "a/b"


CONFIG = {
    "data": "digits",
    "train_limit": 100,
    "eval_limit": 50,
    "shuffle": False,
    "num_workers": 1,
    "drop_last": True,
    "steps_per_epoch": 2,
    "max_steps": 4,
    "epochs": 3,
    "batch_size": 4,
    "seed": 7,
    "accumulate": 2,
    "schedule_every": "epoch",
    "deterministic": True,
    "label_smoothing": 0.25,
    "dropout": 0.25,
    "augment": ["rotate=10", "shift=2"],
    "ema": 0.5,
    "early_stop_patience": 2,
    "early_stop_min_delta": 0.5,
    "init_from": "run",
    "init_partial": True,
    "incremental_from": "run",
    "soften": "conv1",
    "replay_data": "digits",
    "replay_fraction": 0.5,
    "optimizer": "adam",
    "learning_rate": 0.5,
    "lr_schedule": "cosine",
    "end_lr": 0.0625,
    "momentum": 0.5,
    "weight_decay": 0.25,
    "weight_decay_layers": ["conv1", "fc"],
    "device": "cpu",
    "nprocs": 2,
    "gpus": "0,1",
    "amp": "O1",
    "fast_conv": "on",
    "threads": 2,
    "grad_shards": 2,
    "output": "folder",
    "resume": "off",
    "override": ["epochs", "seed"],
    "save_every_epochs": 2,
    "save_every_steps": 3,
    "save_every_seconds": 2.5,
    "keep_epochs": False,
    "keep_last": 2,
    "keep_every_minutes": 1.5,
    "keep_best": False,
    "keep_breakpoints": False,
    "break_lock_after": 90.5,
    "stop_signals": ["SIGUSR2"],
    "mirror": "elsewhere",
    "mirror_timeout": 5.5,
    "save_on_exception": False,
    "save_at_start": False,
    "rehearse": False,
    "max_restarts": 1,
    "hang_timeout": 8.5,
    "eval_every_epochs": 2,
    "eval_every_steps": 3,
    "eval_batch_size": 5,
    "final_split": "valid",
    "log_every": 5,
    "visualdl": ["scalars", "text"],
    "figures": False,
    "watch": 2,
    "check_shape": [1, 2],
    "check_content": [3, 4],
    "profile": 1,
}


def test_every_field_of_the_configuration_is_in_the_table():
    assert {*CONFIG} == {*FLAT_OPTIONS}


@pytest.mark.parametrize("name", CONFIG)
def test_fields_of_the_configuration(name):
    needed = NEEDED.get(name, {})
    expected = TrainConfig(**{name: CONFIG[name]}, **needed)
    for value in twins(CONFIG[name]):
        config = TrainConfig(**{name: value}, **needed)
        assert config == expected and hash(config) == hash(expected)
        assert yaml.safe_load(config.as_yaml()) == expected.as_dict()
    assert list_if_tuple(expected.options[name]) == CONFIG[name]
    assert TrainConfig.from_mapping(yaml.safe_load(expected.as_yaml())) == expected


@pytest.mark.parametrize("name", ["data", "replay_data", "init_from", "incremental_from", "output"])
@pytest.mark.parametrize("kind", [Path, PurePosixPath, Entry])
def test_paths_of_the_configuration(name, kind):
    assert TrainConfig(**{name: kind("a/b")}).options[name] == "a/b"


@pytest.mark.parametrize("build", [TrainConfig, fit_arguments])
@pytest.mark.parametrize(
    "wrong",
    [{"epochs": np.float64(2.5)}, {"epochs": np.bool_(True)}, {"seed": np.int64(-1)}],
    ids=str,
)
def test_what_is_wrong_is_wrong_as_numpys_too(build, wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"{name} is {wrong[name].item()!r}; "):
        build(**wrong)


def test_a_run_with_numpys_numbers_resumes_with_plain_ones(tmp_path):
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

    def config(run):
        return (tmp_path / run / "config.yaml").read_text().replace(str(tmp_path / run), "")

    assert config("run") == config("plain")


def test_optimizers_numbers_are_compared_whatever_their_type(tmp_path):
    def adam(beta):
        return lambda parameters: paddle.optimizer.Adam(0.01, beta, parameters=parameters)

    train("dropout", tmp_path, optimizer=adam(np.float32(0.5)))
    assert train("dropout", tmp_path, optimizer=adam(0.5)).stopped == "already finished"
    with pytest.raises(ConfigError, match=r"optimizer.beta1: 0.5 in the run, 0.75 now"):
        train("dropout", tmp_path, optimizer=adam(np.float32(0.75)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train("dropout", folder)
    return folder


def test_other_functions_take_them_too(run, tiny, tmp_path):
    two, entry = np.int64(2), Entry(str(run))
    dataset = MnistDataset("train", Entry(str(tiny)), limit=np.int64(9))
    assert len(dataset) == 9
    images, _ = next(load_data(np.str_("train"), np.int64(4), tiny)())
    assert images.shape[0] == 4
    assert len(ResumableBatchSampler(Points(), batch_size=two, seed=np.int64(5))) == 17
    assert len(BatchLoader(dataset, np.int64(4), seed=np.uint8(5))) == 3
    model = load_model(entry, with_dropout)
    assert model.state_dict().keys() == load_model(run, with_dropout).state_dict().keys()
    usual = evaluate_run(run, with_dropout, Points(), loss=F.cross_entropy, batch_size=2)
    assert usual == evaluate_run(
        entry, with_dropout, Points(), loss=F.cross_entropy, batch_size=two, num_workers=np.int64(0)
    )
    outputs = predict_run("best", with_dropout, Points(), run=entry, batch_size=two)
    assert outputs.shape == (33, 3)
    with watch(model, every=np.int64(1), what=np.array(["outputs"]), patience=two) as watched:
        model(paddle.ones([2, 6]))
    assert json.dumps(watched.values)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    trainer = Trainer(
        Entry(str(tmp_path / "net.pdparams")), model, optimizer, log_every=np.int64(2)
    )
    loader = paddle.io.DataLoader(Points(), batch_size=11)
    trainer.train(loader, np.int64(0), np.int64(1), Entry(str(tmp_path / "saved")))
    assert (tmp_path / "saved/model_epoch0.json").exists()


def test_every_public_name_with_such_arguments_takes_them():
    for name in paddle_mnist.__all__:
        value = getattr(paddle_mnist, name)
        function = value.__init__ if isinstance(value, type) else value
        annotations = {**getattr(function, "__annotations__", {})}
        annotations.pop("return", None)
        has_numbers = any(kind in (int, float, bool) for kind in annotations.values())
        is_group = isinstance(value, type) and issubclass(value, options.Options)
        others = ("FitResult", "fit", "train_and_evaluate", "watch")
        if has_numbers and not is_group and name not in others:
            assert hasattr(function, "__wrapped__"), name


def test_what_is_no_plain_value_is_passed_on():
    @accepts_numpy
    def function(data, number: int = 0, *more, path: Path = Path(), **options):
        return data, number, more, path, options

    array = np.zeros(2)
    data, number, more, path, options = function(
        array, np.int64(3), array, path=Entry("a"), x=array
    )
    assert data is array and more[0] is array and options["x"] is array
    assert (type(number), path) == (int, Path("a"))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'data'"):
        function()

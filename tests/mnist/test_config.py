"""The configuration: what is wrong is named in one line; what is right survives YAML."""

import json
import re
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT
from digit_parts import job_of
from hypothesis import given, settings
from hypothesis import strategies as st

import paddle_mnist
from paddle_mnist.commands import Parser
from paddle_mnist.commands._train_options import add_train_options, train_config
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.config import FLAT_OPTIONS, TrainConfig, read_recipe, recipes
from paddle_mnist.mnist.options import OptimizerOptions
from paddle_mnist.system.yaml_reader import read_yaml
from paddle_mnist.training.resume import ResumeRequest, config_changes


def parse(*argv) -> TrainConfig:
    parser = Parser()
    add_train_options(parser)
    return train_config(parser.parse_args(argv))


# ------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("epochs", 0, ">= 1"),
        ("epochs", 2.5, "a whole number"),
        ("optimizer", "adma", "did you mean 'adam'?"),
        ("learning_rate", "abc", "number"),
        ("learning_rate", float("inf"), "finite"),
        ("seed", 2**32, "<= 4294967295"),
        ("end_lr", 5, "at most the learning_rate"),
    ],
)
def test_invalid_value_raises_with_field_and_value(field, value, expected):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{field: value})
    message = str(caught.value)
    assert field in message and str(value) in message and expected in message
    assert "\n" not in message


@settings(max_examples=30)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "epochs": st.integers(1, 10**6),
            "learning_rate": st.floats(1e-30, 1e30),
            "lr_schedule": st.sampled_from(["constant", "polynomial", "cosine", "onecycle"]),
            "weight_decay_layers": st.lists(st.sampled_from(["conv1", "fc"])).map(tuple),
            "shuffle": st.booleans(),
            "train_limit": st.none() | st.integers(1, 9),
            "data": st.text(max_size=9),
            "output": st.none() | st.text(min_size=1, max_size=9),
        },
    )
)
def test_config_survives_yaml(values):
    config = TrainConfig(**values)
    assert TrainConfig.from_mapping(yaml.safe_load(config.as_yaml())) == config


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("seed", "0123", 123),
        ("seed", "1_000", 1000),
        ("log_every", "1:30", None),
        ("learning_rate", "1e-3", 0.001),
        ("learning_rate", ".inf", None),
        ("output", "2024-01-31", "2024-01-31"),
        ("output", "0777", "0777"),
        ("resume", "off", "off"),
        ("shuffle", "off", False),
        ("visualdl", "off", ()),
        ("watch", "off", None),
        ("weight_decay_layers", "conv1, fc,", ("conv1", "fc")),
    ],
)
def test_value_means_the_same_in_a_file_and_on_a_command_line(tmp_path, field, text, value):
    """value: None if it is refused."""
    file = tmp_path / "mine.yaml"
    file.write_text(f"{field}: {text}\n")
    for argv in (["-c", str(file)], ["-o", f"{field}={text}"], [f"--{field}={text}"]):
        if value is None:
            with pytest.raises(ConfigError, match=f"{field} is "):
                parse("--recipe", "default", *argv)
        else:
            assert parse("--recipe", "default", *argv).options[field] == value, argv


NUMBERS_IN_TEXT = "0123 1:30 1e5 089 0o17 0x1F 1_0 2024-01-31 +1 -.5 .5 ~ on = << .inf".split()
# PyYAML's writer garbles these ends of lines.
TEXT = st.text(st.characters(exclude_characters="\x85\u2028\u2029", exclude_categories=["Cs"]))
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXT
    | st.sampled_from(NUMBERS_IN_TEXT)
    | st.from_regex(r"[-+]?[0-9._:xoeE+-]{1,9}", fullmatch=True)
)


@settings(max_examples=40)
@given(
    st.dictionaries(
        TEXT | st.sampled_from(NUMBERS_IN_TEXT),
        st.recursive(
            PLAIN, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20
        ),
    ),
    st.booleans(),
)
def test_what_pyyaml_writes_is_read_back(tmp_path_factory, values, allow_unicode):
    """So that the `config.yaml` of every run is read as it was written."""
    file = tmp_path_factory.getbasetemp() / "values.yaml"
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=allow_unicode)
    file.write_bytes(text.encode())
    assert repr(read_yaml(file)) == repr(values)  # 1 is not 1.0, nor is it True


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"- epochs", "a list"),
        (b"epochs: [", "not YAML"),
        (b"!!python/object/apply:os.system ['touch PWNED']", "not YAML"),
        (b"epochs: " + b"[" * 9999, "not YAML"),
        (b"epochs: 1\nseed: 2\n'epochs': 3", "line 3"),
        (b"augment:\n  shift: 1\n  shift: 2", "line 3"),
        ("output: 训练".encode("gbk"), "not UTF-8"),
        ("epochs: 3".encode("utf-16-le"), "not YAML"),
    ],
)
def test_invalid_file_raises_and_runs_nothing(tmp_path, monkeypatch, text, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml|epochs is") as caught:
        parse("-c", "mine.yaml")
    assert part in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "PWNED").exists()


# ------------------------------------------------------------------ the configuration of a run


def test_config_of_an_earlier_version_is_read(tmp_path):
    """Beside the options only what `fit` records may be there."""
    recorded = {"trained_with": "paddle_mnist.train_and_evaluate", "monitor": "valid/acc"}
    config = TrainConfig.from_mapping({**recorded, "valid": None, "epochs": 7, "soften": True})
    assert config == TrainConfig(epochs=7)
    config = TrainConfig.from_mapping({**recorded, "incremental_from": "run", "soften": True})
    assert config == TrainConfig(incremental_from="run", soften="fc")
    for other in ({**recorded, "epoch": 7}, {"trained_with": "paddle_mnist.fit", "epochs": 7}):
        with pytest.raises(ConfigError):
            TrainConfig.from_mapping(other)


def test_recipes_are_valid_and_default_is_the_plain_config():
    for name, path in recipes().items():
        parse("--recipe", name)
        assert path.read_text().startswith(f"# paddle-mnist train --recipe {name}\n")
    assert TrainConfig(**read_recipe("default")) == TrainConfig()
    with pytest.raises(AttributeError):
        TrainConfig().epochs = 3


def test_tutorial_recipes_are_the_documents_settings():
    part_two, part_three = (TrainConfig(**read_recipe(n)) for n in ("tutorial", "tutorial-resume"))
    names = ("optimizer", "learning_rate", "lr_schedule", "batch_size", "epochs")
    values = [[recipe.options[name] for name in names] for recipe in (part_two, part_three)]
    assert values == [["adam", 0.01, "constant", 100, 5], ["momentum", 0.01, "polynomial", 32, 3]]
    assert part_three.options["end_lr"] == 0.001 and not part_three.options["shuffle"]


def test_continued_net_is_softened_by_default(tmp_path):
    """Without another training to continue, softening is refused."""
    continued = TrainConfig(incremental_from="old")
    assert continued.start.soften == "fc" and TrainConfig().options["soften"] is None
    assert TrainConfig().replace(incremental_from="old") == continued
    assert continued.replace(soften=False, epochs=3).start.soften is None
    file = tmp_path / "config.yaml"
    file.write_text(TrainConfig().as_yaml())
    assert parse("-c", str(file), "--incremental_from", "old").start == continued.start
    for options in ({}, {"init_from": "old"}):
        with pytest.raises(ConfigError, match="soften is 'fc'"):
            TrainConfig(soften=True, **options)


def schedule(*argv):
    config = parse("--data", "digits", "--recipe", "default", *argv)
    return config.optimizer.lr_schedule, config.optimizer.learning_rate


def test_continued_training_has_a_schedule_of_its_own(tmp_path, monkeypatch):
    """Half of the recipe's rate; what the user says wins, and what a run began with."""
    monkeypatch.chdir(tmp_path)
    continued = ("--incremental_from", "old")
    assert schedule() == ("onecycle", 0.1)
    assert schedule(*continued) == ("polynomial", 0.05)
    assert schedule(*continued, "--learning_rate", "0.2") == ("polynomial", 0.2)
    (tmp_path / "mine.yaml").write_text("lr_schedule: onecycle\n")
    assert schedule("-c", "mine.yaml", *continued) == ("onecycle", 0.1)
    (tmp_path / "run").mkdir()
    values = {"incremental_from": "old", "lr_schedule": "onecycle", "learning_rate": 0.1}
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump(values))
    assert schedule("--output", "run", *continued) == ("onecycle", 0.1)
    assert schedule("--output", "run", *continued, "--fresh") == ("polynomial", 0.05)
    resumed = ("--output", "other", "--resume", "run/checkpoints/mnist_epoch0")
    assert schedule(*resumed) == ("onecycle", 0.1)


def test_config_comparison_ignores_what_does_not_change_the_result(tiny, tmp_path, monkeypatch):
    """How a path is written; epochs between evaluations, unless early stopping counts those."""
    monkeypatch.chdir(tmp_path)
    stored = {"config": {"init_from": "run"}}
    for name, is_same in {"./run/": True, str(tmp_path / "run"): True, "runs": False}.items():
        request = ResumeRequest("auto", 1, {"init_from": name})
        assert (config_changes(stored, request, is_own=True) == []) == is_same, name
    plain = TrainConfig(data=str(tiny), eval_every_epochs=2)
    assert "eval_every_epochs" not in job_of(plain).request.config
    counted = plain.replace(early_stop_patience=1)
    assert job_of(counted).request.config["eval_every_epochs"] == 2


# ------------------------------------------------------------------ the command line


def test_later_ways_to_name_a_field_win(tmp_path):
    first, file = tmp_path / "first.yaml", tmp_path / "mine.yaml"
    first.write_text("epochs: 6\nlearning_rate: 1e-3\n")
    file.write_text("epochs: 7\nbatch_size: 8\nseed: 9\n", "utf-8-sig")
    options = "--recipe tutorial -o batch-size=16 seed=17 -o momentum=0.5 --seed 18 --keep-best"
    config = parse("-c", str(first), "-c", str(file), *options.split())
    assert (config.epochs, config.batch_size, config.seed) == (7, 16, 18)
    assert config.saving.keep_best and config.output == "work/output/tutorial"
    assert parse("-c", str(file)).output == "work/output/mine"
    assert config.optimizer == OptimizerOptions(
        "adam", 1e-3, "constant", momentum=0.5, weight_decay=0.0
    )


def test_without_mnist_or_recipe_the_recipe_is_digits(tiny):
    config = parse("--epochs", "2")
    assert (config.images.data, config.output) == ("digits", "work/output/digits")
    assert config.batch_size == read_recipe("digits")["batch_size"]
    assert parse("--recipe", "default").images.data == "auto"
    assert parse("--data_url", str(tiny)).batch_size == TrainConfig().batch_size


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--epoch", "3"], "did you mean --epochs?"),
        (["--lr=0.1"], "did you mean --learning_rate?"),
        (["-o", "epochs"], "FIELD=VALUE"),
        (["--recipe", "digits", "--recipe", "default"], "recipe is digits and default"),
        (["--num_gpus", "-1"], "num_gpus is -1"),
        (["--nprocs", "2", "--num_gpus", "4"], "nprocs is 2"),
        (["--device", "gpu:0", "--num_gpus=0"], "device is gpu:0"),
        (["-c", "nope.yaml"], "nope.yaml"),
    ],
)
def test_invalid_argument_raises_with_its_name(argv, part):
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    assert part in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--data_url /d --train_url /o --num_gpus 0", ("/d", "/o", 1, "cpu")),
        ("--data_url=/d --train_url=/o --num_gpus=8", ("/d", "/o", 8, "auto")),
        ("-o nprocs=2 device=gpu:0 data=/d --output=/o --num-gpus=0", ("/d", "/o", 1, "cpu")),
    ],
)
def test_options_that_model_arts_appends_are_understood(argv, expected):
    config = parse("--recipe", "default", *argv.split())
    found = (config.images.data, config.output, config.processes.number, config.device)
    assert found == expected
    assert not re.search("num_gpus|train_url|data_url", config.as_yaml())


HELP = """
import contextlib, io, json, runpy, sys
sys.path.insert(0, sys.argv[1])
printed = {}
for command in sys.argv[2:]:
    for option in ("--help", "--version"):
        sys.argv = [command, option]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                runpy.run_path(f"{sys.path[0]}/{command}.py", run_name="__main__")
            except SystemExit as end:
                assert end.code == 0, (command, option)
        printed[f"{command} {option}"] = out.getvalue()
        heavy = {"paddle", "sklearn", "matplotlib", "visualdl"} & set(sys.modules)
        assert not heavy, f"{command} {option} imports {heavy}"
print(json.dumps(printed))
"""


def test_every_command_prints_help_and_version_without_paddle():
    commands = {path.stem for path in (ROOT / "tools").glob("*.py")}
    commands -= {"baseline_tutorial", "markdown_tables"}  # which are no commands
    done = subprocess.run(
        [sys.executable, "-c", HELP, ROOT / "tools", *commands], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    version = f"paddle_mnist {paddle_mnist.__version__} (paddlepaddle"
    for command in commands:
        assert re.match(r"usage: (paddle-mnist|tools/)", answers[f"{command} --help"])
        assert answers[f"{command} --version"].startswith(version)
    missing = [name for name in FLAT_OPTIONS if f"--{name}" not in answers["train --help"]]
    assert not missing

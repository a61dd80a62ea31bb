"""The configuration: what is wrong is named in one line; what is right survives YAML."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from digit_parts import job_of
from hypothesis import given
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


BAD_VALUES = {
    ("epochs", -1): ">= 1",
    ("epochs", 0): ">= 1",
    ("epochs", 2.5): "a whole number",
    ("batch_size", 0): ">= 1",
    ("optimizer", "adma"): "did you mean 'adam'?",
    ("lr_schedule", "cosin"): "did you mean 'cosine'?",
    ("learning_rate", "abc"): "number",
    ("learning_rate", 0): "a number > 0",
    ("learning_rate", float("nan")): "a number > 0",
    ("learning_rate", float("inf")): "finite",
    ("momentum", 1): "a number < 1",
    ("weight_decay", -0.1): ">= 0",
    ("label_smoothing", 1): "a number < 1",
    ("dropout", 1): "a number < 1",
    ("seed", -1): ">= 0",
    ("seed", 2**32): "<= 4294967295",
    ("shuffle", "maybe"): "True or False",
    ("train_limit", 0): ">= 1",
    ("check_content", "first"): "a whole number",
    ("check_content", -1): ">= 0",
    ("epochs", True): "a whole number",
    ("learning_rate", True): "a number",
    ("end_lr", 5): "expected at most the learning_rate",
}


@pytest.mark.parametrize(("field", "value"), BAD_VALUES)
def test_bad_value_is_named(field, value):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{field: value})
    message = str(caught.value)
    assert field in message and str(value) in message and BAD_VALUES[field, value] in message
    assert "\n" not in message


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


def test_values_as_yaml_and_a_command_line_write_them():
    config = TrainConfig(
        **yaml.safe_load("{resume: off, learning_rate: 1e-3, weight_decay_layers: 'conv1, fc,'}")
    )
    assert config.resume == "off" and config.optimizer.learning_rate == 0.001
    assert config.optimizer.weight_decay_layers == ("conv1", "fc")


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("seed", "0123", 123),
        ("seed", "-0", 0),
        ("seed", "+5", 5),
        ("seed", "1_000", 1000),
        ("seed", "089", 89),
        ("seed", "0o17", None),
        ("seed", "0x1F", None),
        ("seed", "0b11", None),
        ("log_every", "1:30", None),
        ("learning_rate", "1e-3", 0.001),
        ("learning_rate", "1.5e3", 1500.0),
        ("learning_rate", "00.5", 0.5),
        ("learning_rate", "1:30.5", None),
        ("learning_rate", ".inf", None),
        ("save_every_seconds", "1_000.5", 1000.5),
        ("output", "2024-01-31", "2024-01-31"),
        ("output", "0777", "0777"),
        ("output", "12:30", "12:30"),
        ("resume", "off", "off"),
        ("amp", "off", "off"),
        ("fast_conv", "on", "on"),
        ("shuffle", "off", False),
        ("shuffle", "yes", True),
        ("visualdl", "off", ()),
        ("watch", "off", None),
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


def test_file_may_begin_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("epochs: 7", "utf-8-sig")
    assert parse("-c", str(file)).epochs == 7


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
    | st.floats(allow_nan=False).map(repr)
    | st.from_regex(r"[-+]?[0-9._:xoeE+-]{1,9}", fullmatch=True)
)


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
    assert read_yaml(file) == values
    assert repr(read_yaml(file)) == repr(values)  # 1 is not 1.0, nor is it True


def test_config_of_a_run_is_read_again(tmp_path):
    """Also one of version 0.2; beside the options only what `fit` records may be there."""
    recorded = {"trained_with": "paddle_mnist.train_and_evaluate", "monitor": "valid/acc"}
    config = TrainConfig.from_mapping({**recorded, "valid": None, "epochs": 7, "soften": True})
    assert config == TrainConfig(epochs=7)
    config = TrainConfig.from_mapping({**recorded, "incremental_from": "run", "soften": True})
    assert config == TrainConfig(incremental_from="run", soften="fc")
    assert TrainConfig(soften=False).options["soften"] is None
    with pytest.raises(ConfigError, match="unknown name 'epoch'; did you mean 'epochs'"):
        TrainConfig.from_mapping({**recorded, "epoch": 7})
    with pytest.raises(ConfigError, match=r"a call of paddle_mnist\.fit, which trains a net of"):
        TrainConfig.from_mapping({"trained_with": "paddle_mnist.fit", "epochs": 7})


def test_config_cannot_be_changed():
    with pytest.raises(AttributeError):
        TrainConfig().epochs = 3


@pytest.mark.parametrize("name", recipes())
def test_recipe_is_valid_and_says_its_command(name):
    parse("--recipe", name)
    header = recipes()[name].read_text().splitlines()
    assert header[0] == f"# paddle-mnist train --recipe {name}"


def test_plain_config_is_the_default_recipe():
    assert TrainConfig(**read_recipe("default")) == TrainConfig()


def test_tutorial_recipes_are_the_documents_settings():
    part_two, part_three = (TrainConfig(**read_recipe(n)) for n in ("tutorial", "tutorial-resume"))
    optimizer = part_two.optimizer
    assert (optimizer.optimizer, optimizer.learning_rate) == ("adam", 0.01)
    assert optimizer.lr_schedule == "constant"
    assert (part_two.batch_size, part_two.epochs) == (100, 5)
    optimizer = part_three.optimizer
    assert (optimizer.optimizer, optimizer.learning_rate) == ("momentum", 0.01)
    assert (optimizer.lr_schedule, optimizer.end_lr) == ("polynomial", 0.001)
    assert (part_three.batch_size, part_three.epochs) == (32, 3)
    assert not part_three.loading.shuffle


def test_later_ways_to_name_a_field_win(tmp_path):
    first, file = tmp_path / "first.yaml", tmp_path / "mine.yaml"
    first.write_text("epochs: 6\nlearning_rate: 1e-3\n")
    file.write_text("epochs: 7\nbatch_size: 8\nseed: 9\n")
    options = "--recipe tutorial -o batch_size=16 seed=17 -o momentum=0.5 --seed 18"
    config = parse("-c", str(first), "-c", str(file), *options.split())
    assert (config.epochs, config.batch_size, config.seed) == (7, 16, 18)
    assert config.optimizer == OptimizerOptions(
        "adam", 1e-3, "constant", momentum=0.5, weight_decay=0.0
    )


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        (["--recipe", "tutorial"], "work/output/tutorial"),
        (["-c", "mine.yaml"], "work/output/mine"),
        (["-c", "mine.v1.yaml"], "work/output/mine.v1"),
        (["-c", "mine.v1"], "work/output/mine.v1"),
        (["-c", "mine.v1", "-c", "mine.v1", "-c", "mine.yaml"], "work/output/mine"),
        (["--recipe", "tutorial", "--train_url", "there"], "there"),
        ([], "work/output/digits"),  # no MNIST on this machine, as far as tests can see
    ],
)
def test_run_directory_is_named_by_the_recipe(tmp_path, monkeypatch, argv, output):
    monkeypatch.chdir(tmp_path)
    for path in argv[1::2] if argv[:1] == ["-c"] else []:
        Path(path).write_text("epochs: 7\n")
    assert parse(*argv).output == output


def test_without_mnist_or_recipe_the_recipe_is_digits(tiny):
    assert parse("--epochs", "2").images.data == "digits"
    assert parse("--epochs", "2").batch_size == read_recipe("digits")["batch_size"]
    assert parse("--data", "auto").images.data == "digits"  # found once, and not looked for again
    assert parse("--recipe", "default").images.data == "auto"
    assert parse("--data_url", str(tiny)).batch_size == TrainConfig().batch_size


BAD_ARGUMENTS = {
    ("--epoch", "3"): "unknown argument --epoch; did you mean --epochs?",
    ("--recipe", "digits", "--recipe", "default"): (
        "recipe is digits and default; expected one; give files by -c"
    ),
    ("--lr", "0.1"): "unknown argument --lr; did you mean --learning_rate?",
    ("--lr=0.1",): "unknown argument --lr=0.1; did you mean --learning_rate?",
    ("-o", "lr=0.1"): "-o: unknown name 'lr'; did you mean 'learning_rate'?",
    ("--learning-rat", "1"): "unknown argument --learning-rat; did you mean --learning_rate?",
    ("--num_gpus", "many"): "argument --num_gpus: invalid int value: 'many'",
    ("--num_gpus", "-1"): "num_gpus is -1; expected a number of GPUs, or 0 for the CPU",
    ("--nprocs", "2", "--num_gpus", "4"): "num_gpus is 4, which means nprocs 4, but nprocs is 2",
    ("--nprocs", "2", "--num_gpus", "0"): "means one process on the CPU, but nprocs is 2",
    ("--device", "gpu:0", "--num_gpus=0"): "means one process on the CPU, but device is gpu:0",
    ("--gpus", "0,1", "--num_gpus", "0"): "means one process on the CPU, but gpus is 0,1",
    ("--epochs", "-1"): "epochs is '-1'",
    ("--epochs",): "expected one argument",
    ("-o", "epoch=3"): "-o: unknown name 'epoch'; did you mean 'epochs'?",
    ("-o", "epochs"): "-o epochs: expected FIELD=VALUE",
    ("--recipe", "defalt"): "did you mean 'default'?",
    ("--shuffle", "maybe"): "shuffle is 'maybe'",
    ("-c", "nope.yaml"): "nope.yaml: No such file or directory",
    ("surprise",): "unknown argument surprise",
}


@pytest.mark.parametrize("argv", BAD_ARGUMENTS)
def test_bad_argument_is_named(argv):
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    assert BAD_ARGUMENTS[argv] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- epochs", "found a list"),
        ("epochs: [", "not YAML"),
        ("epoch: 3", "unknown name 'epoch'; did you mean 'epochs'?"),
        ("epochs: many", "epochs is 'many'"),
        ("!!python/object/apply:os.system ['touch PWNED']", "not YAML"),
        ("epochs: !!int many", "not YAML (invalid literal for int()"),
        ("epochs: " + "[" * 9999, "not YAML (maximum recursion depth exceeded"),
        ("epochs: 1\nseed: 2\n'epochs': 3", "mine.yaml, line 3: epochs is on line 1 already"),
        ("augment:\n  shift: 1\n  shift: 2", "mine.yaml, line 3: shift is on line 2 already"),
        ("output: 训练".encode("gbk"), "not UTF-8 but probably GBK; save it as UTF-8"),
        ("epochs: 3".encode("utf-16"), "not UTF-8 but probably UTF-16; save it as UTF-8"),
        ("epochs: 3".encode("utf-16-le"), "not UTF-8 but probably UTF-16; save it as UTF-8"),
        ("output: café".encode("latin-1"), "not UTF-8 (byte 11 is 0xe9); save it as UTF-8"),
    ],
)
def test_bad_file_is_named(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=r"mine\.yaml|epochs is") as caught:
        parse("-c", "mine.yaml")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "PWNED").exists()


def test_options_may_be_written_with_dashes():
    dashes = ("--learning-rate", "0.5", "--batch-size=8", "--keep-best", "--data-url", "digits")
    dashes += ("--output", "my-run", "-o", "weight-decay=0.25")
    config = parse("--recipe", "default", *dashes)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (0.5, 0.25)
    assert (config.batch_size, config.saving.keep_best) == (8, True)
    assert (config.images.data, config.output) == ("digits", "my-run")


def test_a_net_is_softened_where_it_continues(tmp_path):
    """By default; without another training to continue, softening is refused."""
    continued = TrainConfig(incremental_from="old")
    assert continued.start.soften == "fc" and TrainConfig().options["soften"] is None
    assert TrainConfig().replace(incremental_from="old") == continued
    assert continued.replace(incremental_from=None) == TrainConfig()
    assert continued.replace(soften=False, epochs=3).start.soften is None
    file = tmp_path / "config.yaml"
    file.write_text(TrainConfig().as_yaml())
    assert parse("-c", str(file), "--incremental_from", "old").start == continued.start
    for options, other in (
        ({}, "incremental_from or init_from"),
        ({"init_from": "old"}, "weights_only"),
    ):
        with pytest.raises(ConfigError, match=f"soften is 'fc' with.* {other}; expected"):
            TrainConfig(soften=True, **options)


def schedule(*argv):
    config = parse("--data", "digits", *argv)
    return config.optimizer.lr_schedule, config.optimizer.learning_rate


CONTINUED = ("--incremental_from", "old")


def test_continued_training_has_its_own_schedule(tmp_path, monkeypatch):
    """Half of the recipe's rate; what the user says wins."""
    monkeypatch.chdir(tmp_path)
    assert schedule("--recipe", "default") == ("onecycle", 0.1)
    assert schedule("--recipe", "default", *CONTINUED) == ("polynomial", 0.05)
    assert schedule("--recipe", "tutorial", *CONTINUED) == ("polynomial", 0.005)
    assert schedule("--recipe", "default", *CONTINUED, "--learning_rate", "0.2")[1] == 0.2
    (tmp_path / "mine.yaml").write_text("lr_schedule: onecycle\n")
    assert schedule("-c", "mine.yaml", *CONTINUED) == ("onecycle", 0.1)
    assert schedule("-c", "mine.yaml", *CONTINUED, "-o", "lr_schedule=constant")[0] == "constant"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"lr_schedule": "onecycle", "learning_rate": 0.1}, ("onecycle", 0.1)),
        ({"lr_schedule": "onecycle", "learning_rate": 0.3}, ("onecycle", 0.05)),
        ({"lr_schedule": "polynomial", "learning_rate": 0.05}, ("polynomial", 0.05)),
    ],
)
def test_a_run_keeps_the_schedule_of_its_recipe(tmp_path, monkeypatch, stored, expected):
    """A run that began before continued training had its own; until it starts over."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump({"incremental_from": "old", **stored}))
    here = ("--recipe", "default", "--output", "run")
    assert schedule(*here, *CONTINUED) == expected
    assert schedule(*here, *CONTINUED, "--fresh") == ("polynomial", 0.05)
    elsewhere = ("--recipe", "default", "--output", "other", "--resume")
    for place in ("run", "run/checkpoints/mnist_epoch0"):
        assert schedule(*elsewhere, place) == expected


def test_values_keep_their_dashes():
    parser = Parser()
    parser.add_argument("--only_this")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args(["--only-this=a-b--c", "--", "--only-this", "x-y"])
    assert args.only_this == "a-b--c" and args.names == ["--only-this", "x-y"]


PLATFORM = {
    ("--data_url", "/data", "--train_url", "/out", "--num_gpus", "0"): ("/data", "/out", 1, "cpu"),
    ("--data_url=/d", "--train_url=/o", "--num_gpus=1"): ("/d", "/o", 1, "auto"),
    ("--data_url=/d", "--train_url=/o", "--num_gpus=8"): ("/d", "/o", 8, "auto"),
    ("--nprocs=auto", "--num-gpus", "4", "--data=/d", "--output=/o"): ("/d", "/o", 4, "auto"),
    ("-o", "nprocs=2", "device=gpu:0", "data=/d", "--output=/o", "--num_gpus=0"): (
        "/d",
        "/o",
        1,
        "cpu",
    ),
}


@pytest.mark.parametrize("argv", PLATFORM)
def test_options_that_model_arts_appends(argv):
    config = parse("--recipe", "default", *argv)
    found = (config.images.data, config.output, config.processes.number, config.device)
    assert found == PLATFORM[argv]
    assert not re.search("num_gpus|train_url|data_url", config.as_yaml())


NO_COMMANDS = {"baseline_tutorial", "markdown_tables"}
COMMANDS = sorted({path.stem for path in (ROOT / "tools").glob("*.py")} - NO_COMMANDS)


@pytest.fixture(scope="module")
def answers():
    """The output of each command with --help and --version, run where nothing imports Paddle."""
    program = """
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
    done = subprocess.run(
        [sys.executable, "-c", program, ROOT / "tools", *COMMANDS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_help_of_train_lists_every_field(answers):
    assert all(re.search(rf"--{name}[ ,]", answers["train --help"]) for name in FLAT_OPTIONS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_tells_its_version(answers, command):
    assert answers[f"{command} --help"].startswith(f"usage: tools/{command}.py")
    version = answers[f"{command} --version"]
    assert version.startswith(f"paddle_mnist {paddle_mnist.__version__} (paddlepaddle")
    assert metadata.version(re.search(r"paddlepaddle[\w-]*", version)[0]) in version


def test_what_decides_the_result_with_early_stopping(tiny):
    """The number of epochs between evaluations, once evaluations are counted."""
    plain = TrainConfig(data=str(tiny), eval_every_epochs=2)
    assert "eval_every_epochs" not in job_of(plain).request.config
    counted = plain.replace(early_stop_patience=1)
    assert job_of(counted).request.config["eval_every_epochs"] == 2


def test_one_place_however_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = {"config": {"init_from": "run"}}
    for name, is_same in {
        "run/": True,
        "./run": True,
        str(tmp_path / "run"): True,
        "runs": False,
    }.items():
        request = ResumeRequest("auto", 1, {"init_from": name})
        assert (config_changes(stored, request, is_own=True) == []) == is_same, name

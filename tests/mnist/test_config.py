"""The configuration: what is wrong is named in one line; what is right survives YAML."""

import os
import re

import pytest

from paddle_mnist.commands import Parser
from paddle_mnist.commands._train_options import add_train_options, train_config
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.config import TrainConfig, read_recipe, recipes
from paddle_mnist.mnist.options import OptimizerOptions


def parse(*argv) -> TrainConfig:
    parser = Parser()
    add_train_options(parser)
    return train_config(parser.parse_args(argv))


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("epochs", "9007199254740993", 2**53 + 1),
        ("log_every", "many", None),
        ("learning_rate", "1e-3", 0.001),
        ("optimizer", "AdamW", "adamw"),
        ("shuffle", "off", False),
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


def test_output_below_the_home_folder_is_expanded():
    assert parse("--output", "~/run").output == os.path.expanduser("~/run")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"epochs: [", "not YAML"),
        (b"!!python/object/apply:os.system ['touch PWNED']", "not YAML"),
        (b"epochs: " + b"[" * 2000, "not YAML"),
        (b"epochs: 1\nseed: 2\n'epochs': 3", "epochs is given several times"),
        ("output: 训练".encode("gbk"), "not UTF-8"),
    ],
)
def test_invalid_file_raises_and_runs_nothing(tmp_path, monkeypatch, text, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml") as caught:
        parse("-c", "mine.yaml")
    assert part in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "PWNED").exists()


def test_recipes_are_valid_and_default_is_the_plain_config():
    for name, path in recipes().items():
        parse("--recipe", name)
        assert path.read_text().startswith(f"# paddle-mnist train --recipe {name}\n")
    assert TrainConfig(**read_recipe("default")) == TrainConfig()


def test_tutorial_recipes_are_the_documents_settings():
    part_two, part_three = (TrainConfig(**read_recipe(n)) for n in ("tutorial", "tutorial-resume"))
    names = ("optimizer", "learning_rate", "lr_schedule", "batch_size", "epochs")
    values = [[recipe.options[name] for name in names] for recipe in (part_two, part_three)]
    assert values == [["adam", 0.01, "constant", 100, 5], ["momentum", 0.01, "polynomial", 32, 3]]
    assert part_three.options["end_lr"] == 0.001 and not part_three.options["shuffle"]


def test_continued_net_is_softened_by_default(tmp_path):
    continued = TrainConfig(incremental_from="old")
    assert continued.incremental.soften == "fc"
    assert TrainConfig().replace(incremental_from="old") == continued
    assert parse("--incremental_from", "old", "--soften").incremental.soften == "fc"
    assert parse("--incremental_from", "old", "--soften", "false").incremental.soften is None
    assert continued.replace(soften=False, epochs=3).incremental.soften is None
    file = tmp_path / "config.yaml"
    file.write_text(TrainConfig().as_yaml())
    assert parse("-c", str(file), "--incremental_from", "old").incremental.soften == "fc"


def schedule(*argv):
    config = parse("--data", "digits", "--recipe", "default", *argv)
    return config.optimizer.lr_schedule, config.optimizer.learning_rate


def test_continued_training_has_a_schedule_of_its_own(tmp_path, monkeypatch):
    """Half of the recipe's rate; what the user says wins."""
    monkeypatch.chdir(tmp_path)
    continued = ("--incremental_from", "old")
    assert schedule() == ("onecycle", 0.1)
    assert schedule(*continued) == ("polynomial", 0.05)
    assert schedule(*continued, "--learning_rate", "0.2") == ("polynomial", 0.2)
    (tmp_path / "mine.yaml").write_text("lr_schedule: onecycle\n")
    assert schedule("-c", "mine.yaml", *continued) == ("onecycle", 0.1)
    for run, first in {"continued": continued, "new": ()}.items():
        (tmp_path / run / "checkpoints").mkdir(parents=True)
        (tmp_path / run / "config.yaml").write_text(parse(*first).as_yaml())
        for name in (run, f"{run}/checkpoints/mnist_epoch0"):
            assert schedule("--resume", name, "--output", "out") == schedule(*first)


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
    assert parse("--data_url", str(tiny)).batch_size == TrainConfig().batch_size


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--epoch", "3"], "did you mean --epochs?"),
        (["--optimizer", "adma"], "did you mean 'adam'?"),
        (["--end_lr", "5"], "end_lr is 5.0"),
        (["--gpu_id", "x"], "--gpu_id: 'x'; expected the number of a GPU"),
        (["--gpu_id", "2", "--device", "cpu"], "--device: not allowed with argument --gpu_id"),
        (["--name", "a/b"], "name is 'a/b'; expected the first part of a file name"),
        (["--power", "2"], "power is 2.0, but lr_schedule is 'onecycle'; expected"),
        (["--lr_schedule", "cosine", "--decay_steps", "9"], "decay_steps is 9, but lr_schedule is"),
        (["--lr_schedule", "polynomial", "--cycle"], "cycle is on without decay_steps"),
        (["--lr_schedule", "polynomial", "--power", "0"], "power is '0'; expected a number > 0"),
        (["-o", "epochs"], "FIELD=VALUE"),
        (["--recipe", "digits", "--recipe", "default"], "recipe is digits and default"),
        (["-c", "nope.yaml"], "nope.yaml"),
    ],
)
def test_invalid_argument_raises_with_its_name(argv, part):
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    assert part in str(caught.value) and "\n" not in str(caught.value)


def test_options_as_other_documents_write_them_are_understood(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("nprocs: 3\n")
    for argv, expected in {
        "--data_url=/d --train_url=/o --num_gpus=8": ("/d", "/o", 8, "auto"),
        "-o data=/d --output=/o --num-gpus=0": ("/d", "/o", 1, "cpu"),
        "--data=/d --nprocs=2 --output=/o --num_gpus=8": ("/d", "/o", 2, "auto"),
        "-o nprocs=2 --data=/d --train_url=/o --num_gpus=8": ("/d", "/o", 2, "auto"),
        f"-c {file} --data=/d --train_url=/o --num_gpus=0": ("/d", "/o", 3, "cpu"),
        "--data=/d --output=/o --gpu_id=2": ("/d", "/o", 1, "gpu:2"),  # of Paddle's FAQ
    }.items():
        config = parse("--recipe", "default", *argv.split())
        found = (config.images.data, config.output, config.processes.nprocs, config.device)
        assert found == expected
        assert not re.search("gpu_id|num_gpus|train_url|data_url", config.as_yaml())

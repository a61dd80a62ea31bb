"""Commands called in this process, and all of them through one program."""

import importlib
import logging
import re
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

from paddle_mnist.commands._dispatch import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_main_returns_its_code_as_often_as_it_is_called(name, capsys):
    """Nothing of one call is left to the next, or to the program around it."""
    main = importlib.import_module(f"paddle_mnist.commands.{name}").main
    log = logging.getLogger("paddle_mnist")
    handlers = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), *log.handlers]
    for _ in range(2):
        assert main(["--help"]) == 0
        printed = capsys.readouterr()
        assert printed.out.startswith(f"usage: tools/{name}.py") and not printed.err
        assert main(["x", "--nonsense"]) == 2
        printed = capsys.readouterr()
        assert re.fullmatch(r"error: .*(--nonsense|x).*\n", printed.err) and not printed.out
    after = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), *log.handlers]
    assert after == handlers


def test_every_command_has_a_script_in_tools():
    for name in COMMANDS:
        text = (ROOT / f"tools/{name}.py").read_text()
        assert f"from paddle_mnist.commands.{name} import main\n" in text


def package(*args, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "paddle_mnist", *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def test_package_is_a_program(tmp_path):
    listed = package("--help")
    assert listed.returncode == 0
    assert re.findall(r"^  (\w+) +[A-Z]", listed.stdout, re.MULTILINE) == list(COMMANDS)
    usage = package("export-model", "--help").stdout
    assert usage.startswith("usage: python -m paddle_mnist export_model [options]")
    for args, error in {
        (): "no command is given; --help lists them",
        ("trian",): "command: unknown name 'trian'; did you mean 'train'?",
        ("train", "--epohcs", 3): "unknown argument --epohcs; did you mean --epochs?",
    }.items():
        done = package(*args)
        assert (done.returncode, done.stderr) == (2, f"error: {error}\n")
    done = package("checkpoints", tmp_path)
    assert done.returncode == 4 and done.stderr.startswith(f"error: {tmp_path}: no checkpoint")


def test_package_restarts_itself(tmp_path, tiny):
    """A supervised training is started by the words that the supervisor was started by."""
    options = ["--epochs", 1, "--batch_size", 32, "--visualdl", "false", "--figures", "false"]
    done = package("train", "--data", tiny, "--max_restarts", 1, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "eval accuracy" in done.stdout

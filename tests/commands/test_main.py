"""Commands called in this process, and all of them through one program."""

import importlib
import logging
import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

from paddle_mnist.commands import Parser
from paddle_mnist.system.program import COMMANDS, module_name


def command(name):
    return importlib.import_module(f"paddle_mnist.commands.{module_name(name)}")


@pytest.mark.parametrize("name", COMMANDS)
def test_main_called_twice_returns_its_code_twice(name, capsys):
    """Nothing of one call is left to the next, or to the program around it."""
    main = command(name).main
    log = logging.getLogger("paddle_mnist")
    handlers = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), *log.handlers]
    for _ in range(2):
        assert main(["--help"]) == 0
        printed = capsys.readouterr()
        assert printed.out.startswith(f"usage: paddle-mnist {name}") and not printed.err
        assert main(["x", "--nonsense"]) == 2
        printed = capsys.readouterr()
        assert re.fullmatch(r"error: .*(--nonsense|x).*\n", printed.err) and not printed.out
    after = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), *log.handlers]
    assert after == handlers


def test_options_may_be_written_with_dashes():
    """But not values, nor what follows `--`."""
    parser = Parser(prog="x")
    parser.add_argument("--batch_size", action="append")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args(["--batch-size", "a-b", "--batch-size=c-d", "--", "--batch-size"])
    assert args.batch_size == ["a-b", "c-d"] and args.words == ["--batch-size"]


def test_every_command_has_a_script_in_tools():
    for name in map(module_name, COMMANDS):
        text = (ROOT / f"tools/{name}.py").read_text()
        assert f"from paddle_mnist.commands.{name} import main\n" in text


@pytest.fixture
def package(tmp_path):
    """Run `python -m paddle_mnist` in an empty folder."""

    def run(*args):
        command = [sys.executable, "-m", "paddle_mnist", *map(str, args)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return run


@pytest.mark.slow
def test_package_is_a_program(package, tmp_path):
    listed = package("--help")
    assert listed.returncode == 0
    assert listed.stdout.startswith("usage: paddle-mnist COMMAND [options]\n")
    names = re.findall(r"^  ([a-z-]+) +[A-Z]", listed.stdout, re.MULTILINE)
    assert names == list(COMMANDS) and not any("_" in name for name in names)
    for spelling in ("export", "export_model"):
        usage = package(spelling, "--help").stdout
        assert usage.startswith("usage: paddle-mnist export [RUN [FOLDER]] [options]")
    for args, error in {
        (): "no command is given",
        ("trian",): "unknown name 'trian'; did you mean 'train'?",
        ("train", "--epohcs", 3): "unknown argument --epohcs; did you mean --epochs?",
    }.items():
        done = package(*args)
        assert (done.returncode, done.stdout) == (2, "") and error in done.stderr
    done = package("checkpoints", tmp_path)
    assert done.returncode == 4 and done.stderr.startswith(f"error: {tmp_path}: no checkpoint")
    versions = {package(*command, "--version").stdout for command in ((), ("train",))}
    assert len(versions) == 1 and versions.pop().startswith("paddle_mnist ")


@pytest.mark.slow
def test_package_restarts_itself(package, tiny):
    """A supervised training is started by the words that the supervisor was started by."""
    options = ["--epochs", 1, "--batch-size", 32, "--visualdl", "false", "--figures", "false"]
    done = package("train", "--data", tiny, "--max-restarts", 1, *options)
    assert done.returncode == 0, done.stderr
    assert "eval accuracy" in done.stdout


def test_help_in_a_narrow_terminal_breaks_no_word(tool):
    for name in map(module_name, COMMANDS):
        wide, narrow = (tool(name, "--help", COLUMNS=str(width)).stdout for width in (1000, 80))
        assert narrow.split() == wide.split()
        # The terminal breaks what is too long; but a command to be copied is one line.
        lines = [line for line in narrow.splitlines() if not line.startswith("python ")]
        assert max(map(len, lines)) <= 80


IMPORTED = """
import contextlib, io, sys
from paddle_mnist.commands._dispatch import main

for command in ([], *([name] for name in sys.argv[1:])):
    for option in ("--help", "--version"):
        sys.argv = ["paddle-mnist", *command, option]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main()
        assert out.getvalue(), sys.argv
        heavy = {"paddle", "visualdl", "matplotlib", "sklearn", "scipy"} & set(sys.modules)
        assert not heavy, f"{sys.argv} imports {heavy}"
"""


def test_help_and_version_import_nothing_that_takes_long():
    command = [sys.executable, "-c", IMPORTED, *COMMANDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""Commands called in this process, and all of them through one program."""

import configparser
import importlib
import logging
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
def test_main_returns_its_code_as_often_as_it_is_called(name, capsys):
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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_may_be_written_with_dashes(name, monkeypatch):
    spellings = {}

    def parse(parser, argv=None, namespace=None):
        for option in filter(lambda option: "_" in option, parser._option_string_actions):
            dashed = option.replace("_", "-")
            spellings[dashed] = parser._with_underscores([dashed, f"{dashed}=a-b", "--", dashed])
        raise SystemExit

    monkeypatch.setattr(Parser, "parse_args", parse)
    assert command(name).main([]) == 0
    assert spellings or name in ("infer", "plot", "dashboard", "demo", "eval", "export")
    for dashed, spelled in spellings.items():
        option = f"--{dashed[2:].replace('-', '_')}"
        assert spelled == [option, f"{option}=a-b", "--", dashed]


def test_every_command_has_a_script_in_tools():
    for name in map(module_name, COMMANDS):
        text = (ROOT / f"tools/{name}.py").read_text()
        assert f"from paddle_mnist.commands.{name} import main\n" in text


def installed_program(folder):
    """Write what pip writes for the entry point that setup.cfg names; return its path."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    line = config["options.entry_points"]["console_scripts"].strip()
    name, module, function = re.fullmatch(r"([\w-]+) = ([\w.]+):(\w+)", line).groups()
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\n"
        f"if __name__ == '__main__':\n    sys.exit({function}())\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture(
    params=[pytest.param("paddle-mnist", marks=pytest.mark.release), "python -m paddle_mnist"]
)
def package(request, tmp_path):
    """Run the program with some arguments, in one of the two ways."""
    if request.param == "paddle-mnist":
        words = [installed_program(tmp_path)]
    else:
        words = [sys.executable, "-m", "paddle_mnist"]

    def run(*args):
        command = [*map(str, words), *map(str, args)]
        folder = tmp_path / "folder"
        folder.mkdir(exist_ok=True)
        return subprocess.run(command, cwd=folder, capture_output=True, text=True)

    run.name = request.param
    run.folder = tmp_path / "folder"
    return run


@pytest.mark.slow
def test_package_is_a_program(package, tmp_path):
    listed = package("--help")
    assert listed.returncode == 0
    assert listed.stdout.startswith(f"usage: {package.name} COMMAND [options]\n")
    names = re.findall(r"^  ([a-z-]+) +[A-Z]", listed.stdout, re.MULTILINE)
    assert names == list(COMMANDS) and not any("_" in name for name in names)
    for spelling in ("export", "export-model", "export_model"):
        usage = package(spelling, "--help").stdout
        assert usage.startswith(f"usage: {package.name} {spelling} [RUN [FOLDER]] [options]")
    for args, error in {
        (): "no command is given; --help lists them",
        ("trian",): "command: unknown name 'trian'; did you mean 'train'?",
        ("train", "--epohcs", 3): "unknown argument --epohcs; did you mean --epochs?",
    }.items():
        done = package(*args)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {error}\n")
    done = package("checkpoints", tmp_path)
    assert done.returncode == 4 and done.stderr.startswith(f"error: {tmp_path}: no checkpoint")
    versions = {package(*command, "--version").stdout for command in ((), ("train",), ("export",))}
    assert len(versions) == 1 and versions.pop().startswith("paddle_mnist ")


@pytest.mark.parametrize("columns", [80, 40])
def test_help_in_a_narrow_terminal_breaks_no_word(tool, columns):
    for name in map(module_name, COMMANDS):
        wide, narrow = (
            tool(name, "--help", COLUMNS=str(width)).stdout for width in (1000, columns)
        )
        assert narrow.split() == wide.split()
        # The terminal breaks what is too long; but a command to be copied is one line.
        lines = [line for line in narrow.splitlines() if not line.startswith("python ")]
        assert columns == 40 or max(map(len, lines)) <= 80


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


@pytest.mark.slow
def test_package_restarts_itself(package, tiny):
    """A supervised training is started by the words that the supervisor was started by."""
    options = ["--epochs", 1, "--batch-size", 32, "--visualdl", "false", "--figures", "false"]
    done = package("train", "--data", tiny, "--max-restarts", 1, *options)
    assert done.returncode == 0, done.stderr
    assert "eval accuracy" in done.stdout

"""Commands called in this process, and all of them through one program."""

import importlib
import json
import logging
import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

import paddle_mnist
from paddle_mnist.__main__ import COMMANDS
from paddle_mnist.mnist.config import FLAT_OPTIONS
from paddle_mnist.system.environment import for_another_python


def command(name):
    return importlib.import_module(f"paddle_mnist.commands.{COMMANDS[name]}")


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


def test_train_into_a_name_that_is_too_long_is_one_line(capsys):
    assert command("train").main(["--data", "digits", "--epochs", "1", "--output", "x" * 300]) == 4
    assert re.fullmatch(r"error: .*too long.*\n", capsys.readouterr().err)


def test_process_of_a_training_does_not_train_itself(tmp_path):
    """It may import the script, as Matplotlib does with one that is called `fractions.py`."""
    words = [sys.executable, "-m", "paddle_mnist", "train", "--recipe", "digits"]
    done = subprocess.run(
        words, cwd=tmp_path, env=for_another_python(), capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.startswith("error: a new process of this training")
    assert not list(tmp_path.iterdir())


EXITS = """
import atexit, threading, time
from paddle_mnist.commands import run_script

class Kept:
    def __del__(self):
        print("freed")

def command(argv):
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    return 3

kept = Kept()
atexit.register(print, "exit function")
run_script(command)
"""


def test_command_ends_with_its_threads_and_exit_functions_and_frees_no_memory():
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == ["thread", "exit function"]


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
    assert listed.stdout.startswith("usage: paddle-mnist COMMAND [options]\n")
    names = re.findall(r"^  ([a-z-]+) +[A-Z]", listed.stdout, re.MULTILINE)
    assert names == list(COMMANDS) and not any("_" in name for name in names)
    usage = package("export", "--help").stdout
    assert usage.startswith("usage: paddle-mnist export [RUN [FOLDER]] [options]")
    for args, error in {
        (): "no command is given",
        ("trian",): "unknown name 'trian'; did you mean 'train'?",
        ("export_model",): "did you mean 'export'?",
        ("train", "--epohcs", 3): "unknown argument --epohcs; did you mean --epochs?",
    }.items():
        done = package(*args)
        assert (done.returncode, done.stdout) == (2, "") and error in done.stderr
    done = package("checkpoints", "list", tmp_path)
    assert done.returncode == 4 and done.stderr.startswith(f"error: {tmp_path}: no checkpoint")


HELP = """
import contextlib, io, json, runpy, sys
sys.path.insert(0, "tools")
commands = [["-m", "paddle_mnist"], *(["-m", "paddle_mnist", name] for name in COMMANDS)]
commands += [[f"tools/{name}.py"] for name in TOOLS]
printed = {}
for command in commands:
    for option in ("--help", "--version"):
        is_module = command[0] == "-m"
        sys.argv = [*command[is_module:], option]
        run = runpy.run_module if is_module else runpy.run_path
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                run(sys.argv[0], run_name="__main__")
            except SystemExit as end:
                assert not end.code, sys.argv
        printed[" ".join(sys.argv)] = out.getvalue()
        heavy = {"paddle", "visualdl", "matplotlib", "sklearn", *["scipy"] * is_module}
        assert heavy.isdisjoint(sys.modules), sys.argv
print(json.dumps(printed))
"""


def test_every_command_prints_help_and_version_without_paddle():
    tools = {path.stem for path in (ROOT / "tools").glob("*.py")}
    tools -= {"baseline_tutorial", "called", "faults", "markdown_tables", "translations"}
    program = f"COMMANDS, TOOLS = {list(COMMANDS)}, {sorted(tools)}\n{HELP}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    version = f"paddle_mnist {paddle_mnist.__version__} (paddlepaddle"
    for call, answer in answers.items():
        usage = re.match(r"usage: (paddle-mnist|tools/)", answer)
        assert usage if call.endswith("--help") else answer.startswith(version), call
        is_command = call.endswith("--help") and call.startswith("paddle_mnist")
        assert not is_command or re.search(r"\A.*\n\nexample: paddle-mnist ", answer), call
    missing = [name for name in FLAT_OPTIONS if f"--{name}" not in answers["tools/train.py --help"]]
    assert not missing


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("--train_url {} --init_method=tcp://a:1 --s3_part -1", 0, "ignored: --init_method, --s3_"),
        ("--output {} --ignore_unknown --init_method a", 0, "ignored: --init_method"),
        ("--train_url {} --s3_part 1 --learing_rate 1", 2, "did you mean --learning_rate?"),
        ("--train_url {} --lr 1", 2, "did you mean --learning_rate?"),
        ("--train_url {} stray", 2, "unknown argument stray"),
        ("--output {} --s3_part 1", 2, "unknown argument --s3_part; --help lists"),
        ("--output {} --data nowhere", 3, "nowhere: no such file"),
        ("--output /proc/nowhere", 7, "/proc/check: cannot write"),
    ],
)
def test_check_shows_what_train_needs_and_platforms_may_append_arguments(
    arguments, code, said, tmp_path, capsys
):
    words = f"--data digits {arguments}".format(tmp_path / "a" / "b").split()
    assert command("check").main(words) == code
    printed = capsys.readouterr()
    assert said in printed.err
    if not code:
        shown = r"device  \S+, Paddle .*\ndata    digits, .*readable\noutput  .*: writable, .*\n"
        assert re.match(shown, printed.out)
    assert not [*tmp_path.iterdir()]

"""Homes, streams, proxies and backends as users' machines have them."""

import importlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import AS_USER, ROOT

from paddle_mnist.__main__ import COMMANDS
from paddle_mnist.commands import run_command
from paddle_mnist.metrics.console import console_logs
from paddle_mnist.system.environment import usable_home

PICTURE = str(ROOT / "tests/pictures/0-00.jpg")
SMALL = "--data digits --train_limit 200 --eval_limit 50 --epochs 1".split()
CHINESE, NOT_UTF8 = "数字", os.fsdecode(b"\xe9t\xe9")  # names of files
log = logging.getLogger("paddle_mnist")


def main(command, *args):
    """Run a command in this process; return its exit code."""
    module = importlib.import_module(f"paddle_mnist.commands.{COMMANDS[command]}")
    return module.main([*map(str, args)])


def start(command, folder, **options):
    """Run a shell's line in a folder, as a user does; return the process that has ended."""
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, **options)


# ------------------------------------------------------------------ home

# Runs commands, and then `fit`, which needs a home for VisualDL and for `to_static`.
IN_HOME = """
import json, os, sys
from importlib import import_module

home = os.environ.get("HOME")
for name, *argv in json.loads(sys.argv[1]):
    assert import_module(f"paddle_mnist.commands.{name}").main(argv) == 0, name
    assert os.environ.get("HOME") == home

import paddle
from paddle_mnist import VisualDL, fit

net = paddle.jit.to_static(paddle.nn.Linear(4, 2))
data = [(paddle.ones([4]).numpy(), n % 2) for n in range(8)]
optimizer = paddle.optimizer.SGD(0.1, net.parameters())
loss, pages = paddle.nn.CrossEntropyLoss(), VisualDL(["scalars"])
fit(net, data, output="own", optimizer=optimizer, loss=loss, epochs=1, callbacks=[pages])
assert os.environ.get("HOME") == home
"""
COMMANDS_IN_HOME = [
    ["infer", PICTURE],
    ["train", *SMALL, "--fast_conv", "off", "--visualdl", "all", "--output", "run"],
    ["plot", "run", "--only", "curves.png"],
    ["export_model", "--run", "run", "--output", "exported"],
]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="becomes another user")
def test_commands_and_fit_without_a_home_use_a_temporary_one():
    with tempfile.TemporaryDirectory() as name:  # other users do not find the folders of pytest
        public = Path(name)
        public.chmod(0o755)
        for folder in ("work", "tmp"):
            (public / folder).mkdir()
            (public / folder).chmod(0o777)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(public / "tmp")}
        del environment["PADDLE_MNIST_CACHE"], environment["HOME"]
        program = [*AS_USER, sys.executable, "-c", IN_HOME, json.dumps(COMMANDS_IN_HOME)]
        done = subprocess.run(
            program, cwd=public / "work", env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert (done.stdout + done.stderr).count("so caches are temporary") == 1
        assert "Traceback" not in done.stderr and "Matplotlib" not in done.stderr
        left = {path.name for path in (public / "work").iterdir()}
        assert left == {"run", "exported", "own"}  # no folder called "~"
        assert not list((public / "tmp").glob("paddle_mnist-home-*"))


def test_temporary_home_shows_what_is_in_the_read_only_one(tmp_path, monkeypatch):
    """Packages of `pip install --user`, credentials, data sets."""
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".visualdl").touch()  # as good as a folder that cannot be written, and root's too
    (home / "data").write_text("of the user")
    monkeypatch.setenv("HOME", str(home))
    with usable_home():
        own = Path.home()
        assert own != home and (own / "data").read_text() == "of the user"
        assert (own / ".aws").is_dir()
        (own / "new").touch()
    assert Path.home() == home and not any(home.rglob("new"))


@pytest.mark.skipif(not Path("/proc").exists(), reason="has no /proc")
def test_home_that_even_root_cannot_make_is_replaced(monkeypatch):
    monkeypatch.setenv("HOME", "/proc/nowhere")
    with usable_home():
        (Path.home() / "new").touch()


# ------------------------------------------------------------------ what streams can encode


class Terminal(io.TextIOWrapper):
    """A stream of some encoding, and what was written to it."""

    def __init__(self, encoding):
        super().__init__(io.BytesIO(), encoding=encoding)

    @property
    def text(self):
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


@pytest.fixture
def terminal(monkeypatch):
    """`terminal(ENCODING)` replaces the standard output; gives the stream."""

    def replace(encoding):
        stream = Terminal(encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    return replace


def test_text_that_cannot_be_encoded_is_escaped(terminal):
    """Printed by a command, and logged by it or, without a command, by the library."""
    names = [CHINESE, NOT_UTF8]

    def command(argv):
        print(*argv, flush=True)
        log.info("%s %s", *argv)

    for encoding in ("ascii", "latin-1", "cp1252", "gbk", "utf-8"):
        expected = [name.encode(encoding, "backslashreplace").decode(encoding) for name in names]
        stream = terminal(encoding)
        assert run_command(command, names) == 0
        assert stream.text.splitlines() == [" ".join(expected)] * 2
        assert sys.stdout is stream
        stream = terminal(encoding)
        with console_logs(stream):
            log.info("%s %s", *names)
        assert stream.text == " ".join(expected) + "\n"


@pytest.mark.slow
def test_commands_take_paths_that_are_not_utf8(tmp_path, tiny, terminal, monkeypatch):
    """Of data, runs, pictures and temporary files. Paddle exports only to those that are."""
    strange = tmp_path / (CHINESE + NOT_UTF8)
    strange.mkdir()
    (strange / f"{NOT_UTF8}.json.gz").write_bytes(tiny.read_bytes())
    (strange / f"{CHINESE}.jpg").write_bytes(Path(PICTURE).read_bytes())
    run, model = strange / "run", tmp_path / CHINESE
    stream = terminal("ascii")
    monkeypatch.setenv("TMPDIR", str(strange))
    monkeypatch.setattr("tempfile.tempdir", None)
    small = ["--data", strange / f"{NOT_UTF8}.json.gz", "--output", run, "--batch_size", 32]
    small += ["--recipe", "default"]
    assert main("train", *small, "--epochs", 1, "--figures", "false") == 0
    assert main("train", *small, "--epochs", 2, "--override", "epochs") == 0
    resumed = f"resuming after step 10, from {run}"
    assert resumed.encode("ascii", "backslashreplace").decode() in stream.text
    lines = (run / "train.log").read_text(encoding="utf-8")
    assert resumed.encode(errors="backslashreplace").decode() in lines
    assert json.loads((run / "result.json").read_text())["dataset"] == f"{NOT_UTF8}.json.gz"
    assert main("export", "--run", run, "--output", strange / "model") == 2
    assert main("export", "--run", run, "--output", model) == 0
    assert main("infer", "--model", model, PICTURE) == 0
    picture = strange / f"{CHINESE}.jpg"
    assert main("infer", "--run", run, picture, "--show", strange / "sheet.png") == 0
    assert str(picture).encode("ascii", "backslashreplace").decode() in stream.text
    stream = terminal("ascii")
    assert main("eval", "--output", run, "--json") == 0
    assert json.loads(stream.text)["count"] == 70


# ------------------------------------------------------------------ streams that are full or closed


COMMAND = f"{sys.executable} -m paddle_mnist"
# What a shell does with the streams: the exit code, and what is in stderr.
REDIRECTED = {
    "checkpoints --version > /dev/full": (7, "error: cannot write"),
    "checkpoints --help > /dev/full": (7, "error: cannot write"),
    "checkpoints --help >&- 2>&- <&-": (0, ""),
    "checkpoints list none >&-": (4, "error: none: no checkpoint"),
    "checkpoints list none 2> /dev/full": (4, ""),
}


def test_command_whose_streams_are_closed_or_full_exits_with_its_code(tmp_path):
    for line, (code, error) in REDIRECTED.items():
        done = start(f"{COMMAND} {line}", tmp_path)
        assert done.returncode == code and done.stderr.decode().startswith(error), done.stderr
        assert done.stderr.count(b"\n") == bool(error)


# ------------------------------------------------------------------ backends


def test_commands_draw_into_files_and_leave_the_environment_alone(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "TkAgg")
    outside, inside = dict(os.environ), {}
    run_command(lambda argv: inside.update(os.environ), [])
    assert inside["MPLBACKEND"] == "Agg" and dict(os.environ) == outside

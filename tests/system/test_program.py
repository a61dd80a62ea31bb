"""The program's name, the way to start it again, and the lines of the log to paste."""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import ROOT

from paddle_mnist.system import program

MODULE = str(ROOT / "paddle_mnist/__main__.py")
SCRIPT = str(ROOT / "tools/export_model.py")


@pytest.mark.parametrize(
    ("started", "name", "arguments"),
    [
        (r"paddle-mnist.exe", "paddle-mnist export", [r"paddle-mnist.exe", "export"]),
        (MODULE, "python -m paddle_mnist export", ["-m", "paddle_mnist", "export"]),
        (SCRIPT, "tools/export_model.py", [SCRIPT]),
        ("/elsewhere/tools/export_model.py", "paddle-mnist export", None),
        ("", "paddle-mnist export", None),
    ],
)
def test_program_is_named_and_restarted_as_it_was_started(monkeypatch, started, name, arguments):
    monkeypatch.setattr(sys, "argv", [started, "export", "--output", "out"])
    assert program.program_name("export") == name
    assert program.start_arguments("export") == (arguments or [started])


def test_command_is_named_as_it_was_typed(monkeypatch):
    spellings = ("export", "export_model", "export-model")
    for spelling in spellings:
        monkeypatch.setattr(sys, "argv", ["/somewhere/bin/paddle-mnist", spelling, "--help"])
        assert program.program_name("export") == f"paddle-mnist {spelling}"
        assert program.program_name("infer") == "paddle-mnist infer"
    commands = [program.command_name(name) for name in (*spellings, "train_ps", "trian", "-h")]
    assert commands == ["export"] * 3 + ["train-ps", None, None]


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    """This Python's folder of scripts, an empty one; nothing is on PATH, and tmp_path is here."""
    folder = tmp_path / "the environment/bin"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme=None: str(folder))
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setattr(sys, "argv", [str(ROOT / "tools/train.py")])
    monkeypatch.chdir(tmp_path)
    return folder


def install(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "paddle-mnist"
    path.write_text("#!/bin/sh\necho $0 $1 $2\n")
    path.chmod(0o755)
    return path


def pasted(line):
    """Run a line in a shell; return its output."""
    done = subprocess.run(["sh", "-c", line], check=True, capture_output=True, text=True)
    return done.stdout.rstrip("\n")


def test_dashboard_of_the_installed_program(monkeypatch, scripts, tmp_path):
    path = install(scripts)
    line = program.shell_command("dashboard", "a run")
    assert line == "'the environment/bin/paddle-mnist' dashboard 'a run'"
    assert pasted(line).endswith("bin/paddle-mnist dashboard a run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert shlex.split(program.shell_command("dashboard")) == [str(path), "dashboard"]
    monkeypatch.setenv("PATH", f"{scripts}:{os.environ['PATH']}")
    line = program.shell_command("dashboard", "run")
    assert line == "paddle-mnist dashboard run"
    assert pasted(line) == f"{path} dashboard run"


def test_program_of_another_environment_is_not_named(monkeypatch, scripts, tmp_path):
    path = install(scripts)
    other = install(tmp_path / "other").parent
    monkeypatch.setenv("PATH", f"{other}:{os.environ['PATH']}")
    assert pasted(program.shell_command("dashboard")).strip().endswith(f"{path.name} dashboard")
    assert "the environment" in program.shell_command("dashboard")


def test_program_that_runs_is_named_where_path_links_to_it(monkeypatch, scripts, tmp_path):
    """As by pipx."""
    link = tmp_path / "links/paddle-mnist"
    link.parent.mkdir()
    link.symlink_to(install(scripts))
    monkeypatch.setenv("PATH", f"{link.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "argv", [str(link), "train"])
    assert program.shell_command("dashboard", "run") == "paddle-mnist dashboard run"


def test_dashboard_in_a_repository_that_is_not_installed(monkeypatch, scripts):
    tool = ROOT / "tools/dashboard.py"
    expected = [sys.executable, str(tool), "run"]
    assert shlex.split(program.shell_command("dashboard", "run")) == expected
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(ROOT)
    line = program.shell_command("dashboard", "run")
    assert line == f"{Path(sys.executable).name} tools/dashboard.py run"


def test_dashboard_of_the_package_alone_is_a_module(monkeypatch, scripts, tmp_path):
    monkeypatch.setattr(program, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "paddle_mnist/__main__.py"), "train"])
    line = program.shell_command("dashboard", "run")
    assert shlex.split(line) == [sys.executable, "-m", "paddle_mnist", "dashboard", "run"]

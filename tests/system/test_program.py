"""The name of a command, and the way to start it again."""

import sys

from conftest import ROOT

from paddle_mnist.system.program import command_name, start_arguments

INSTALLED = ["/somewhere/bin/paddle-mnist", "paddle-mnist", r"paddle-mnist.exe"]
MODULE = str(ROOT / "paddle_mnist/__main__.py")
OTHERS = ["/somewhere/pytest/__main__.py", str(ROOT / "tools/export_model.py"), "-c", ""]


def test_start_arguments_start_the_program_as_it_was_started(monkeypatch):
    expected = {name: [name, "export"] for name in INSTALLED}
    expected |= {MODULE: ["-m", "paddle_mnist", "export"]}
    expected |= {name: [name] for name in OTHERS}
    for started, arguments in expected.items():
        monkeypatch.setattr(sys, "argv", [started, "export", "--output", "out"])
        assert start_arguments("export") == arguments


def test_command_name_accepts_dashes_underscores_and_modules():
    spellings = ("export", "export_model", "export-model", "train")
    commands = [command_name(name) for name in spellings]
    assert commands == ["export"] * 3 + ["train"]
    assert command_name("trian") is None and command_name("-h") is None

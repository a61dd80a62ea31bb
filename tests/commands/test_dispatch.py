"""The name of a command."""

from paddle_mnist.commands._dispatch import command_name


def test_command_name_accepts_dashes_underscores_and_modules():
    spellings = ("export", "export_model", "export-model", "train")
    commands = [command_name(name) for name in spellings]
    assert commands == ["export"] * 3 + ["train"]
    assert command_name("trian") is None and command_name("-h") is None

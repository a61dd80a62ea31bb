"""What the READMEs say: every command runs, both say the same, and no file is forgotten."""

import os
import re
import shlex
import subprocess
import sys

import forked
import pytest
from conftest import ROOT
from log_lines import LINE
from synthetic_data import tiny_splits, write_json

from paddle_mnist.mnist.config import recipes

READMES = {name: (ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md")}


def blocks(name, language):
    return re.findall(rf"```{language}\n(.*?)```", READMES[name], re.DOTALL)


def test_both_readmes_hold_the_same_code():
    english, chinese = (
        [blocks(name, kind) for kind in ("sh", "text", "python")] for name in READMES
    )
    assert english == chinese


def test_both_readmes_hold_the_same_numbers_and_names():
    """Figures, options, file names: whatever stands in tables and in code marks."""

    def facts(text):
        rows = [line for line in text.splitlines() if line.startswith("|")]
        return (
            sorted(re.findall(r"`[^`\n]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))),
            [re.findall(r"\d+(?:\.\d+)?", row) for row in rows],
        )

    english, chinese = map(facts, READMES.values())
    assert {f.replace("<recipe>", "<配方>") for f in english[0]} == set(chinese[0])
    assert english[1] == chinese[1]


@pytest.mark.slow
@pytest.mark.timeout(900)  # several whole trainings
def test_commands_run_as_written_and_in_order(tmp_path, tool):
    """In an empty folder; where MNIST cannot be had they use the embedded digits."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    commands = [block for block in blocks("README.md", "sh") if "python tools/" in block]
    commands = [block for block in commands if "pip install" not in block]
    for line in "".join(commands).splitlines():
        python, script, *arguments = shlex.split(line, comments=True)
        assert python == "python"
        tool(script.removeprefix("tools/").removesuffix(".py"), *arguments)


QUICK = ("checkpoints", "deployment", "fluid")  # the others' commands train for longer
PAGES = [
    pytest.param(page, id=page.stem, marks=() if page.stem in QUICK else pytest.mark.slow)
    for page in sorted((ROOT / "docs").glob("*.md"))
    if "```sh" in page.read_text()
]


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_pages_run_as_written(tmp_path, tool, page):
    """In a folder with a small work/mnist.json.gz, where the plain command was run before."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "work").mkdir()
    write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    tool("train", "--epochs", "1", "--visualdl", "false", "--figures", "false")
    commands = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    assert commands
    scripts = os.path.dirname(sys.executable)  # where `python` and `paddle-mnist` are
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for line in "".join(commands).replace("\\\n", " ").splitlines():
        program, script, *arguments = words = shlex.split(line, comments=True)
        assert program in ("python", "paddle-mnist")
        # --legacy: before Paddle is imported
        if program == "paddle-mnist" or script == "-m" or "--legacy" in arguments:
            command = [word.replace("tools/", f"{ROOT}/tools/") for word in words]
            subprocess.run(command, cwd=tmp_path, env=env, check=True)
        else:
            tool(script.removeprefix("tools/").removesuffix(".py"), *arguments)


EXAMPLES = [
    (path.name, number, example)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, example in enumerate(
        re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL), 1
    )
]


@pytest.mark.parametrize(
    "example", [example[2] for example in EXAMPLES], ids=[f"{e[0]}-{e[1]}" for e in EXAMPLES]
)
def test_python_example_runs(tmp_path, example):
    (tmp_path / "work").mkdir()
    write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    (tmp_path / "example.py").write_text(example)
    done = forked.run([sys.executable, tmp_path / "example.py"], cwd=tmp_path)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_log_excerpt_has_the_form_of_the_log():
    (excerpt,) = blocks("README.md", "text")
    lines = [line for line in excerpt.splitlines() if " lr " in line]
    assert lines and all(map(LINE.fullmatch, lines))


def test_every_recipe_is_listed_with_what_its_header_promises():
    rows = re.findall(r"^\| `([\w-]+)` \| .*? \| at least ([\d.]+) %", READMES["README.md"], re.M)
    assert {name for name, _ in rows} == set(recipes())
    for name, percent in rows:
        promised = re.search(r"accuracy >= ([\d.]+)", recipes()[name].read_text())[1]
        assert float(promised) * 100 == pytest.approx(float(percent))


def test_every_fault_names_a_test_that_is_there():
    section = READMES["README.md"].partition("## What happens if")[2].partition("\n## ")[0]
    named = re.findall(r"^\|.*`([\w/]*test_\w+\.py)::(test_\w+)` \|$", section, re.M)
    assert len(named) == section.count("\n|") - 2
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"


def test_every_dependency_is_explained():
    config = (ROOT / "setup.cfg").read_text()
    names = re.findall(r"^    ([A-Za-z][\w-]+)(?:[<>=].*)?$", config, re.M)
    listed = READMES["README.md"].partition("## Dependencies")[2]
    for name in {n for n in names if n not in ("error",)}:
        assert name in listed, name

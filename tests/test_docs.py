"""The pages: examples run, links lead somewhere, both languages agree."""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys

import forked
import pytest
import yaml
from conftest import ROOT
from markdown_tables import marked_tables, translated
from pages import ENGLISH, TRANSLATED, blocks, name, without_code
from synthetic_data import tiny_splits, write_json

from paddle_mnist.__main__ import COMMANDS

EN = ROOT / "docs/en"
RUN_ELSEWHERE = ("README", "install")  # test_readme and test_install do
WITH_MNIST = ("incremental", "several-processes", "train")  # others are read without, too
DRAW = ("looking-inside",)  # others train without figures
BLOCKS = [
    pytest.param(path, block, id=f"{path.stem}-{number}")
    for path in ENGLISH
    if path.stem not in RUN_ELSEWHERE
    for number, block in enumerate(blocks(path, "sh"), 1)
    if "paddle-mnist " in block or "tools/" in block
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("path", "block"), BLOCKS)
def test_commands_of_a_block_run_in_an_empty_folder(tmp_path, tool, path, block):
    """As written and in order; where the page needs it, with a small work/mnist.json.gz.

    Trainings draw no figures, except on the page that is about these.
    """
    if path.stem in WITH_MNIST:
        (tmp_path / "work").mkdir()
        write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    lines = block.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    if path.stem not in DRAW:
        trainings = (words for words in commands if {"train", "tools/train.py"} & {*words})
        for words in trainings:
            words.extend(["--visualdl", "false", "--figures", "false"])
    scripts = os.path.dirname(sys.executable)  # where `python` and `paddle-mnist` are
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for words in commands:
        program, name, *arguments = words
        if program == "pip":
            continue  # test_install runs these
        assert program in ("python", "paddle-mnist")
        if program == "python" or "--legacy" in arguments:  # which is before Paddle is imported
            command = [word.replace("tools/", f"{ROOT}/tools/") for word in words]
            subprocess.run(command, cwd=tmp_path, env=env, check=True)
        else:
            tool(COMMANDS[name], *arguments)


EXAMPLES = {
    f"{path.stem}-{number}": example
    for path in ENGLISH
    for number, example in enumerate(blocks(path, "python"), 1)
}
FINISHED = "this run is finished; to train longer, "


@pytest.mark.slow
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=title)
        for title, example in EXAMPLES.items()
        if title != "README-1"  # test_readme kills and resumes it
    ],
)
def test_python_example_runs_and_is_finished_when_it_runs_again(tmp_path, example):
    """A program that calls `fit` runs twice, the second time to the same result."""
    (tmp_path / "work").mkdir()
    write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    shutil.copy(ROOT / "tests/pictures/0-00.jpg", tmp_path / "work/my.png")  # the reader's own
    (tmp_path / "example.py").write_text(example)

    def run():
        done = forked.run([sys.executable, tmp_path / "example.py"], cwd=tmp_path)
        assert done.returncode == 0 and done.stdout, done.stderr
        assert "No such file" not in done.stdout
        return done.stdout

    printed = run()
    if 'print(result.metrics["valid/acc"]' in example:  # more than chance
        assert float(printed.splitlines()[-1].split()[0]) > 0.8
    if "fit(" in example:
        assert FINISHED in (again := run()) and "epoch 1/" not in again


def test_quoted_code_is_in_an_example():
    """Blocks of `py` are parts of examples/, where tests run them, or of the tutorial's loop."""
    paths = [*(ROOT / "examples").glob("*.py"), ROOT / "tools/baseline_tutorial.py"]
    scripts = "".join(path.read_text() for path in paths)
    quoted = [block for path in ENGLISH for block in blocks(path, "py")]
    assert quoted and not [block for block in quoted if block not in scripts]


def test_pages_write_into_folders_of_their_own():
    """So that a reader may follow them all in one folder."""
    writer = {}
    for path in ENGLISH:
        text = "".join(blocks(path, "python") + blocks(path, "sh"))
        for folder in set(re.findall(r'(?:output=|run = |--output )"?(work/output/[\w-]+)', text)):
            assert writer.setdefault(folder, path) == path, folder


def test_examples_import_the_package_before_paddle():
    """It silences Paddle on ccache, and saves numba from Paddle 2."""
    scripts = (path.read_text() for path in (ROOT / "examples").glob("*.py"))
    for code in (*EXAMPLES.values(), *scripts):
        first = re.search(r"^(?:from|import) (paddle\w*)", code, re.MULTILINE)
        assert first[1] == "paddle_mnist", code


def contents(path):
    """Return the code, names and figures of a page; comments in a shell's lines are translated."""
    text = without_code(path.read_text().partition("```json")[0]).replace("<recipe>", "<预设配置>")
    # Without comments and links: a page may be there in one language only.
    rows = re.findall(r"^\|.*", re.sub(r"<!-- .*? -->|\]\([^)]*\)", "", text), re.M)
    return {
        "commands": [re.sub(r"\s+#.*", "", block) for block in blocks(path, "sh")],
        "output": [re.sub(r"\s+#.*", "", block) for block in blocks(path, "text")],
        "examples": blocks(path, "python") + blocks(path, "py"),
        "marks": {*re.findall(r"`[^`\n]+`", text)},
        "figures": [sorted(re.findall(r"\d+(?:\.\d+)?", row)) for row in rows],
    }


def test_both_languages_hold_the_same_code_names_and_figures():
    """And tables in Chinese are translated by `tools/markdown_tables.py docs/en docs/zh`."""
    glossary = yaml.safe_load((ROOT / "docs/zh/tables.yaml").read_text())
    differing = []
    for page, other in TRANSLATED.items():
        english, chinese = contents(page), contents(other)
        kinds = [kind for kind in english if english[kind] != chinese[kind]]
        if page.parent == EN:
            tables = marked_tables(page.read_text())
            expected = {mark: translated(table, glossary) for mark, table in tables.items()}
            kinds += ["tables"] * (marked_tables(other.read_text()) != expected)
        differing += [f"{name(page)}: {kind}" for kind in kinds]
    assert not differing


@functools.cache
def anchors(path):
    """Return the anchors of a Markdown file: its headings' as GitHub makes them, and HTML's."""
    text = path.read_text()
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.M)
    headings = [re.sub(r"<[^>]*>|[`*]", "", heading).strip().lower() for heading in headings]
    slugs = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


AT_ROOT = "CHANGELOG CONTRIBUTING README README.zh-CN REPRODUCTION SECURITY".split()


def test_links_and_paths_exist():
    """Links in a page of the repository, and paths below docs/ wherever they are named."""
    pages = {*ENGLISH, *(ROOT / "docs/zh").glob("*.md"), *(ROOT / f"{page}.md" for page in AT_ROOT)}
    broken = []
    for path in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            is_there = there.exists() and (not anchor or anchor in anchors(there))
            if not target.startswith("http") and not is_there:
                broken.append(f"{name(path)}: {target}")
    kinds = ("*.py", "*.yaml", "*.ipynb")
    folders = ("paddle_mnist", "tools", "examples", "notebooks")
    files = [path for folder in folders for kind in kinds for path in (ROOT / folder).rglob(kind)]
    for path in (*pages, *files, ROOT / "setup.cfg"):
        named = re.findall(r"(?<![\w/.])docs/[\w/-]+\.(?:md|png|json)\b", path.read_text())
        broken += [f"{name(path)}: {target}" for target in named if not (ROOT / target).exists()]
    assert not broken

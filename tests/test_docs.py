"""The pages: examples run, the site is built, links lead somewhere, both languages agree."""

import os
import re
import runpy
import shlex
import subprocess
import sys

import forked
import pytest
import yaml
from conftest import ROOT
from markdown_tables import marked_tables, translated
from pages import ENGLISH, TRANSLATED, blocks, name, translation, without_code
from synthetic_data import tiny_splits, write_json

import paddle_mnist
from paddle_mnist.mnist.config import FLAT_OPTIONS

EN = ROOT / "docs/en"


QUICK = ("checkpoints", "deployment", "fluid")  # the others' commands train for longer
WITH_COMMANDS = [
    pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow)
    for path in ENGLISH
    if any("python tools/" in block for block in blocks(path, "sh"))
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", WITH_COMMANDS)
def test_commands_of_the_pages_run_as_written_and_in_order(tmp_path, tool, path):
    """In a folder with a small work/mnist.json.gz, where the plain command is run if it was not."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "work").mkdir()
    write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    lines = "".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    if ["python", "tools/train.py"] not in commands:
        tool("train", "--epochs", "1", "--visualdl", "false", "--figures", "false")
    scripts = os.path.dirname(sys.executable)  # where `python` and `paddle-mnist` are
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for words in commands:
        program, script, *arguments = words
        if program == "pip":
            continue  # test_install runs these
        assert program in ("python", "paddle-mnist")
        # --legacy: before Paddle is imported
        if program == "paddle-mnist" or script == "-m" or "--legacy" in arguments:
            command = [word.replace("tools/", f"{ROOT}/tools/") for word in words]
            subprocess.run(command, cwd=tmp_path, env=env, check=True)
        else:
            tool(script.removeprefix("tools/").removesuffix(".py"), *arguments)


EXAMPLES = [
    pytest.param(example, id=f"{path.stem}-{number}")
    for path in ENGLISH
    for number, example in enumerate(blocks(path, "python"), 1)
]


FINISHED = "this run is finished; to train anew: "
# The tutorial's code seeds nothing; two processes print in any order.
NEVER_ALIKE = ("shuffle=True", "spawn(")


@pytest.mark.parametrize("example", EXAMPLES)
def test_python_example_runs_twice_in_a_folder(tmp_path, example):
    """To the same result; what trains with `fit` does not train again."""
    (tmp_path / "work").mkdir()
    write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    (tmp_path / "example.py").write_text(example)
    command = [sys.executable, tmp_path / "example.py"]
    first, again = (forked.run(command, cwd=tmp_path) for _ in range(2))
    for done in (first, again):
        assert done.returncode == 0 and done.stdout, done.stderr
    if "fit(" in example:
        assert FINISHED in again.stdout and "epoch 1/" not in again.stdout
    if not any(words in example for words in NEVER_ALIKE):
        printed = first.stdout.replace(" finished\n", " already finished\n").splitlines()
        new = [line for line in again.stdout.splitlines() if line not in printed]
        # A line of a training has its times.
        assert all(line.startswith((FINISHED, "epoch ")) for line in new), new


def test_what_a_page_writes_no_other_page_writes():
    """So that a reader may follow them all in one folder."""
    writer = {}
    for path in ENGLISH:
        text = "".join(blocks(path, "python") + blocks(path, "sh"))
        for folder in set(re.findall(r'(?:output=|run = |--output )"?(work/output/[\w-]+)', text)):
            assert writer.setdefault(folder, path) == path, folder


def test_examples_import_the_package_before_paddle():
    """It silences Paddle on ccache, and saves numba from Paddle 2."""
    scripts = (path.read_text() for path in (ROOT / "examples").glob("*.py"))
    for code in (*(example.values[0] for example in EXAMPLES), *scripts):
        first = re.search(r"^(?:from|import) (paddle\w*)", code, re.MULTILINE)
        assert first[1] == "paddle_mnist", code


SITE = re.findall(r"^\t\$\(SITE\) (.*)$", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arguments", SITE)
def test_site_is_built_without_a_warning(tmp_path, arguments):
    """By the commands of `make docs`. Links to pages, headings and names are checked."""
    pytest.importorskip("sphinx", reason="needs the extra docs")
    (options,) = re.findall(
        r"^SITE = \$\(RUN\)/python (.*)$", (ROOT / "Makefile").read_text(), re.M
    )
    *options, source, _ = shlex.split(f"{options} {arguments}")
    command = [sys.executable, *options, source, tmp_path / "site"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for path in (ROOT / source).glob("*.md"):
        assert (tmp_path / f"site/{path.stem}.html").exists()
    if source == "docs/en":
        commands, api = (
            (tmp_path / f"site/{name}.html").read_text() for name in ("commands", "api")
        )
        assert all(
            f'<span class="pre">--{name}</span>' in commands or f"--{name} " in commands
            for name in FLAT_OPTIONS
        )
        assert all(f'id="paddle_mnist.{name}"' in api for name in paddle_mnist.__all__)


def code_of(path):
    """Return the code of a page; comments in a shell's lines are translated."""
    commands, texts = (
        [re.sub(r"\s+#.*", "", block) for block in blocks(path, language)]
        for language in ("sh", "text")
    )
    return [commands, texts, blocks(path, "python")]


@pytest.mark.parametrize("path", TRANSLATED, ids=name)
def test_both_languages_hold_the_same_code(path):
    assert code_of(path) == code_of(translation(path))


@pytest.mark.parametrize("path", TRANSLATED, ids=name)
def test_both_languages_hold_the_same_numbers_and_names(path):
    """Figures, options, file names: whatever stands in tables and in code marks."""

    def facts(text):
        text = without_code(text)
        rows = [line for line in text.splitlines() if line.startswith("|")]
        # but for links: a page may be there in one language only
        rows = [re.sub(r"\]\([^)]*\)", "]", row) for row in rows]
        return (
            set(re.findall(r"`[^`\n]+`", text)),
            [sorted(re.findall(r"\d+(?:\.\d+)?", row)) for row in rows],
        )

    english, chinese = facts(path.read_text()), facts(translation(path).read_text())
    assert {mark.replace("<recipe>", "<配方>") for mark in english[0]} == chinese[0]
    assert english[1] == chinese[1]


@pytest.mark.parametrize("path", [path for path in TRANSLATED if path.parent == EN], ids=name)
def test_tables_in_chinese_are_those_in_english_translated(path):
    """By the glossary; `python tools/markdown_tables.py docs/en docs/zh` writes them."""
    glossary = yaml.safe_load((ROOT / "docs/zh/tables.yaml").read_text())
    english = marked_tables(path.read_text())
    expected = {mark: translated(table, glossary) for mark, table in english.items()}
    assert marked_tables(translation(path).read_text()) == expected


PAGES = [
    *ENGLISH,
    *sorted((ROOT / "docs/zh").glob("*.md")),
    *sorted(path for path in ROOT.glob("*.md") if path not in ENGLISH),
]


def anchors(path):
    """Return the anchors of a Markdown file: its headings' as GitHub makes them, and HTML's."""
    text = path.read_text()
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.M)
    headings = [re.sub(r"<[^>]*>|[`*]", "", heading).strip().lower() for heading in headings]
    slugs = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path):
    """On a repository page; of those in the site, see the test that builds it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


def test_paths_of_pages_are_there_wherever_they_are_named():
    """In messages, docstrings and texts, from the root of the repository; in English, at least."""
    folders = ("paddle_mnist", "tools", "examples", "docs/en", "docs/zh", "notebooks")
    kinds = ("*.py", "*.md", "*.yaml", "*.ipynb")
    files = [path for folder in folders for kind in kinds for path in (ROOT / folder).rglob(kind)]
    files += [*PAGES, ROOT / "setup.cfg"]
    named = {
        (target, name(path))
        for path in files
        for target in re.findall(r"(?<![\w/.])docs/[\w/-]+\.(?:md|png|json)\b", path.read_text())
    }
    assert named
    for target, file in named:
        assert (ROOT / target.replace("docs/zh/", "docs/en/")).exists(), f"{target} in {file}"


def test_navigation_has_every_page_once():
    navigation = runpy.run_path(str(ROOT / "docs/conf.py"))["NAVIGATION"]
    pages = [page for _, pages in navigation for page in pages]
    assert sorted(pages) == sorted(path.stem for path in EN.glob("*.md") if path.stem != "index")

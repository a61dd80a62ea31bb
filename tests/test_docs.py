"""The pages: examples run, links lead somewhere, both languages agree."""

import functools
import importlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import forked
import pytest
import yaml
from conftest import ROOT
from markdown_tables import marked_tables, translated
from pages import ENGLISH, TRANSLATED, blocks, name, translation, without_code
from synthetic_data import tiny_splits, write_json

from paddle_mnist.system.program import COMMANDS, module_name

EN = ROOT / "docs/en"


RUN_ELSEWHERE = ("README", "get-started", "install")  # test_readme and test_install do
WITH_MNIST = ("incremental", "several-processes", "train")  # others are read without, too
DRAW = ("looking-inside", "train")  # others train without figures
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
def test_commands_of_a_block_started_in_an_empty_folder_run(tmp_path, tool, path, block):
    """As written and in order; where the page needs it, with a small work/mnist.json.gz.

    Trainings draw no figures, but on the pages that are about these.
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
            tool(module_name(name), *arguments)


EXAMPLES = [
    pytest.param(example, id=f"{path.stem}-{number}")
    for path in ENGLISH
    for number, example in enumerate(blocks(path, "python"), 1)
]


FINISHED = "this run is finished; to train on: "
# The tutorial's code seeds nothing; two processes print in any order.
NEVER_ALIKE = ("shuffle=True", "spawn(")


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_python_example_runs_twice_in_a_folder(tmp_path, example):
    """To the same result; what trains with `fit` does not train again."""
    (tmp_path / "work").mkdir()
    write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    shutil.copy(ROOT / "tests/pictures/0-00.jpg", tmp_path / "work/my.png")  # the reader's own
    (tmp_path / "example.py").write_text(example)
    command = [sys.executable, tmp_path / "example.py"]
    first, again = (forked.run(command, cwd=tmp_path) for _ in range(2))
    for done in (first, again):
        assert done.returncode == 0 and done.stdout, done.stderr
        assert "No such file" not in done.stdout
    if 'print(result.metrics["valid/acc"]' in example:  # more than chance
        assert float(first.stdout.splitlines()[-1].split()[0]) > 0.8
    if "fit(" in example:
        assert FINISHED in again.stdout and "epoch 1/" not in again.stdout
    if not any(words in example for words in NEVER_ALIKE):
        printed = first.stdout.replace(" finished\n", " already finished\n").splitlines()
        new = [line for line in again.stdout.splitlines() if line not in printed]
        # A line of a training has its times.
        assert all(line.startswith((FINISHED, "epoch ")) for line in new), new


WHAT_CHANGES = (EN / "any-net.md").read_text().partition("\n## What changes during training\n")[2]
KILLED = """
import os
import signal

from paddle_mnist import Callback, Saving, is_rehearsal


class Kill(Callback):
    def after_step(self, view):
        is_there = view.state.epoch == {epochs} - 1 and view.state.position == 9
        if is_there and not is_rehearsal() and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "title, example",
    [
        pytest.param(title, example, id=title)
        for title, example in re.findall(
            r"^### (.*?)\n.*?^```python\n(.*?)^```", WHAT_CHANGES.partition("\n## ")[0], re.S | re.M
        )
    ],
)
def test_what_changes_during_training_is_the_same_where_a_killed_run_resumes(
    title, example, tmp_path
):
    """Killed inside the last epoch, four steps after a checkpoint."""
    epochs = int(re.search(r"epochs=(\d+)", example)[1])
    code = KILLED.format(epochs=epochs) + example.replace(
        "callbacks=[", "saving=Saving(every_steps=5), callbacks=[Kill(), "
    )
    weights = []
    for folder, is_killed in (("whole", False), ("run", True)):
        cwd = tmp_path / folder
        cwd.mkdir()
        (cwd / "example.py").write_text(code)
        if not is_killed:
            (cwd / "killed").touch()
        done = forked.run([sys.executable, "example.py"], cwd=cwd)
        if is_killed:
            assert done.returncode == -9, done.stderr
            done = forked.run([sys.executable, "example.py"], cwd=cwd)
            assert "resuming after step" in done.stdout
        assert done.returncode == 0, done.stderr
        weights.append({p.name: p.read_bytes() for p in cwd.glob("work/output/*/*.pdparams")})
    assert weights[0] == weights[1] != {}


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


def code_of(path):
    """Return the code of a page; comments in a shell's lines are translated."""
    commands, texts = (
        [re.sub(r"\s+#.*", "", block) for block in blocks(path, language)]
        for language in ("sh", "text")
    )
    return [commands, texts, blocks(path, "python")]


def test_both_languages_hold_the_same_code():
    others = {name(path): code_of(path) for path in TRANSLATED}
    assert {name(path): code_of(translation(path)) for path in TRANSLATED} == others


def facts(path):
    """Return figures, options, file names: whatever stands in tables and in code marks."""
    text = without_code(path.read_text()).replace("<recipe>", "<配方>")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    # but for links: a page may be there in one language only
    rows = [re.sub(r"\]\([^)]*\)", "]", row) for row in rows]
    return (
        set(re.findall(r"`[^`\n]+`", text)),
        [sorted(re.findall(r"\d+(?:\.\d+)?", row)) for row in rows],
    )


def test_both_languages_hold_the_same_numbers_and_names():
    others = {name(path): facts(path) for path in TRANSLATED}
    assert {name(path): facts(translation(path)) for path in TRANSLATED} == others


def test_tables_in_chinese_are_those_in_english_translated():
    """By the glossary; `python tools/markdown_tables.py docs/en docs/zh` writes them."""
    glossary = yaml.safe_load((ROOT / "docs/zh/tables.yaml").read_text())
    for path in TRANSLATED:
        if path.parent == EN:
            english = marked_tables(path.read_text())
            expected = {mark: translated(table, glossary) for mark, table in english.items()}
            assert marked_tables(translation(path).read_text()) == expected, path


PAGES = [
    *ENGLISH,
    *sorted((ROOT / "docs/zh").glob("*.md")),
    *sorted(path for path in ROOT.glob("*.md") if path not in ENGLISH),
]


SAY_IF_GPUS_ARE_TESTED = ("README", "README.zh-CN", "install", "several-processes", "speed")
OF_OTHERS_GPUS = ("changelog", "reproduction", "from-02-to-03")  # not of those to train on


def test_pages_that_name_gpus_say_the_same_of_their_status():
    """In the sentence of the page on installing, or by a link to it."""
    for path in [*ENGLISH, *map(translation, ENGLISH)]:
        text = without_code(path.read_text())
        if "GPU" not in text or path.stem in OF_OTHERS_GPUS:
            continue
        assert "install.md#on-a-gpu" in text or path.stem == "install", path
        is_chinese = path.parent.name == "zh" or path.stem.endswith("zh-CN")
        install = (ROOT / f"docs/{'zh' if is_chinese else 'en'}/install.md").read_text()
        (status,) = re.findall(r"^## .*GPU.*\n\n(.*)\n", install, re.M)
        says = status in " ".join(text.split())
        assert says == (path.stem in SAY_IF_GPUS_ARE_TESTED), path


@functools.cache
def anchors(path):
    """Return the anchors of a Markdown file: its headings' as GitHub makes them, and HTML's."""
    text = path.read_text()
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.M)
    headings = [re.sub(r"<[^>]*>|[`*]", "", heading).strip().lower() for heading in headings]
    slugs = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def test_links_lead_somewhere():
    """On a repository page; of those in the site, see test_site."""
    broken = []
    for path in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            is_there = there.exists() and (not anchor or anchor in anchors(there))
            if not target.startswith("http") and not is_there:
                broken.append(f"{name(path)}: {target}")
    assert not broken


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


# These say that there are scripts, start one with Paddle's launch, or measure one.
WITH_SCRIPTS = ("install", "several-processes", "parameter-servers", "speed")


def test_commands_are_shown_as_the_installed_program():
    """Not as scripts of the repository, which the wheel does not have."""
    scripts = re.compile(rf"tools/(?:{'|'.join(map(module_name, COMMANDS))})\.py")
    pages = [*ENGLISH, *map(translation, ENGLISH), ROOT / "notebooks/mnist.ipynb"]
    pages = [page for page in pages if page.stem not in (*WITH_SCRIPTS, "changelog")]
    package = [path for kind in ("*.py", "*.yaml") for path in (ROOT / "paddle_mnist").rglob(kind)]
    for path in [*pages, *package]:
        assert not scripts.findall(path.read_text("utf-8")), path


def test_navigation_has_every_page_once():
    navigation = runpy.run_path(str(ROOT / "docs/conf.py"))["NAVIGATION"]
    pages = [page for _, pages in navigation for page in pages]
    assert sorted(pages) == sorted(path.stem for path in EN.glob("*.md") if path.stem != "index")


@pytest.fixture
def repository(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/_extensions")
    return importlib.import_module("repository")


def test_site_links_to_the_repository_if_it_is_told_where_that_is(repository, monkeypatch):
    monkeypatch.setattr(repository, "URL", "https://example.org/it")
    page = 'See [a](../../tools/plot.py "title"), [b](../../examples/) and [c](train.md).'
    assert repository.link_files(page) == (
        'See [a](https://example.org/it/blob/main/tools/plot.py "title"), '
        "[b](https://example.org/it/tree/main/examples) and [c](train.md)."
    )
    page_url = repository.edit_url(EN / "train.md")
    assert page_url == "https://example.org/it/edit/main/docs/en/train.md"
    source = repository.linkcode_resolve("py", {"module": "paddle_mnist", "fullname": "fit"})
    assert source.startswith("https://example.org/it/blob/main/paddle_mnist/training/fit.py#L")


def test_site_links_to_no_repository_by_default(repository):
    page = "[`a`](../../tools/plot.py), [b](../../examples) and [`c` d](../../SECURITY.md)"
    assert repository.link_files(page) == (
        "[`a`](../../tools/plot.py), b and {download}`c d <../../SECURITY.md>`"
    )
    assert not repository.edit_url(EN / "train.md")
    assert not repository.linkcode_resolve("py", {"module": "paddle_mnist", "fullname": "fit"})

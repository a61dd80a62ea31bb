"""The pages list what the code has: recipes, commands, names, exit codes, formats."""

import ast
import contextlib
import importlib
import inspect
import pkgutil
import re
import sys

import pytest
import yaml
from conftest import ROOT
from pages import ENGLISH, blocks, without_code

import paddle_mnist
from paddle_mnist import errors
from paddle_mnist.__main__ import COMMANDS
from paddle_mnist.checkpoint.manifest import FORMAT, LATER_FORMAT
from paddle_mnist.mnist.config import recipes
from paddle_mnist.system.signals import stop_signals


def page(stem):
    return (ROOT / f"docs/en/{stem}.md").read_text()


def section(text, title):
    """Return what stands below a heading, up to the next."""
    return text.partition(f"\n## {title}")[2].partition("\n## ")[0]


def test_recipes_are_listed_with_the_accuracy_of_their_headers():
    rows = re.findall(r"^\| `([\w-]+)` \| .*? \| at least ([\d.]+)%", page("train"), re.M)
    assert {name for name, _ in rows} == set(recipes())
    for recipe, percent in rows:
        promised = re.search(r"accuracy >= ([\d.]+)", recipes()[recipe].read_text())[1]
        assert float(promised) * 100 == pytest.approx(float(percent))


def test_each_fault_names_a_test_and_the_readmes_count_them():
    faults = section(page("resume"), "What happens if")
    named = re.findall(r'^\| \[.+\]\(\.\./\.\./tests/([\w/]+\.py) "(\w+)"\) \| ', faults, re.M)
    assert len(named) == faults.count("\n|") - 2
    missing = [
        f"{file}::{test}"
        for file, test in named
        if f"def {test}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert not missing
    for readme in ("README.md", "README.zh-CN.md"):
        text = (ROOT / readme).read_text()
        (count,) = re.findall(r"\[(\d+) [^\]]*\]\(docs/\w+/resume.md#", text)
        assert int(count) == len(named)


def test_each_dependency_is_explained():
    config = (ROOT / "setup.cfg").read_text()
    names = {*re.findall(r"^    ([A-Za-z][\w-]+)(?:[<>=;].*)?$", config, re.M)} - {"error"}
    listed = section(page("install"), "Dependencies")
    assert not [dependency for dependency in names if dependency not in listed]


def test_page_about_pictures_begins_with_the_extra_that_reads_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.delitem(sys.modules, "paddle_mnist.mnist.pictures", raising=False)
    with pytest.raises(errors.DeviceError, match=r"paddle_mnist\[(\w+)\]") as raised:
        importlib.import_module("paddle_mnist.mnist.pictures")
    (extra,) = re.findall(r"paddle_mnist\[(\w+)\]", str(raised.value))
    for language in ("en", "zh"):
        beginning = (ROOT / f"docs/{language}/deployment.md").read_text().partition("\n## ")[0]
        assert "`--example`" in beginning and f"`{extra}`" in beginning


def test_each_command_has_its_help_in_the_reference():
    shown = re.findall(r"^## (\S+)\n\n```\{command-help\} (\S+)\n```", page("commands"), re.M)
    assert shown == [(command, command) for command in COMMANDS]


def test_public_names_are_in_the_reference_and_declared_stable():
    documented = re.findall(r"^\.\. auto\w+:: paddle_mnist\.(\w+)", page("api"), re.M)
    assert sorted(documented) == paddle_mnist.__all__
    names, _, modules = section(page("stability"), "Public names").partition("\n| module")
    declared = re.findall(r"`(\w+)`", names.partition(":")[2].partition(".\n")[0])
    assert declared == paddle_mnist.__all__
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", modules, re.M)
    declared = {(module, name) for module, cell in rows for name in re.findall(r"`(\w+)`", cell)}
    for module, attribute in declared:
        if not hasattr(importlib.import_module(module), attribute):
            importlib.import_module(f"{module}.{attribute}")
    imported_by_examples = {
        (node.module, alias.name)
        for path in ENGLISH
        for block in blocks(path, "python")
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paddle_mnist.")
        for alias in node.names
    }
    assert imported_by_examples <= declared


def test_exit_codes_and_formats_are_declared_stable():
    text = page("stability")
    rows = re.findall(r"^\| ([\d, ]+) \| ", section(text, "Exit codes"), re.M)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if hasattr(kind, "exit_code")}
    stopped = {errors.StoppedError(number).exit_code for number in stop_signals()}
    declared = [int(code) for row in rows for code in row.split(", ")]
    assert declared == sorted({0, *codes, *stopped})
    assert f"It is {FORMAT}, or {LATER_FORMAT} if" in section(text, "Checkpoint formats")
    golden = {path.name for path in (ROOT / "tests/golden").glob("format-*")}
    assert golden == {f"format-{FORMAT}", f"format-{LATER_FORMAT}"}


def test_changelog_and_citation_are_of_this_version():
    listed = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert listed[0] == citation["version"] == paddle_mnist.__version__


def test_names_and_arguments_in_marks_exist():
    """As in `paddle_mnist.nn.ema` and `Saving(every_steps=100)`."""
    pages = [path for path in ENGLISH if path.stem != "changelog"]
    texts = (without_code(path.read_text()) for path in pages)
    marks = {mark for text in texts for mark in re.findall(r"`([^`\n]+)`", text)}
    wrong, seen = [], 0
    for mark in marks:
        if re.fullmatch(r"paddle_mnist(\.\w+)+", mark):
            pkgutil.resolve_name(mark)
        tree = None
        with contextlib.suppress(SyntaxError):
            tree = ast.parse(mark, mode="eval")
        for call in ast.walk(tree) if tree else ():
            function = ast.unparse(getattr(call, "func", call)).removeprefix("paddle_mnist.")
            if isinstance(call, ast.Call) and function in paddle_mnist.__all__:
                named = getattr(paddle_mnist, function)
                called = named.__init__ if isinstance(named, type) else named
                known = {*inspect.signature(called).parameters}
                if "arguments" in known:  # those of `fit`
                    known |= {*inspect.signature(paddle_mnist.fit).parameters}
                given = {keyword.arg for keyword in call.keywords}
                wrong += [mark] * (not given <= known)
                seen += len(given)
    assert not wrong and seen > 40


def test_arguments_of_fit_are_listed_with_their_defaults():
    """Those that stand by themselves, and then the groups."""
    plain, _, groups = section(page("any-net"), "Set options").partition("grouped into")
    defaults = dict(re.findall(r"^\| `(\w+)` \| (?:`(.+?)`|required) \|", plain, re.M))
    names = re.findall(r"^\| `(\w+)` \| `[A-Z]\w+` \|", groups, re.M)
    parameters = inspect.signature(paddle_mnist.fit).parameters
    assert sorted([*defaults, *names]) == sorted(parameters)
    for argument, default in defaults.items():
        value = parameters[argument].default
        expected = "" if value is inspect.Parameter.empty else repr(value).replace("'", '"')
        assert default == expected, argument


def test_matrix_has_a_row_for_each_paddle_that_ci_installs():
    """The newest that setup.cfg allows, and those that `.ci/run` and `make test-servers` pin."""
    rows = re.findall(r"^\| (\d[\d.]+)[^|]*\|[^|]*\|[^|]*\| (.*) \|$", page("install"), re.M)
    tested = [paddle for paddle, what_runs in rows if not what_runs.startswith("nothing")]
    pins = (ROOT / ".ci/run").read_text() + (ROOT / "Makefile").read_text()
    pinned = re.findall(r"^(?!#).*paddlepaddle==([\d.]+)", pins, re.M)
    assert tested == ["3.3.1", *pinned]

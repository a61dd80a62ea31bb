"""The pages list what the code has: recipes, commands, names, exit codes, formats."""

import ast
import importlib
import inspect
import pkgutil
import re

import pytest
import yaml
from conftest import ROOT
from pages import ENGLISH, blocks, without_code
from test_package import ROOMS

import paddle_mnist
from paddle_mnist import errors
from paddle_mnist.checkpoint.manifest import FORMAT
from paddle_mnist.mnist.config import recipes
from paddle_mnist.system.program import COMMANDS
from paddle_mnist.system.signals import stop_signals


def page(stem):
    return (ROOT / f"docs/en/{stem}.md").read_text()


def section(text, title):
    """Return what stands below a heading, up to the next."""
    return text.partition(f"\n## {title}")[2].partition("\n## ")[0]


def test_every_recipe_is_listed_with_what_its_header_promises():
    rows = re.findall(r"^\| `([\w-]+)` \| .*? \| at least ([\d.]+)%", page("train"), re.M)
    assert {name for name, _ in rows} == set(recipes())
    for recipe, percent in rows:
        promised = re.search(r"accuracy >= ([\d.]+)", recipes()[recipe].read_text())[1]
        assert float(promised) * 100 == pytest.approx(float(percent))


def test_every_fault_names_a_test_that_is_there():
    faults = section(page("resume"), "What happens if")
    named = re.findall(r'^\| \[.+\]\(\.\./\.\./tests/([\w/]+\.py) "(\w+)"\) \| ', faults, re.M)
    assert len(named) == faults.count("\n|") - 2
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"


def test_every_dependency_is_explained():
    config = (ROOT / "setup.cfg").read_text()
    names = re.findall(r"^    ([A-Za-z][\w-]+)(?:[<>=;].*)?$", config, re.M)
    listed = section(page("install"), "Dependencies")
    for dependency in {n for n in names if n not in ("error",)}:
        assert dependency in listed, dependency


def test_every_command_has_its_help_in_the_reference():
    shown = re.findall(r"^## (\S+)\n\n```\{command-help\} (\S+)\n```", page("commands"), re.M)
    assert shown == [(command, command) for command in COMMANDS]


def test_every_public_name_is_in_the_reference_and_declared_stable():
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
    assert imported_by_examples() <= declared


def imported_by_examples():
    """Return the (module, name) that the pages' examples import from inside the package."""
    trees = [ast.parse(block) for path in ENGLISH for block in blocks(path, "python")]
    return {
        (node.module, alias.name)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paddle_mnist.")
        for alias in node.names
    }


def test_every_exit_code_is_declared_stable():
    rows = re.findall(r"^\| ([\d, ]+) \| ", section(page("stability"), "Exit codes"), re.M)
    declared = [int(code) for row in rows for code in row.split(", ")]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if hasattr(kind, "exit_code")}
    stopped = {errors.StoppedError(number).exit_code for number in stop_signals()}
    assert declared == sorted({0, *codes, *stopped})


def test_every_checkpoint_format_is_listed_and_those_that_are_read_have_golden_files():
    rows = re.findall(r"^\| (\d+) \| ", section(page("stability"), "Checkpoint formats"), re.M)
    golden = [path.name for path in (ROOT / "tests/golden").glob("format-*")]
    assert rows == [str(number) for number in range(1, FORMAT + 1)]
    assert golden == [f"format-{FORMAT}"]


def version(text):
    return tuple(map(int, text.split(".")))


def test_changelog_and_citation_are_of_this_version():
    listed = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert listed[0] == paddle_mnist.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == paddle_mnist.__version__
    assert sorted(listed, key=version, reverse=True) == listed


def marks(text):
    """Return what stands in code marks, outside blocks of code."""
    return re.findall(r"`([^`\n]+)`", without_code(text))


WITH_FORMER_NAMES = ("from-02-to-03", "changelog", "CHANGELOG")


def test_names_inside_the_package_are_there():
    pages = [path for path in ENGLISH if path.stem not in WITH_FORMER_NAMES]
    for mark in {mark for path in pages for mark in marks(path.read_text())}:
        if re.fullmatch(r"paddle_mnist(\.\w+)+", mark):
            pkgutil.resolve_name(mark)


def test_the_rooms_of_the_architecture_are_in_the_order_of_imports():
    rows = re.findall(
        r"^\| `([\w/.]+)` \| .* \| `", section(page("architecture"), "The rooms"), re.M
    )
    assert [room.removesuffix("/").removesuffix(".py") for room in rows] == [
        room for room in ROOMS if room != "|"
    ]
    assert all((ROOT / "paddle_mnist" / room).exists() for room in rows)


def test_what_training_takes_without_numba_is_as_measured():
    ladder = page("speed").partition("| the fast convolution, one thread |")[2]
    times = round(float(ladder.split("|")[1]))
    words = {"en": rf"about\s\[?{times}\stimes\sas\s+long", "zh": rf"训练用时约为 \[?{times} 倍"}
    for stem in ("ai-studio", "speed"):
        for language, said in words.items():
            assert re.search(said, (ROOT / f"docs/{language}/{stem}.md").read_text()), stem
    notebook = (ROOT / "notebooks/mnist.ipynb").read_text()
    assert len(re.findall(words["zh"], notebook)) == 2


def test_arguments_of_fit_are_what_the_page_on_version_0_3_says():
    """Its new ones can be written so, and none of the old ones is there any more."""
    changes = section(page("from-02-to-03"), "Arguments of `fit`")
    rows = re.findall(r"^\| `(\w+)=.*?` \| `(\w+)=(.+)` \|$", changes, re.M)
    assert len(rows) > 35
    names = {name: getattr(paddle_mnist, name) for name in paddle_mnist.__all__}
    parameters = inspect.signature(paddle_mnist.fit).parameters
    for old, argument, value in rows:
        assert old not in parameters and argument in parameters
        eval(value, {**names, "pad": len})  # raises where a group has no such field


def test_arguments_of_fit_are_listed_with_their_defaults():
    """Those that stand by themselves, and then the groups."""
    plain, _, groups = section(page("any-net"), "Set options").partition("in groups")
    defaults = dict(re.findall(r"^\| `(\w+)` \| (?:`(.+?)`|required) \|", plain, re.M))
    names = re.findall(r"^\| `(\w+)` \| `[A-Z]\w+` \|", groups, re.M)
    parameters = inspect.signature(paddle_mnist.fit).parameters
    assert sorted([*defaults, *names]) == sorted(parameters)
    for argument, default in defaults.items():
        value = parameters[argument].default
        expected = "" if value is inspect.Parameter.empty else repr(value).replace("'", '"')
        assert default == expected, argument


def calls(mark):
    """Return the calls in a code mark, if it is an expression of Python."""
    try:
        tree = ast.parse(mark, mode="eval")
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_arguments_of_public_names_in_marks_are_there():
    """As in `Saving(every_steps=100)`."""
    pages = [path for path in ENGLISH if path.stem not in WITH_FORMER_NAMES]
    seen = 0
    for mark in {mark for path in pages for mark in marks(path.read_text())}:
        for call in calls(mark):
            function = ast.unparse(call.func).removeprefix("paddle_mnist.")
            if function in paddle_mnist.__all__:
                known = inspect.signature(getattr(paddle_mnist, function)).parameters
                given = {keyword.arg for keyword in call.keywords}
                assert given <= {*known}, mark
                seen += len(given)
    assert seen > 40


def test_the_matrix_has_a_row_for_each_paddle_that_ci_installs():
    """The newest that setup.cfg allows, and those that `.ci/run` and `make test-servers` pin."""
    rows = re.findall(r"^\| (\d[\d.]+)[^|]*\|[^|]*\|[^|]*\| (.*) \|$", page("install"), re.M)
    tested = [paddle for paddle, what_runs in rows if not what_runs.startswith("nothing")]
    pins = (ROOT / ".ci/run").read_text() + (ROOT / "Makefile").read_text()
    pinned = re.findall(r"^(?!#).*paddlepaddle==([\d.]+)", pins, re.M)
    assert tested == ["3.3.1", *pinned]

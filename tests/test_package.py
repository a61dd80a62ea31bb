"""The house: what may import what, what is public, what happens without Paddle."""

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import paddle_mnist

PACKAGE = ROOT / "paddle_mnist"

# In the order of imports: each room may import those before it, directly or through others.
ROOMS = """
    _arguments errors options system progress interfaces data nn parallel checkpoint monitor metrics
    plots training inference | mnist apps legacy commands __main__
""".split()
# A net of one's own is trained by these alone; what comes after them knows digits.
ENGINE = ROOMS[: ROOMS.index("|")]


def room_of(module: str) -> str:
    return module.removeprefix("paddle_mnist.").split(".")[0]


def imports(path: Path, for_checkers: bool = True):
    """Yield the modules of the package that one imports. for_checkers: also for types alone."""
    for node in nodes(ast.parse(path.read_text()), for_checkers):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}: a relative import; write the whole name")
        if isinstance(node, ast.ImportFrom) and node.module == "paddle_mnist":
            names = (name.name for name in node.names)
            yield from (paddle_mnist._PUBLIC.get(name, f"paddle_mnist.{name}") for name in names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paddle_mnist."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (n.name for n in node.names if n.name.startswith("paddle_mnist."))


def nodes(tree: ast.AST, for_checkers: bool):
    for node in ast.iter_child_nodes(tree):
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if for_checkers or not is_for_types:
            yield node
            yield from nodes(node, for_checkers)


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module in imports(path):
        assert ROOMS.index(room_of(module)) <= ROOMS.index(room), f"{path.name} imports {module}"


def test_engine_knows_no_digits():
    """Neither in its words nor through what it loads."""
    for path in modules():
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in ENGINE:
            code = re.sub(r"paddle[_-]mnist", "", path.read_text())
            matches = re.findall(r"(?i)\bmnist\w*|.*\b28\b.*|recipe", code)
            assert not matches, f"{path}: {matches}"
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in modules()
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in ENGINE
    ]
    done = python(
        f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
        "later = [name for name in sys.modules if name.startswith('paddle_mnist.mnist')]\n"
        "assert not later, later"
    )
    assert done.returncode == 0, done.stderr


def test_no_import_cycles():
    graph = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name != "paddle_mnist":
            graph[name] = set(imports(path, for_checkers=False))

    def visit(name, trail):
        assert name not in trail, " -> ".join([*trail, name])
        for other in graph.get(name, ()):
            visit(other, [*trail, name])

    for name in graph:
        visit(name, [])


def test_public_names_are_sorted_and_there():
    assert paddle_mnist.__all__ == sorted(paddle_mnist.__all__)
    for name in paddle_mnist.__all__:
        assert getattr(paddle_mnist, name).__doc__
    assert set(paddle_mnist.__all__) <= set(dir(paddle_mnist))
    with pytest.raises(AttributeError, match="nonsense"):
        paddle_mnist.nonsense  # noqa: B018


# -------------------------------------------------------------- libraries

# Modules that are named otherwise than their distributions.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-contrib-python-headless",
    "paddle": "paddlepaddle",
    "simdjson": "pysimdjson",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# What benchmarks compare with where it is installed, and nothing else needs.
RIVALS = {"jax", "lightning", "torch", "torchdata", "torchmetrics"}
TOOLS = {path.stem for path in (ROOT / "tools").rglob("*")}


def libraries(folder):
    """Return the distributions that the modules of a folder import, in whatever way."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                found.update(a.value for a in node.args if isinstance(a, ast.Constant))
    names = {name.partition(".")[0] for name in found}
    known = {*sys.stdlib_module_names, *TOOLS, "paddle_mnist"}
    return {DISTRIBUTIONS.get(name, name).lower() for name in names - known}


def declared(*extras):
    """Return what setup.cfg declares as needed, and for some extras, in lower case."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lists = [config["options"]["install_requires"]]
    lists += [config["options.extras_require"][extra] for extra in extras]
    return {re.match(r"[\w-]+", line)[0].lower() for line in "".join(lists).split("\n") if line}


@pytest.mark.skipif(sys.version_info < (3, 10), reason="needs sys.stdlib_module_names")
def test_libraries_that_are_imported_are_declared_and_the_reverse():
    of_package = libraries("paddle_mnist")
    paddles_own = {"google"}  # its protobuf, which is only looked for
    assert of_package - declared("cpu", "onnx", "web") == paddles_own
    assert declared() - of_package == set()
    assert libraries("tools") - declared("cpu", "test") == RIVALS


def python(program, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, **kwargs
    )


def test_importing_the_package_imports_no_paddle():
    done = python(
        "import sys, paddle_mnist.commands.train, paddle_mnist.training.run_directory\n"
        "assert 'paddle' not in sys.modules, sorted(sys.modules)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["MNIST", "data.loader"])
def test_paddle_does_not_complain_of_a_missing_compiler_cache(name):
    """Whichever part of the package is the first to import Paddle."""
    package, _, module = f"paddle_mnist.{name}".rpartition(".")
    done = python(f"from {package} import {module}")
    assert done.returncode == 0 and "ccache" not in done.stderr, done.stderr


# A Python without Paddle, or with one that cannot be loaded, stood in for by an import that fails
# in the same way; the real thing takes an environment of its own.
NO_PADDLE = {
    "missing": ("sys.modules['paddle'] = None", "PaddlePaddle is not installed"),
    "broken": ("sys.path.insert(0, 'BROKEN')", "cannot be imported on this machine"),
}


@pytest.mark.parametrize("name", NO_PADDLE)
@pytest.mark.parametrize("tool", ["train", "eval"])
def test_without_paddle_the_install_lines_are_printed(tmp_path, name, tool):
    (tmp_path / "paddle.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
    setup, output = NO_PADDLE[name]
    done = python(
        f"import sys, runpy; {setup.replace('BROKEN', str(tmp_path))}\n"
        f"sys.argv = ['{tool}.py']\n"
        f"runpy.run_path('tools/{tool}.py', run_name='__main__')"
    )
    assert done.returncode == 5, done.stderr
    assert output in done.stderr and "Traceback" not in done.stderr
    assert "pip install paddlepaddle\n" in done.stderr
    assert "pip install paddlepaddle-gpu" in done.stderr

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
from paddle_mnist.training.arguments import CALLBACK_OPTIONS, ENGINE_OPTIONS

PACKAGE = ROOT / "paddle_mnist"

# In the order of imports: each room may import those before it, directly or through others.
ROOMS = """
    _arguments errors system options progress interfaces data nn parallel checkpoint monitor metrics
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


def test_imports_point_one_way():
    wrong = []
    for path in modules():
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imports(path):
            if ROOMS.index(room_of(module)) > ROOMS.index(room):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert not wrong


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


def test_engine_knows_no_fast_convolution():
    """Outside `nn/`: nets say by methods of any net's what their loops compute, and by which."""
    for path in modules():
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in ENGINE and room != "nn":
            matches = re.findall(
                r"(?i)fast_?conv\w*|\w+_blocks|fast_layers|compiled_[cln]\w+", path.read_text()
            )
            assert not matches, f"{path}: {matches}"


# Options of other programs and functions, and texts that a user of `fit` never reads.
OF_OTHERS = ["--nproc_per_node", "--shm-size", "nprocs is ", "--max_restarts 0", "--only"]
OF_OTHERS += ["the command export", "and run the same command again"]


def test_engine_speaks_of_options_as_its_caller_writes_them():
    """Of `--fresh` and flat names in a command alone: `system/program.py` chooses the words."""
    own = {**ENGINE_OPTIONS, **CALLBACK_OPTIONS}
    flat = [name for name, one in own.items() if "_" in name and name != one.field.name]
    for path in modules():
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") not in ENGINE:
            continue
        for text in texts(ast.parse(path.read_text())):
            matches = re.findall(rf"--\w\S*|\bcommand\b|\bnprocs\b|\b(?:{'|'.join(flat)})\b", text)
            assert not matches or any(word in text for word in OF_OTHERS), f"{path}: {text}"


def texts(node: ast.AST):
    """Yield texts with spaces, but for docstrings and what is for commands or options alone."""
    for child in ast.iter_child_nodes(node):
        function = getattr(child, "func", None)
        if getattr(function, "id", None) in ("option", "as_option", "option_name"):
            continue
        if isinstance(child, ast.IfExp) and ast.unparse(child.test) == "in_command()":
            continue
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if isinstance(child, ast.Constant) and isinstance(child.value, str) and " " in child.value:
            yield child.value
        elif not is_docstring:
            yield from texts(child)


def test_docstrings_say_at_once_what_a_thing_is_or_does():
    """In a noun phrase or by a verb: none opens with a question word."""
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                is_question = re.match(r"(What|Which|How|Where|Who|Whether|When)\b", text)
                assert not is_question, f"{path}: {text.splitlines()[0]}"


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
    "cv2": "opencv-python-headless",
    "paddle": "paddlepaddle",
    "simdjson": "pysimdjson",
    "skimage": "scikit-image",
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
    assert of_package - declared("cpu", "mirror", "onnx", "pictures", "web") == paddles_own
    assert declared() - of_package == set()
    assert libraries("tools") - declared("cpu", "pictures", "test") == RIVALS


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


def test_package_that_paddle_lacks_is_named_with_what_installs_it():
    """As setuptools in an environment of uv."""
    done = python(
        "import sys; sys.modules['setuptools'] = None; sys.argv = ['eval']\n"
        "from paddle_mnist.commands import eval, run_script\n"
        "run_script(eval.main)"
    )
    assert done.returncode == 5, done.stderr
    (line,) = done.stderr.splitlines()
    assert "is installed but cannot be imported on this machine (" in line
    assert "setuptools" in line and line.endswith("; pip install setuptools")


@pytest.mark.parametrize("words", ["eval", "train --recipe digits", "infer --example"])
def test_command_refuses_a_working_folder_that_was_deleted(tmp_path, words):
    done = python(
        f"import os, sys; os.chdir({str(tmp_path)!r}); os.rmdir({str(tmp_path)!r})\n"
        f"from paddle_mnist.commands import {words.split()[0]} as command, run_script\n"
        f"sys.argv[1:] = {words.split()[1:]}\n"
        "run_script(command.main)"
    )
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the working folder: No such file or directory; ")


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

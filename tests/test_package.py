"""The package as a whole: what may import what, what is public, what happens without Paddle."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import paddle_mnist

PACKAGE = ROOT / "paddle_mnist"

# In the order of imports: each may import those before it, directly or through others.
ROOMS = """
    errors system options train_state interfaces data nn parallel hidden_state monitor
    metrics checkpoint plots training inference proof | mnist apps legacy commands __main__
""".split()
# These alone train a custom net; what comes after them knows digits.
ENGINE = ROOMS[: ROOMS.index("|")]


def imports(path: Path):
    """Yield the modules of the package that one imports, also for types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import; write the whole name"
        if isinstance(node, ast.ImportFrom) and node.module == "paddle_mnist":
            names = (name.name for name in node.names)
            yield from (paddle_mnist._PUBLIC.get(name, f"paddle_mnist.{name}") for name in names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paddle_mnist."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (n.name for n in node.names if n.name.startswith("paddle_mnist."))


def modules() -> dict[str, Path]:
    """Return the paths of the modules by name."""
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    names = {".".join(one).removesuffix(".__init__"): path for path, one in parts.items()}
    return {name: path for name, path in names.items() if name != "paddle_mnist"}


def room_of(module: str) -> str:
    return module.split(".")[1]


def test_imports_point_one_way():
    wrong = [
        f"{name} imports {module}"
        for name, path in modules().items()
        for module in imports(path)
        if ROOMS.index(room_of(module)) > ROOMS.index(room_of(name))
    ]
    assert not wrong


def test_engine_knows_no_digits_and_nets_are_its_only_fast_code():
    """Neither its words nor the modules that it loads name digits."""
    engine = {name: path for name, path in modules().items() if room_of(name) in ENGINE}
    found = []
    for name, path in engine.items():
        code = re.sub(r"paddle[_-]mnist", "", path.read_text())
        words = r"\bmnist\w*|.*\b28\b.*|recipe"
        if room_of(name) != "nn":
            words += r"|fast_?conv\w*|\w+_blocks|covered_net|compiled_[cln]\w+"
        found += [f"{name}: {match}" for match in re.findall(f"(?i){words}", code)]
    assert not found
    done = python(
        f"import importlib, sys\nfor name in {[*engine]}: importlib.import_module(name)\n"
        "later = [name for name in sys.modules if name.startswith('paddle_mnist.mnist')]\n"
        "assert not later, later"
    )
    assert done.returncode == 0, done.stderr


# What may open files in another way than `system.regular_files`.
OPENS = re.compile(
    r"(?<![\w.])open\((?!.*opener)|(?<!os)\.(?:open|read_text|read_bytes)\(|(?:np|json)\.load\(",
    re.MULTILINE,
)
OPENS_OTHERWISE = {
    "system.yaml_reader": "reads a pipe if the user names one by -c",
    "system.remote": "opens files through fsspec",
    "system.lock": "reads /proc",
    "system.environment": "opens the null device",
    "system.heartbeat": "opens a pipe of its own",
    "mnist.pictures.detector": "reads a file of the package",
    "mnist.pictures.open": "has Pillow open bytes",
    "mnist.pretrained": "reads files of the package",
    "inference.export": "reads files that it has just written to a folder of its own",
}


def test_files_are_opened_in_one_way():
    """Others may have made them: a pipe would block forever, a link leads anywhere."""
    opening = {name for name, path in modules().items() if OPENS.search(path.read_text())}
    assert {name.removeprefix("paddle_mnist.") for name in opening} == {*OPENS_OTHERWISE}


def test_public_names_are_documented_and_others_raise():
    assert all(getattr(paddle_mnist, name).__doc__ for name in paddle_mnist.__all__)
    assert set(paddle_mnist.__all__) <= set(dir(paddle_mnist))
    with pytest.raises(AttributeError, match="nonsense"):
        paddle_mnist.nonsense  # noqa: B018


def python(program):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_importing_the_package_imports_no_paddle():
    done = python(
        "import sys, paddle_mnist.commands.train, paddle_mnist.checkpoint.run\n"
        "assert 'paddle' not in sys.modules, sorted(sys.modules)"
    )
    assert done.returncode == 0, done.stderr


def test_paddle_does_not_complain_of_a_missing_compiler_cache():
    """Whichever part of the package is the first to import it."""
    done = python("from paddle_mnist.data import loader")
    assert done.returncode == 0 and "ccache" not in done.stderr, done.stderr


# A Python without Paddle, or with one that cannot be loaded, stood in for by an import that fails
# in the same way; the real thing takes an environment of its own.
@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ("sys.modules['paddle'] = None", ["PaddlePaddle is not installed", "paddlepaddle-gpu"]),
        ("sys.path.insert(0, 'BROKEN')", ["cannot be imported on this machine", "paddlepaddle"]),
        # as in an environment of uv
        ("sys.modules['setuptools'] = None", ["cannot be imported", "pip install setuptools"]),
    ],
    ids=["missing", "broken", "lacks a package"],
)
def test_command_without_paddle_prints_how_to_install_it(tmp_path, setup, words):
    (tmp_path / "paddle.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
    done = python(
        f"import sys, runpy; {setup.replace('BROKEN', str(tmp_path))}\n"
        "sys.argv = ['eval.py']\n"
        "runpy.run_path('tools/eval.py', run_name='__main__')"
    )
    assert done.returncode == 5 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in ("pip install", *words)), done.stderr

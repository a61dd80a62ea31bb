"""The types that the package promises: that they hold, and that its users' checkers see them."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import paddle
import public_signatures
import pytest
from conftest import ROOT

import paddle_mnist

checked = pytest.mark.skipif(
    paddle.__version__.startswith("2.") or sys.version_info < (3, 11),
    reason="checked with the types of Paddle 3, and of the NumPy of Python 3.11 and later",
)


def mypy(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "mypy", *arguments]
    # Nothing but what is installed is to be found.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


MOST_IGNORES = 20


def test_few_errors_are_ignored_and_each_with_a_reason():
    lines = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "paddle_mnist").rglob("*.py")
        for line in path.read_text().splitlines()
        if "type: ignore" in line
    ]
    assert len(lines) <= MOST_IGNORES, "\n".join(lines)
    for line in lines:
        assert re.search(r"# type: ignore\[[a-z, -]+\]  # \w", line), line


@pytest.mark.parametrize("name", ["paddle_mnist", "paddle_mnist.checkpoint"])
def test_checkers_see_the_names_that_are_imported_on_first_use(name):
    package, seen = importlib.import_module(name), set()
    module = Path(package.__file__)
    stub = module.with_suffix(".pyi")
    for node in ast.walk(ast.parse((stub if stub.exists() else module).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("paddle_mnist."):
            for one in node.names:
                found = getattr(importlib.import_module(node.module), one.name)
                assert found is getattr(package, one.name)
                seen.add(one.name)
    assert seen == set(package.__all__)


# -------------------------------------------------------------- the signatures


def test_public_signatures_are_those_that_were_written_down():
    """A change of them is to be seen: UPDATE_SIGNATURES=1 writes them down."""
    now = public_signatures.public_signatures()
    if os.environ.get("UPDATE_SIGNATURES"):
        public_signatures.PATH.write_text(now)
    assert now == public_signatures.PATH.read_text(), "run again with UPDATE_SIGNATURES=1"


# Where `Any` stands in a public signature, and what the caller's own thing is there.
OF_THE_CALLER = {
    "BatchLoader.__iter__ ->": "a batch of the samples",
    "BatchLoader.collate_fn": "the samples, and a batch of them",
    "BatchLoader.epoch ->": "a batch of the samples",
    "BatchLoader.first_batch ->": "a batch of the samples",
    "DigitPredictor.prepare.inputs": "pictures, in whatever form",
    "Gathered.__call__.labels": "the labels",
    "Gathered.__call__.outputs": "what the net returns",
    "Gathered.metric": "the outputs and the labels",
    "Loading.collate_fn": "the samples, and a batch of them",
    "MNIST.__call__ ->": "what the forward of a subclass returns",
    "MNIST.__call__.args": "what the forward of a subclass takes",
    "MNIST.__call__.kwargs": "what the forward of a subclass takes",
    "MNIST.forward.args": "the label and switches of the tutorial, which Paddle must not count",
    "MNIST.forward.kwargs": "the label and switches of the tutorial, which Paddle must not count",
    "Trainer.step": "the net, of a class of theirs, and a batch",
    "Trainer.train.train_datasets": "the data",
    "Trainer.train_epoch.datasets": "the data",
    "Trainer.train_step.data": "a batch",
    "evaluate.data": "the data",
    "evaluate_run.collate_fn": "the samples, and a batch of them",
    "evaluate_run.data": "the data",
    "evaluate_run.loss": "the outputs and the labels",
    "evaluate_run.metrics": "the outputs and the labels",
    "evaluate_run.step": "the net, of a class of theirs, and a batch",
    "fit.loss": "the outputs and the labels",
    "fit.metrics": "the outputs and the labels",
    "fit.step": "the net, of a class of theirs, and a batch",
    "fit.train": "the data",
    "fit.valid": "the data",
    "predict_run ->": "what the net returns",
    "predict_run.collate_fn": "the samples, and a batch of them",
    "predict_run.data": "the data",
    "predict_run.forward": "the net, of a class of theirs, a batch, and what the net returns",
}


def test_public_signatures_say_what_they_take_and_return():
    found = {
        place
        for place, annotation in public_signatures.annotations()
        if public_signatures.holds_any(annotation)
    }
    assert found == OF_THE_CALLER.keys()


# -------------------------------------------------------------- as it is installed


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory):
    """A folder for what mypy finds out of the libraries, which takes it longest."""
    return tmp_path_factory.mktemp("mypy")


INSTALLED = ["paddle_mnist", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"]


@checked
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [[], pytest.param(["--editable"], marks=pytest.mark.release)],
    ids=["wheel", "editable"],
)
def test_checkers_see_the_types_of_the_installed_package(tmp_path, mypy_cache, options):
    """From a wheel, and as `make train` installs it; none of its public names is Any."""
    tree, environment = tmp_path / "tree", tmp_path / "venv"
    tree.mkdir()
    for name in INSTALLED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    install = [python, "-m", "pip", "install", "-q", "--no-deps", *options, tree]
    subprocess.run(install, check=True)
    # the libraries that it needs: those of the tests
    (site,) = environment.glob("lib/python*/site-packages")
    assert (site / "paddle_mnist").exists() == (not options)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))

    names = paddle_mnist.__all__
    program = tmp_path / "program.py"
    reveals = "".join(f"reveal_type(paddle_mnist.{name})\n" for name in names)
    program.write_text(f"import paddle_mnist\n{reveals}")
    where = ["--cache-dir", mypy_cache, "--python-executable", python]
    done = mypy("--strict", *where, program.name, cwd=tmp_path)
    types = dict(zip(names, re.findall(r'Revealed type is "(.*)"', done.stdout)))
    assert done.returncode == 0 and types.keys() == set(names), done.stdout
    assert types["fit"].startswith("def (model: paddle.nn.layer.layers.Layer | ")
    assert types["fit"].endswith(" -> paddle_mnist.training.callbacks.FitResult")
    assert "Any" not in types.values()

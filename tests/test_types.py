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


@checked
def test_the_types_of_the_package_hold():
    """By mypy's configuration in setup.cfg, which is strict."""
    done = mypy()
    assert done.returncode == 0, done.stdout + done.stderr


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


def packages_with_lazy_names():
    for path in sorted((ROOT / "paddle_mnist").rglob("__init__.py")):
        tree = ast.parse(path.read_text())
        if "__getattr__" in path.read_text():
            yield ".".join(path.parent.relative_to(ROOT).parts), tree


@pytest.mark.parametrize(("name", "tree"), packages_with_lazy_names(), ids=str)
def test_checkers_see_the_names_that_are_imported_on_first_use(name, tree):
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    (block,) = (node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    package, seen = importlib.import_module(name), set()
    for line in block.body:
        for one in line.names:
            found = getattr(importlib.import_module(line.module), one.name)
            assert found is getattr(package, one.name)
            seen.add(one.asname or one.name)
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
    "BatchLoader.epoch ->": "a batch of the samples",
    "Gathered.__call__.labels": "the labels",
    "Gathered.__call__.outputs": "what the net returns",
    "Gathered.metric": "the outputs and the labels",
    "Predictor.prepare.inputs": "pictures, in whatever form",
    "Trainer.step": "a batch",
    "Trainer.train.train_datasets": "the data",
    "Trainer.train_epoch.datasets": "the data",
    "evaluate_run.data": "the data",
    "evaluate_run.step": "a batch",
    "fit.train": "the data",
    "fit.valid": "the data",
    "predict_run ->": "what the net returns",
    "predict_run.data": "the data",
    "predict_run.forward": "a batch, and what the net returns for it",
}
# ---- Not done yet: rewritten at present. This block goes.
NOT_YET = {
    *("Callback.result_entries ->", "FitResult.as_dict ->", "MNIST.__call__ ->"),
    *("TrainConfig.as_dict ->", "TrainConfig.binding ->", "export_run ->", "load_data ->"),
    *"""Callback.has_result.entries MNIST.__call__.args MNIST.__call__.kwargs MNIST.forward.args
    MNIST.forward.kwargs TrainConfig.from_mapping.values Trainer.loss_fn Trainer.metric_functions
    evaluate.data evaluate_run.collate_fn evaluate_run.loss evaluate_run.metrics fit.binding
    fit.collate_fn fit.loss fit.metrics fit.state fit.step predict_run.collate_fn""".split(),
}
# ---- End of the block.


def test_public_signatures_say_what_they_take_and_return():
    found = {
        place
        for place, annotation in public_signatures.annotations()
        if public_signatures.holds_any(annotation)
    }
    assert found - NOT_YET == OF_THE_CALLER.keys()


# -------------------------------------------------------------- as it is installed

INSTALLED = ["paddle_mnist", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"]


@checked
@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--editable"]], ids=["wheel", "editable"])
def test_checkers_see_the_types_of_the_installed_package(tmp_path, options):
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
    done = mypy("--strict", "--python-executable", python, program.name, cwd=tmp_path)
    types = dict(zip(names, re.findall(r'Revealed type is "(.*)"', done.stdout)))
    assert done.returncode == 0 and types.keys() == set(names), done.stdout
    assert types["fit"].startswith("def (model: paddle.nn.layer.layers.Layer | ")
    assert types["fit"].endswith(" -> paddle_mnist.training.callbacks.FitResult")
    assert "Any" not in types.values()

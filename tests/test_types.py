"""The types that the package promises: that they hold, and that its users' checkers see them."""

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


def test_public_signatures_are_those_that_were_written_down():
    """A change of them is to be seen: UPDATE_SIGNATURES=1 writes them down."""
    now = public_signatures.public_signatures()
    if os.environ.get("UPDATE_SIGNATURES"):
        public_signatures.PATH.write_text(now)
    assert now == public_signatures.PATH.read_text(), "run again with UPDATE_SIGNATURES=1"


@pytest.mark.skipif(
    paddle.__version__.startswith("2.") or sys.version_info < (3, 11),
    reason="checked with the types of Paddle 3, and of the NumPy of Python 3.11 and later",
)
@pytest.mark.release  # `make check` runs the checker on the package itself
@pytest.mark.timeout(900)
def test_checkers_see_the_types_of_the_installed_package(tmp_path):
    """None of its public names is Any."""
    tree, environment = tmp_path / "tree", tmp_path / "venv"
    shutil.copytree(ROOT / "paddle_mnist", tree / "paddle_mnist")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    venv.create(environment)
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin/python", "install", "-q"]
    subprocess.run([*pip, "--no-deps", tree], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))  # Paddle, as in the tests

    names = paddle_mnist.__all__
    reveals = "".join(f"reveal_type(paddle_mnist.{name})\n" for name in names)
    (tmp_path / "program.py").write_text(f"import paddle_mnist\n{reveals}")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable"]
    done = subprocess.run(
        [*mypy, environment / "bin/python", "program.py"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    types = dict(zip(names, re.findall(r'Revealed type is "(.*)"', done.stdout)))
    assert done.returncode == 0 and types.keys() == set(names), done.stdout
    assert types["fit"].endswith(" -> paddle_mnist.training.callbacks.FitResult")
    assert "Any" not in types.values()

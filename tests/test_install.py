"""The wheel and the source distribution: what they hold, and that the wheel works by itself."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # PaddlePaddle is installed anew
]
NOT_IN_SDIST = {".ci/run", ".gitignore"}


class Built(NamedTuple):
    """tree: a copy of the tracked files; the wheels are built from it and from the sdist."""

    tree: Path
    tracked: set
    sdist: Path
    wheel_of_sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("build", reason="needs the extra test")
    if not (ROOT / ".git").exists():
        pytest.skip("needs the git repository")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tracked = set(filter(None, listed.stdout.split("\0")))
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"  # in the repository itself, what an earlier build has left would get in
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)

    def build(*options):
        outputs = folder / f"dist{len(list(folder.iterdir()))}"
        command = [sys.executable, "-m", "build", *options, "--outdir", outputs, tree]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(outputs.iterdir())

    wheel_of_sdist, sdist = build()
    (wheel,) = build("--wheel")
    return Built(tree, tracked, sdist, wheel_of_sdist, wheel)


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_every_file_of_the_package(built):
    names = {name for name in contents(built.wheel) if ".dist-info/" not in name}
    assert names == {name for name in built.tracked if name.startswith("paddle_mnist/")}


def test_the_sdist_holds_every_tracked_file(built):
    with tarfile.open(built.sdist) as archive:
        names = {
            member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()
        }
    assert built.tracked - names == NOT_IN_SDIST
    made = {name for name in names - built.tracked if ".egg-info/" not in name}
    assert made == {"PKG-INFO"}


def test_the_sdist_builds_the_same_wheel(built):
    assert contents(built.wheel_of_sdist) == contents(built.wheel)


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """Python and pip of a virtual environment that holds the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=True, symlinks=os.name != "nt")
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    tested = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    constraints = folder / "constraints.txt"
    lines = (f"{name}=={tested[name]}\n" for name in tested if name != "paddle_mnist")
    constraints.write_text("".join(lines))
    install = [python, "-m", "pip", "install", "-q", "--no-compile"]
    run(folder, *install, "-c", constraints, f"{built.wheel}[cpu]")
    return python


def run(folder, *command):
    env = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


USE = """
import sys
from pathlib import Path

import paddle_mnist
from paddle_mnist import MNIST, Predictor, TrainConfig, train_and_evaluate
from paddle_mnist.mnist.config import read_recipe
from paddle_mnist.mnist.export import export_model
from paddle_mnist.mnist.infer import pretrained_predictor, read_pictures
from paddle_mnist.mnist.evaluate_checkpoint import evaluate_checkpoint

assert Path(paddle_mnist.__file__).is_relative_to(sys.prefix), paddle_mnist.__file__
config = TrainConfig.from_mapping({**read_recipe("digits"), "epochs": 2, "output": "run"})
result = train_and_evaluate(config)
assert result.eval_acc > 0.8
assert evaluate_checkpoint("latest", "run")["accuracy"] == result.eval_acc
export_model(MNIST(pretrained=True), Path("exported"), ["logits", "probabilities"])
for predictor in (pretrained_predictor(), Predictor("exported")):
    (reading,) = read_pictures(predictor, [sys.argv[1]])
    assert reading.digit == 7, reading
"""


def test_the_installed_wheel_trains_evaluates_exports_and_reads_a_picture(environment, tmp_path):
    # -I: of nothing but the environment
    run(tmp_path, environment, "-I", "-c", USE, ROOT / "tests/pictures/7-07.jpg")
    assert (tmp_path / "run/figures").is_dir()


def test_the_notebook_runs_as_it_is_installed_on_ai_studio(built, environment, tmp_path):
    """There the libraries are on the machine; the notebook installs the package and three more."""
    cells = json.loads((built.tree / "notebooks/mnist.ipynb").read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    (lines,) = re.findall(r"```text\n(.*?)```", "".join(texts), re.DOTALL)
    commands = lines.replace("/path/to/paddle_mnist", str(built.tree)).splitlines()
    own = ["paddle_mnist", "isal", "pydantic", "pydantic-core", "pysimdjson"]
    run(tmp_path, environment, "-m", "pip", "uninstall", "-q", "-y", *own)
    for command in commands:
        assert command.startswith("pip install ")
        run(tmp_path, environment, "-m", *shlex.split(command))
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = "\n".join([*code[:4], "print(paddle_mnist.__file__)"])  # to the end of a training
    output = run(tmp_path, environment, "-c", program).splitlines()
    assert Path(output[-1]).is_relative_to(tmp_path / "external-libraries")
    assert any(line.startswith("评估集准确率") for line in output)

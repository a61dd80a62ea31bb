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
from test_notebook import NOTEBOOKS, assert_results

import paddle_mnist
from paddle_mnist.__main__ import COMMANDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # PaddlePaddle is installed in a new environment
]
LEAST_ACCURACY = 0.97  # of the recipe digits, which reaches 0.99
NOT_IN_SDIST = {".ci/run", ".gitignore", ".pre-commit-config.yaml"}


class Built(NamedTuple):
    """tree: a copy of the tracked files, which the sdist is built from; the wheel, from that."""

    tree: Path
    tracked: set
    sdist: Path
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
    command = [sys.executable, "-m", "build", "--outdir", folder / "dist", tree]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    wheel, sdist = sorted((folder / "dist").iterdir())
    return Built(tree, tracked, sdist, wheel)


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_sdist_holds_every_tracked_file_and_its_wheel_those_of_the_package(built):
    with tarfile.open(built.sdist) as archive:
        files = [member.name for member in archive.getmembers() if member.isfile()]
    names = {name.partition("/")[2] for name in files}
    assert built.tracked - names == NOT_IN_SDIST
    assert {name for name in names - built.tracked if ".egg-info/" not in name} == {"PKG-INFO"}
    of_wheel = {name for name in contents(built.wheel) if ".dist-info/" not in name}
    assert of_wheel == {name for name in built.tracked if name.startswith("paddle_mnist/")}


class Environment(NamedTuple):
    """A virtual environment, used from a shell in which it is active.

    folder: outside the repository. scripts: its folder of programs, first on PATH.
    """

    folder: Path
    scripts: Path

    def run(self, folder, *command, expect=0, **env):
        """Run a command; return its output, and what it wrote to stderr."""
        variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        variables["PATH"] = f"{self.scripts}{os.pathsep}{os.environ['PATH']}"
        env = {**variables, "MPLBACKEND": "Agg", **env}
        words = [str(word) for word in command]
        words[0] = shutil.which(words[0], path=env["PATH"]) or words[0]
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout, done.stderr


def install_commands():
    """The lines of the page that install the package, and the one that trains with it."""
    page = (ROOT / "docs/en/install.md").read_text()
    section = page.partition("## As a package")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    *install, train = (shlex.split(line, comments=True) for line in block.splitlines())
    assert all(words[0] == "pip" for words in install) and train == ["paddle-mnist", "train"]
    return install, train


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """An environment into which the page's commands have installed the package."""
    folder = tmp_path_factory.mktemp("environment")
    versions = {found.metadata["Name"]: found.version for found in metadata.distributions()}
    tested = [f"{name}=={version}" for name, version in versions.items() if name != "paddle_mnist"]
    (folder / "constraints.txt").write_text("\n".join(tested))
    venv.create(folder / "venv", with_pip=True)
    environment = Environment(folder, folder / "venv/bin")
    build, install = install_commands()[0]
    build = [word.replace("/path/to/paddle_mnist", str(built.tree)) for word in build]
    environment.run(folder, *build)
    (wheel,) = (folder / "dist").iterdir()
    assert wheel.name == built.wheel.name and contents(wheel) == contents(built.wheel)
    environment.run(folder, *install, "-q", "--no-compile", "-c", "constraints.txt")
    yield environment
    shutil.rmtree(folder)  # more than a gigabyte, which may be in memory


def test_installed_program_trains_once_evaluates_exports_reads_and_draws(environment):
    """By the page's command, on the embedded digits."""
    folder, run = environment.folder, "work/output/digits"

    def called(*words):
        return environment.run(folder, *words)[0]

    trained = called(*install_commands()[1])
    (accuracy,) = re.findall(r"^eval accuracy .* \(scikit-learn's digits.*", trained, re.MULTILINE)
    assert float(accuracy.split()[2].strip(",")) >= LEAST_ACCURACY
    assert trained.splitlines()[-1] == f"dashboard: paddle-mnist dashboard {run}"
    for name in ("result.json", "mnist.pdparams", "metrics.jsonl", "figures/curves.png", "vdl"):
        assert (folder / run / name).exists()
    again = called(*install_commands()[1])
    assert accuracy in again and "this run is finished" in again and "epoch " not in again
    report = json.loads(called("paddle-mnist", "eval", "--output", run, "--json"))
    assert report["accuracy"] == json.loads((folder / run / "result.json").read_text())["eval_acc"]
    called("paddle-mnist", "export", "--checkpoint", "pretrained", "--output", "exported")
    picture = ROOT / "tests/pictures/7-07.jpg"
    for words in (["--example"], [picture, "--model", "exported"]):
        (reading,) = json.loads(called("paddle-mnist", "infer", *words, "--json"))
        assert reading["digit"] == 7 and reading["error"] is None
    called("paddle-mnist", "plot", run, "--only", "curves.png", "--output", "drawn")
    assert [path.name for path in (folder / "drawn").iterdir()] == ["curves.png"]
    assert "mnist_epoch14" in called("paddle-mnist", "checkpoints", "verify", run)
    program = "import paddle_mnist; print(paddle_mnist.__file__)"  # -I: the environment's alone
    assert called("python", "-I", "-c", program).startswith(str(folder / "venv"))


def test_installed_program_has_help_and_a_version_without_paddle(environment, tmp_path):
    """Neither imports Paddle, or another library that takes long to load."""
    started = f"paddle_mnist {paddle_mnist.__version__} (paddlepaddle "
    printed = {f"paddle-mnist {name} --help": f"usage: paddle-mnist {name} " for name in COMMANDS}
    for program in ("paddle-mnist", "python -m paddle_mnist"):
        printed[f"{program} --help"] = "usage: paddle-mnist COMMAND "
        printed[f"{program} --version"] = started
    for command, start in printed.items():
        words = command.split()
        output, imported = environment.run(tmp_path, *words, PYTHONPROFILEIMPORTTIME="1")
        assert output.startswith(start)
        modules = re.findall(r"^import time:.*\| +(\S+)$", imported, re.MULTILINE)
        assert "paddle_mnist.commands.cli" in modules
        assert not {"paddle", "visualdl", "matplotlib", "sklearn", "scipy"} & set(modules)


# An emulation of an image of AI Studio: Python 3.10, and of what the notebook needs, what it has.
IMAGE = "ipykernel matplotlib nbclient numpy<2 pillow pydantic<2 PyYAML visualdl<3".split()
REQUIRED = {"isal", "joblib", "msgspec", "opencv-python-headless", "pysimdjson", "scikit-learn"}
REQUIRED |= {"tqdm"}
LACKING = {"filelock", "llvmlite", "numba", "paddle-mnist", "scipy", *REQUIRED}


@pytest.fixture(scope="module", params=["2.6.2", pytest.param("3.3.1", marks=pytest.mark.release)])
def image(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("image")
    create = ["python3.10", "-m", "venv", folder / "venv"]
    pyenv = {**os.environ, "PYENV_VERSION": "3.10"}  # where python3.10 is a shim of pyenv's
    if not shutil.which("python3.10") or subprocess.run(create, env=pyenv).returncode:
        pytest.skip("needs Python 3.10")
    image = Environment(folder, folder / "venv/bin")
    packages = [f"paddlepaddle=={request.param}", *IMAGE]
    image.run(folder, "pip", "install", "-q", "--no-compile", *packages)
    yield image
    shutil.rmtree(folder)


def packages_of(image):
    listed = image.run(image.folder, "pip", "list", "--format=json")[0]
    return {package["name"].lower(): package["version"] for package in json.loads(listed)}


def test_notebook_runs_on_an_image_of_ai_studio(built, image):
    """With numba, which compiles: without it, a line would say so.

    The wheel is from a data set that is mounted in one image, from a clone in the other.
    """
    home = image.folder / "aistudio"
    (home / "data/data123456").mkdir(parents=True)
    before = packages_of(image)
    assert before["pydantic"] < "2" and before["numpy"] < "2" and not LACKING & set(before)
    if before["paddlepaddle"] == "2.6.2":
        shutil.copy(built.wheel, home / "data/data123456")
        shutil.copy(NOTEBOOKS["zh"], home)
    else:
        page = (ROOT / "docs/en/ai-studio.md").read_text()
        (lines,) = re.findall(r"```text\n(git clone .*?)```", page, re.DOTALL)
        for line in lines.replace("/path/to/paddle_mnist", str(ROOT)).splitlines():
            image.run(home, *shlex.split(line))
    inline = "module://matplotlib_inline.backend_inline"  # as where no backend is chosen
    image.run(home, "jupyter-execute", "--inplace", "mnist.ipynb", MPLBACKEND=inline)
    assert packages_of(image) == before
    assert_results(json.loads((home / "mnist.ipynb").read_text())["cells"], "digits")
    installed = {path.name for path in (home / "external-libraries").iterdir()}
    assert not {"filelock", "matplotlib", "numpy", "paddle", "pydantic"} & installed


def test_notebook_without_an_index_of_packages_lists_the_missing_ones(built, image, tmp_path):
    cell = next(
        c for c in json.loads(NOTEBOOKS["zh"].read_text())["cells"] if c["cell_type"] == "code"
    )
    command = ("python", "-c", "".join(cell["source"]))

    def error():
        output = image.run(tmp_path, *command, expect=1, PIP_NO_INDEX="1")[1]
        return output.splitlines()[-1]

    assert error().startswith("ModuleNotFoundError: 没有找到 paddle_mnist：")
    (tmp_path / "work").mkdir()
    shutil.copy(built.wheel, tmp_path / "work")
    (names,) = re.findall(r"^ModuleNotFoundError: 缺少 (.*)：请检查网络；", error())
    assert set(names.split("、")) == REQUIRED

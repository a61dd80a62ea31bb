#!/usr/bin/env python
"""Build a release, test what was built, and tag the commit. Nothing is uploaded.

The wheel and the source distribution hold what is committed. Each is installed into a new virtual
environment outside the repository, trains there and reads a picture.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import paddle_mnist
from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError, PaddleMnistError

ROOT = Path(__file__).parents[1]
PICTURE, DIGIT = "tests/pictures/7-07.jpg", 7
LEAST_ACCURACY = 0.97  # of the recipe digits, which reaches 0.99


def check_ready(root: Path, version: str) -> None:
    """Raise ConfigError unless the repository can be released as this version."""
    if changed := run(root, "git", "status", "--porcelain").splitlines():
        raise ConfigError(
            f"{len(changed)} files are not as committed ({changed[0].strip()}, ...); expected "
            "none; commit them or remove them"
        )
    if run(root, "git", "tag", "--list", f"v{version}"):
        raise ConfigError(
            f"the tag v{version} is there already; expected a new version; raise __version__ in "
            "paddle_mnist/__init__.py"
        )
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M):
        raise ConfigError(
            f"CHANGELOG.md has no line '## [{version}] - YYYY-MM-DD'; expected one; describe the "
            "changes below it"
        )
    if subprocess.run([sys.executable, "tools/benchmark.py", "stale"], cwd=root).returncode:
        raise ConfigError(
            "tools/benchmark.py stale failed, or lists tables that are older than the code they "
            "measure; expected none; measure them again"
        )


def build(root: Path, folder: Path) -> list[Path]:
    """Build the source distribution of the last commit and, of that, the wheel; return both."""
    tree, built = folder / "tree", folder / "built"
    run(folder, "git", "clone", "--quiet", root, tree)
    run(folder, sys.executable, "-m", "build", "--outdir", built, tree)
    return sorted(built.iterdir())


def install(built: Path, folder: Path) -> Path:
    """Install what was built into a new environment in `folder`; return the program there."""
    scripts = folder / "venv/bin"
    venv.create(folder / "venv", with_pip=True)
    run(folder, scripts / "pip", "install", "--quiet", f"{built}[cpu,pictures]")
    return scripts / "paddle-mnist"


def try_out(program: Path, picture: Path, folder: Path) -> None:
    """Train with an installed program, and read a picture."""
    run(folder, program, "train", "--recipe", "digits", "--output", "run")
    result = json.loads((folder / "run/result.json").read_text("utf-8"))
    (reading,) = json.loads(run(folder, program, "infer", picture, "--json"))
    if result["eval_acc"] < LEAST_ACCURACY or reading["digit"] != DIGIT:
        raise PaddleMnistError(
            f"{program}: trained to an accuracy of {result['eval_acc']:.4f}, read "
            f"{reading['digit']} in {picture.name}; expected {LEAST_ACCURACY} or more, and {DIGIT}"
        )


def run(folder: Path, *command: Any) -> str:
    """Run a command as outside the repository; return what it prints."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise PaddleMnistError(
            f"{' '.join(map(str, command))}: exit code {done.returncode}, expected 0; see its "
            f"output:\n{done.stdout}"
        )
    return done.stdout


def main(argv) -> None:
    parser = Parser(prog="tools/release.py", description=__doc__)
    parser.add_argument("--output", default="dist", metavar="FOLDER", help="[dist]")
    output = Path(parser.parse_args(argv).output)
    version = paddle_mnist.__version__
    check_ready(ROOT, version)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = build(ROOT, folder)
        for path in built:
            place = folder / f"of {path.name}"
            place.mkdir()
            try_out(install(path, place), folder / "tree" / PICTURE, place)
            print(f"{path.name}: installs, trains, reads a picture")
        run(ROOT, "git", "tag", "--annotate", "--message", f"Version {version}", f"v{version}")
        output.mkdir(parents=True, exist_ok=True)
        for path in built:
            shutil.copy(path, output)
    print(f"{output}: {', '.join(path.name for path in built)}; tagged v{version}; not uploaded")


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv))

"""What the tests share: data made on the spot, commands run as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from make import tiny_splits, write_json

ROOT = Path(__file__).parent.parent

# The machine's own data is only for the tests that ask for it by `real_data`.
REAL_DATA = os.environ.get("PADDLE_MNIST_DATA")


@pytest.fixture(scope="session")
def real_data() -> Path:
    if not REAL_DATA:
        pytest.skip("PADDLE_MNIST_DATA does not name a folder with MNIST")
    return Path(REAL_DATA)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """No test reads or writes the user's caches, or asks the network for MNIST."""
    os.environ.pop("PADDLE_MNIST_DATA", None)
    home = tmp_path_factory.mktemp("home")
    os.environ["HOME"] = str(home)
    os.environ["PADDLE_MNIST_CACHE"] = str(home / "cache")
    os.environ["PADDLE_MNIST_URL"] = "http://127.0.0.1:1/"  # nothing answers there


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A small JSON file in AI Studio's form that a net can learn: 300 / 60 / 70 images."""
    return write_json(tmp_path_factory.mktemp("tiny") / "tiny.json.gz", tiny_splits())


@pytest.fixture
def tool(tmp_path):
    """Run a command of tools/ in an empty folder; gives the finished process, output as text."""

    def run(name, *args, cwd=tmp_path, expect=0, timeout=300, **env):
        done = subprocess.run(
            [sys.executable, ROOT / "tools" / f"{name}.py", *map(str, args)],
            cwd=cwd,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    return run

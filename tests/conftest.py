"""What the tests share: data made on the spot, commands run as a user runs them."""

import itertools
import multiprocessing
import os
import runpy
import sys
import time
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

import pytest
from hypothesis import HealthCheck, settings
from synthetic_data import tiny_splits, write_json

ROOT = Path(__file__).parent.parent

# No test fails for the time it takes: the machine may be busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

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


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """A folder for pictures of pages, which are kept for people to look at."""
    folder = Path(os.environ.get("PADDLE_MNIST_SCREENSHOTS", ROOT / "work/screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def tool(tmp_path, tmp_path_factory):
    """Run a command of tools/ in an empty folder; gives the finished process, output as text."""
    outputs = tmp_path_factory.mktemp("outputs")
    number = itertools.count()

    def run(name, *args, cwd=tmp_path, expect=0, timeout=300, **env):
        at = next(number)
        out, err = (outputs / f"{at}.{kind}" for kind in ("out", "err"))
        argv = [str(ROOT / "tools" / f"{name}.py"), *map(str, args)]
        process = FORKS.Process(target=_run, args=(argv, cwd, {**os.environ, **env}, out, err))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise TimeoutExpired(argv, timeout)
        done = CompletedProcess(argv, process.exitcode, out.read_text(), err.read_text())
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    return run


# Every command is a process of its own, forked from one that has done the imports, which take
# longer than most of what is tested here. Tests that need a process from its first instruction
# (of signals, kills, imports, the README's commands) start one themselves.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["paddle", "visualdl", "sklearn.metrics", "matplotlib.figure", "paddle_mnist.mnist.run"]
)


def _run(argv, cwd, environment, out, err):
    os.chdir(cwd)
    os.environ.update(environment)  # not cleared: Paddle has set OMP_NUM_THREADS there
    time.tzset()
    for path, stream in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")

"""Fixtures for all tests: data made on the spot, commands run as a user runs them."""

import collections
import contextlib
import fcntl
import itertools
import logging
import os
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess

import forked
import in_process
import numba  # noqa: F401, before Paddle 2, whose zlib breaks it
import psutil
import pytest
import refusing_calls
from hypothesis import HealthCheck, settings
from synthetic_data import tiny_splits, write_json

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.images import open_data

ROOT = Path(__file__).parent.parent
# As another user, whom the system does not know, and who may read everything, as Python itself.
AS_USER = """
    setpriv --reuid=1234 --regid=1234 --clear-groups
    --inh-caps=+dac_read_search --ambient-caps=+dac_read_search
""".split()


def pytest_addoption(parser):
    parser.addoption("--part", help="K/N: run the K-th of N parts of the modules")
    parser.addoption(
        "--thorough", action="store_true", help="try every point of failure, and more random files"
    )


@pytest.hookimpl(trylast=True)  # after `-m` has chosen
def pytest_collection_modifyitems(config, items):
    """Keep the modules of one part, if one is named; those of many tests are dealt out first."""
    if not (part := config.getoption("part")):
        return
    number, parts = map(int, part.split("/"))
    counts = collections.Counter(item.path for item in items)
    kept = {path for path, _ in counts.most_common()[number - 1 :: parts]}
    config.hook.pytest_deselected(items=[item for item in items if item.path not in kept])
    items[:] = [item for item in items if item.path in kept]


MEMORY = Path("/dev/shm")
# Bytes that must be free, also of what killed runs have left there: slow tests install environments
# of 1.6 GB, and what runs in them needs memory, too.
ROOM = 10 * 2**30


def pytest_configure(config):
    """Keep the tests' folders in memory, where there is room: a disk takes long to sync."""
    is_chosen = config.option.basetemp or "PYTEST_DEBUG_TEMPROOT" in os.environ
    if is_chosen or not MEMORY.is_dir():
        return
    system = os.statvfs(MEMORY)
    room = min(system.f_bavail * system.f_frsize, psutil.virtual_memory().available)
    if room > ROOM and not system.f_flag & os.ST_NOEXEC:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)


@pytest.hookimpl(hookwrapper=True)
def pytest_report_to_serializable():
    """Escape names that are not UTF-8, which the workers of xdist could not send."""
    outcome = yield
    outcome.force_result(_escaped(outcome.get_result()))


def _escaped(value):
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(entry) for key, entry in value.items()}
    return type(value)(map(_escaped, value)) if isinstance(value, (list, tuple)) else value


# No test fails for the time it takes: the machine may be busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# The machine's own data is only for the tests that ask for it by `real_data`.
REAL_DATA = os.environ.get("PADDLE_MNIST_DATA")
REAL_DATA = REAL_DATA and os.path.abspath(os.path.expanduser(REAL_DATA))


# Milliseconds to wait for what a page shows. The limit of a test is pytest's: on a busy machine an
# answer takes minutes.
PATIENCE = 600_000


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="no playwright (extra browser)")
    chromium = shutil.which("chromium") or pytest.skip("chromium is not installed")
    api.expect.set_options(timeout=PATIENCE)
    with api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])


@pytest.fixture(scope="session", autouse=True)
def log_level():
    """Set the level as the first call of `fit` does, which `caplog` would undo after its test."""
    logging.getLogger("paddle_mnist").setLevel(logging.INFO)


@pytest.fixture
def lines(caplog):
    """The log so far."""
    log = logging.getLogger("paddle_mnist")
    log.propagate = False  # as from the first call of `fit` on; else lines come twice
    log.addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "paddle_mnist")
    yield lambda: [record.getMessage() for record in caplog.records]
    log.removeHandler(caplog.handler)


@pytest.fixture(scope="session")
def real_data(own_cache) -> Path:
    with contextlib.suppress(DataError):
        if REAL_DATA and open_data(REAL_DATA).name == "mnist":
            return Path(REAL_DATA)
    pytest.skip("PADDLE_MNIST_DATA does not name a folder with MNIST")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory, pytestconfig):
    """No test reads or writes the user's caches or `work/`, or asks the network for MNIST."""
    os.environ.pop("PADDLE_MNIST_DATA", None)
    home = tmp_path_factory.mktemp("home")
    (home / "current").mkdir()
    os.chdir(home / "current")
    os.environ["HOME"] = str(home)
    cache = home / "cache"
    cache.mkdir()
    # Compiling takes seconds: what one worker has compiled serves all, and later runs of the tests.
    compiled = pytestconfig.cache.mkdir("compiled")
    compiled.chmod(0o755)  # of a folder that others may write to, nothing is loaded
    (cache / "compiled").symlink_to(compiled)
    os.environ["PADDLE_MNIST_CACHE"] = str(cache)
    os.environ["PADDLE_MNIST_URL"] = "http://127.0.0.1:1/"  # nothing answers there
    # Paddle's launch chooses ports among those that the system gives to outgoing connections, which
    # may take one before a server does.
    os.environ["PORT_RANGE"] = "20000:32000"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A small JSON file in AI Studio's form that a net can learn: 300 / 60 / 70 images."""
    return write_json(tmp_path_factory.mktemp("tiny") / "tiny.json.gz", tiny_splits())


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, pytestconfig):
    """`made_once(NAME, FILL)` gives a folder that `FILL(folder)` fills once for all workers."""
    root = tmp_path_factory.getbasetemp()
    shared = (root.parent if hasattr(pytestconfig, "workerinput") else root) / "shared"
    shared.mkdir(exist_ok=True)

    def make(name, fill):
        folder, made = shared / name, shared / f"{name}.made"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
                folder.mkdir()
                fill(folder)
                made.touch()
        return folder

    return make


# The options of the trainings that the tests share: 300 images, 10 steps an epoch.
SMALL = ["--recipe", "default", "--epochs", "3", "--batch_size", "32", "--log_every", "4"]


@pytest.fixture(scope="session")
def run_of_command(made_once, tool_in, tiny) -> Path:
    """The run directory of `train SMALL`, with figures and dashboard; not to be changed."""
    options = [*SMALL, "--watch", "5", "--visualdl", "all", "--data", tiny, "--output", "run"]
    return made_once("command", lambda folder: tool_in(folder)("train", *options)) / "run"


@pytest.fixture(scope="session")
def run_of_processes(made_once, tool_in, tiny) -> Path:
    """The run directory of `train SMALL` by two processes, in two shards; not to be changed."""
    options = [*SMALL, "--nprocs", 2, "--grad_shards", 2, "--data", tiny, "--output", "run"]
    options += ["--figures", "false", "--visualdl", "false"]
    return made_once("processes", lambda folder: tool_in(folder)("train", *options)) / "run"


@pytest.fixture(scope="session")
def run_of_fit(made_once) -> Path:
    """The run directory of a `fit` of 3 epochs; not to be changed.

    It evaluates two splits of its own names, of which the first evaluation is the best.
    """
    from fit_rows import Points, ever_worse, train

    options = {"valid": {"near": Points(), "far": Points(12)}, "optimizer": ever_worse, "epochs": 3}
    options |= {"keep_epochs": True, "watch": 3, "figures": True}
    options |= {"visualdl": ("scalars", "histograms", "text", "hparams", "figures")}
    return made_once("fit", lambda folder: train("EMA", folder / "run", **options)) / "run"


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """A folder for pictures of pages, which are kept for people to look at."""
    folder = Path(os.environ.get("PADDLE_MNIST_SCREENSHOTS", ROOT / "work/screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def refusing(tmp_path_factory):
    """A function of a call and an error's name: the environment in which the call fails so."""
    return refusing_calls.build(tmp_path_factory.mktemp("preloaded"))


@pytest.fixture(scope="session")
def tool_in(tmp_path_factory):
    """`tool_in(FOLDER)` gives a `tool` for that folder, to fixtures that tests share.

    expect: the exit code; None for any.
    """
    outputs = tmp_path_factory.mktemp("outputs")
    number = itertools.count()

    def bind(folder):
        def run(name, *args, cwd=folder, expect=0, timeout=None, **env):
            script = ROOT / "tools" / f"{name}.py"
            program = [script] if script.exists() else [ROOT / "paddle_mnist/__main__.py", name]
            argv = [*map(str, program), *map(str, args)]
            if timeout:
                command = [sys.executable, *argv]
                done = forked.run(command, cwd=cwd, env={**os.environ, **env}, timeout=timeout)
            else:
                at = next(number)
                out, err = (outputs / f"{at}.{kind}" for kind in ("out", "err"))
                code = in_process.call(argv, cwd, env, out, err)
                done = CompletedProcess(argv, code, out.read_text(), err.read_text())
            assert expect in (None, done.returncode), done.stdout + done.stderr
            return done

        return run

    return bind


@pytest.fixture
def tool(tool_in, tmp_path):
    """Run a script or command in an empty folder; gives its exit code and output, as text.

    In this process; with a timeout, in seconds, in a process of its own. Tests of signals, kills,
    imports and exits start one themselves: see `forked`.
    """
    return tool_in(tmp_path)

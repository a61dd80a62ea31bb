"""The project's own tests and checks, on machines of many kinds and in clones that are in use."""

import os
import subprocess
import sys

import pytest
from conftest import AS_USER, ROOT
from synthetic_data import tiny_splits, write_idx, write_json

# Tests of data, options, files, texts and log lines; the last one is skipped without MNIST.
HANDFUL = """
    mnist/test_config.py mnist/test_data.py system/test_files.py test_errors.py
    test_docs.py::test_links_and_paths_exist
    metrics/test_writers.py::test_log_writer_writes_the_documented_lines
    mnist/test_readers.py::test_real_mnist_is_divided_as_the_tutorial_does
""".split()
CONDITIONS = {
    "MNIST in work, plain C": {"LANG": "C", "LC_ALL": "C"},
    "MNIST in the cache, narrow": {"HOME": "home", "COLUMNS": "40"},
    "MNIST by the variable, other zone": {"PADDLE_MNIST_DATA": "work", "TZ": "Asia/Kathmandu"},
    "no MNIST, no home, umask 077": {"HOME": "/proc/none"},
    "other user": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("condition", CONDITIONS)
def test_tests_pass_whatever_the_machine_has(tmp_path, condition):
    """And the last lines say so: one for each reason to skip, and the number that passed."""
    if condition == "other user" and os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    if "HOME" not in CONDITIONS[condition]:
        (tmp_path / "work").mkdir()
        write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    else:
        write_idx(tmp_path / "home/.cache/paddle/dataset/mnist", tiny_splits())
    (tmp_path / "tmp").mkdir()
    for folder in (tmp_path, tmp_path / "tmp"):
        folder.chmod(0o777)
    pytest_of = [sys.executable, "-m", "pytest", "-c", ROOT / "setup.cfg", "--rootdir", ROOT]
    done = subprocess.run(
        [
            *(AS_USER if condition == "other user" else []),
            *pytest_of,
            *("-o", f"cache_dir={tmp_path / 'tests_cache'}"),
            *(ROOT / "tests" / test for test in HANDFUL),
        ],
        cwd=tmp_path,
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")},
            "PYTEST_DEBUG_TEMPROOT": str(tmp_path / "tmp"),
            **CONDITIONS[condition],
        },
        umask=0o077 if "umask" in condition else -1,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *skipped, last = done.stdout.partition("short test summary info ")[2].splitlines()[1:]
    assert " passed, 1 skipped" in last
    assert [line.partition(" [1] ")[0] for line in skipped] == ["SKIPPED"], done.stdout


def test_style_is_checked_of_what_belongs_to_the_project(tmp_path):
    """In a clone with scripts, runs, notebooks and an environment of the user's own."""
    project = subprocess.run(
        ["git", "ls-files", "*.py", "*.ipynb"], cwd=ROOT, capture_output=True, text=True
    )
    files = set(project.stdout.split()) or pytest.skip("needs the git repository")
    own = {"first_net.py", "work/mine.ipynb", "env-3.11/lib/x.py", "notebooks/Untitled.ipynb"}
    for name in (*files, *own):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    shown = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert {os.path.relpath(path, tmp_path) for path in shown.stdout.split()} == files

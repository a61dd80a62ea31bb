"""A release: what it refuses, and what it builds. How that is tried out: test_install.py."""

import subprocess
import sys
import tarfile
import zipfile

import pytest
import release
from conftest import ROOT

from paddle_mnist.errors import ConfigError, PaddleMnistError

pytestmark = pytest.mark.release
VERSION = "1.2.3"
READY = {
    "CHANGELOG.md": f"# Changelog\n\n## [{VERSION}] - 2026-01-31\n",
    "tools/benchmark.py": "import sys\nassert sys.argv[1:] == ['stale']\n",
}
AS = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")


def git(folder, *arguments):
    subprocess.run(["git", *AS, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """A repository that is ready."""
    write(tmp_path, READY)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All")


def test_ready(repository):
    release.check_ready(repository, VERSION)


STALE = {"tools/benchmark.py": "print('speed.md: training'); raise SystemExit(1)"}
REFUSED = {
    "changed": ({"CHANGELOG.md": "# Changelog\n"}, False, r"1 files .* \(M CHANGELOG.md, ...\)"),
    "untracked": ({"new.py": ""}, False, r"1 files .* \(\?\? new.py, ...\)"),
    "unreleased": ({"CHANGELOG.md": f"## [{VERSION}] - unreleased"}, True, "has no line"),
    "another version": ({"CHANGELOG.md": "## [1.2.33] - 2026-01-31"}, True, "has no line"),
    "stale": (STALE, True, "stale failed, or lists tables"),
}


@pytest.mark.parametrize(("files", "is_committed", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_ready_is_refused(repository, files, is_committed, message):
    write(repository, files)
    if is_committed:
        commit(repository)
    with pytest.raises(ConfigError, match=message):
        release.check_ready(repository, VERSION)


def test_a_tag_that_is_there_is_refused(repository):
    git(repository, "tag", f"v{VERSION}")
    with pytest.raises(ConfigError, match=f"the tag v{VERSION} is there already"):
        release.check_ready(repository, VERSION)


def test_a_command_that_fails_is_named(tmp_path):
    command = [sys.executable, "-c", "print('why'); raise SystemExit(3)"]
    with pytest.raises(PaddleMnistError, match=r"exit code 3, expected 0; see its output:\nwhy"):
        release.run(tmp_path, *command)


def test_what_is_built_is_of_the_commit(tmp_path):
    pytest.importorskip("build", reason="needs the extra test")
    if not (ROOT / ".git").exists():
        pytest.skip("needs the git repository")
    wheel, sdist = sorted(release.build(ROOT, tmp_path), key=lambda path: path.suffix != ".whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "paddle_mnist/py.typed" in archive.namelist()
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/CONTRIBUTING.md") for name in archive.getnames())

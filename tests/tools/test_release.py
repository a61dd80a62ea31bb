"""A release: what it refuses. How what it builds is tried out: test_install.py."""

import subprocess

import pytest
import release

from paddle_mnist.errors import ConfigError


@pytest.mark.release
def test_release_of_what_is_not_ready_is_refused(tmp_path):
    def git(*words):
        as_tests = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
        subprocess.run(["git", *as_tests, *words], cwd=tmp_path, check=True, capture_output=True)

    def refused(message):
        with pytest.raises(ConfigError, match=message):
            release.check_ready(tmp_path, "1.2.3")

    git("init", "--quiet")
    (tmp_path / "tools").mkdir()
    for changelog, stale, message in (
        ("## [1.2.3] - unreleased\n", 0, "has no line"),
        ("## [1.2.3] - 2026-01-31\n", 1, "stale failed, or lists tables"),
        ("## [1.2.3] - 2026-01-31\n", 0, None),
    ):
        (tmp_path / "CHANGELOG.md").write_text(changelog)
        (tmp_path / "tools/benchmark.py").write_text(f"raise SystemExit({stale})\n")
        git("add", "--all")
        git("commit", "--quiet", "--message", "All")
        if message:
            refused(message)
    release.check_ready(tmp_path, "1.2.3")
    (tmp_path / "new.py").touch()
    refused(r"1 files .* \(\?\? new.py, ...\)")

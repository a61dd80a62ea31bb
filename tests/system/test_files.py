"""Files are written completely or not at all, also by several writers."""

import errno
import os
import signal
import sys

import forked
import pytest
from faulty_disk import at, fail, watched

from paddle_mnist.errors import OutputError
from paddle_mnist.system.files import PART, REMEDIES, write_atomically

FIRST, SECOND = b"a" * 1000, b"b" * 300


def test_two_writers_of_one_path_each_publish_their_own_bytes(tmp_path):
    """The second writes all of its file ahead of each operation of the first in turn."""
    path = tmp_path / "weights"

    def write_second(operation):
        write_atomically(path, SECOND)
        assert path.read_bytes() == SECOND

    for number in range(6):
        with watched(tmp_path, at(number, write_second)) as operations:
            write_atomically(path, FIRST)
        assert len(operations) == 12, "six operations of each writer"
        assert path.read_bytes() == FIRST  # the later rename wins
        assert [file.name for file in tmp_path.iterdir()] == ["weights"]


def test_run_that_starts_removes_temporary_files_of_killed_writers(tmp_path):
    """Temporary files of the run, and nobody else's."""
    from paddle_mnist.checkpoint.run import RunDirectory

    program = (
        "import os, signal, sys; from pathlib import Path; from paddle_mnist.system import files\n"
        "os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_atomically(Path(sys.argv[1]), b'half')"
    )
    for name in ("mnist.pdparams", "of-the-user"):
        done = forked.run([sys.executable, "-c", program, tmp_path / name])
        assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(f".*{PART}"))) == 2
    with RunDirectory(tmp_path, "mnist").opened():
        (left,) = tmp_path.glob(f".*{PART}")
    assert os.path.basename(left).startswith(".of-the-user")


@pytest.mark.parametrize("name", ["ENOSPC", "EDOM"])
def test_error_in_writing_names_its_remedy(tmp_path, name):
    """In words that suit commands and `fit`."""
    code = getattr(errno, name)
    with pytest.raises(OutputError) as caught, watched(tmp_path, at(0, fail(code))):
        write_atomically(tmp_path / "weights", FIRST)
    remedy = REMEDIES.get(name, "choose another place")
    assert os.strerror(code) in str(caught.value) and str(caught.value).endswith(f"; {remedy}")
    assert "--" not in remedy and not list(tmp_path.iterdir())

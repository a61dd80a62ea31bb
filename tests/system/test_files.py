"""Files are written completely or not at all, also by several writers."""

import errno
import os
import resource
import signal
import sys

import forked
import pytest
from faulty_disk import at, fail, watched

from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import CheckpointError, OutputError
from paddle_mnist.system.files import PART, REMEDIES, Journal, write_atomically

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


def test_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path):
    """pathlib does so: training would start from the beginning."""
    (tmp_path / "run_epoch0.json").write_text("{}")
    store, limits = CheckpointStore(tmp_path), resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot be listed \(Too many open files\)"):
            store.all()
        with pytest.raises(OutputError, match=r"cannot write \(Too many open files\)"):
            store.remove_temporary_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_journal_whose_closing_fails_is_closed(tmp_path):
    """logging closes its handlers again when Python ends."""

    def fail_to_close(operation):
        if operation.call == "close":
            fail(errno.EIO)(operation)

    with watched(tmp_path, fail_to_close):
        journal = Journal(tmp_path / "log")
        journal.append("text")
        with pytest.raises(OutputError, match="Input/output error"):
            journal.close()
        journal.close()

"""Run directories behind symbolic links, and on file systems that lack locks or fsync."""

import errno
import os
import shutil
import subprocess
import sys

import forked
import pytest

from paddle_mnist.errors import CheckpointError, OutputError, RunLockedError
from paddle_mnist.training.resume import ResumeRequest, find_resume_point
from paddle_mnist.training.run_directory import RunDirectory


def test_fresh_moves_the_folder_behind_a_link_and_keeps_the_link(tmp_path):
    disk = tmp_path / "disk"
    (disk / "run").mkdir(parents=True)
    link = tmp_path / "run"
    link.symlink_to(disk / "run")
    (disk / "run/config.yaml").write_text("seed: 1")
    with RunDirectory(link).opened(fresh=True):
        assert (disk / "run.1/config.yaml").read_text() == "seed: 1"
        assert link.is_symlink() and link.resolve() == disk / "run"
        assert (disk / "run/train.log").exists() and not (disk / "run/config.yaml").exists()
        with pytest.raises(RunLockedError), RunDirectory(disk / "run").opened():
            pass
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("run")] == ["run"]


LOCKED = """
import contextlib, os, sys
from paddle_mnist.errors import RunLockedError
from paddle_mnist.training.run_directory import RunDirectory

def is_locked():
    try:
        with RunDirectory("run").opened():
            return False
    except RunLockedError:
        return True

leaver = waiter = None
reading, writing = os.pipe()
with contextlib.suppress(SystemExit):
    with RunDirectory("run").opened():
        leaver = os.fork()
        if leaver == 0:
            sys.exit()  # leaves the block of its parent
        os.waitpid(leaver, 0)
        print(is_locked())
        waiter = os.fork()
        if waiter == 0:  # has the lock's descriptor when the parent leaves the block
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
if leaver == 0:
    os._exit(0)
print(is_locked())
os.close(writing)
os.waitpid(waiter, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are POSIX's")
def test_forked_process_neither_drops_the_lock_nor_keeps_it(tmp_path):
    done = forked.run([sys.executable, "-c", LOCKED], cwd=tmp_path)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_fresh_run_has_its_checkpoints_on_the_disk_of_the_former(tmp_path):
    run, disk = tmp_path / "run", tmp_path / "disk"
    (disk / "kept").mkdir(parents=True)
    run.mkdir()
    (disk / "kept/mnist_epoch0.json").write_text("{}")
    (run / "config.yaml").write_text("seed: 1")
    (run / "checkpoints").symlink_to("../disk/kept")
    with RunDirectory(run).opened(fresh=True):
        assert (run / "checkpoints").resolve() == disk / "kept.1"
        assert not list((run / "checkpoints").iterdir())
    assert (tmp_path / "run.1/checkpoints/mnist_epoch0.json").exists()


def test_link_to_a_folder_that_is_not_there_yet(tmp_path):
    """The folder is made, but not where its disk may not be mounted."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / "run"
    link.symlink_to("disk/run")
    with RunDirectory(link).opened():
        assert (tmp_path / "disk/run/train.log").exists()
    link.unlink()
    link.symlink_to(tmp_path / "unmounted/run")
    message = r"run: cannot write \(No such file .* leads nowhere"
    with pytest.raises(OutputError, match=message), RunDirectory(link).opened():
        pass
    assert not (tmp_path / "unmounted").exists()


def test_run_whose_checkpoints_are_on_a_disk_that_is_not_mounted_does_not_start_anew(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1")
    (tmp_path / "checkpoints").symlink_to("/nowhere/checkpoints")
    request = ResumeRequest("auto", 1, {}, {})
    with pytest.raises(CheckpointError, match="links to /nowhere/checkpoints, which is not there"):
        find_resume_point(RunDirectory(tmp_path), request)


# A file system, or a whole machine, that lacks something: it says so with the number in ERRNO.
PRELOADED = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refuse(const char *call) {
    errno = atoi(getenv(call));
    return -1;
}

int fsync(int descriptor) {
    struct stat status;
    if (getenv("FSYNC") && !fstat(descriptor, &status) && S_ISDIR(status.st_mode))
        return refuse("FSYNC");
    return syscall(SYS_fsync, descriptor);
}

int flock(int descriptor, int operation) {
    return getenv("FLOCK") ? refuse("FLOCK") : syscall(SYS_flock, descriptor, operation);
}
"""

OPENS = """
import sys
from pathlib import Path
from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.metrics.console import log_to_console
from paddle_mnist.training.run_directory import RunDirectory

log_to_console(sys.stderr)
try:
    for _ in range(2):
        with RunDirectory(sys.argv[1]).opened() as run:
            run.write_config("seed: 1")
            run.write_result({})
except PaddleMnistError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    source = tmp_path_factory.mktemp("preloaded") / "refuse.c"
    source.write_text(PRELOADED)
    library = source.with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.parametrize("call", ["FSYNC", "FLOCK"])
@pytest.mark.parametrize("code", ["EINVAL", "ENOTSUP", "ENOSYS", "EBADF", "ENOLCK", "EIO"])
def test_file_system_without_locks_or_fsync_of_folders_costs_one_line(
    tmp_path, library, call, code
):
    environment = {"LD_PRELOAD": str(library), call: str(getattr(errno, code))}
    done = subprocess.run(
        [sys.executable, "-c", OPENS, tmp_path / "run"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    if code == "EIO" or (call, code) == ("FSYNC", "ENOLCK"):
        assert done.returncode == 7 and "cannot write" in lines[0]
    elif call == "FSYNC":
        assert done.returncode == 0 and "cannot force a folder to the disk" in lines[0]
    else:
        assert done.returncode == 0 and "nothing prevents two processes" in lines[0]

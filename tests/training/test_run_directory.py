"""Run directories behind symbolic links, and on file systems that lack locks or fsync."""

import os
import platform
import subprocess
import sys

import forked
import pytest

from paddle_mnist.checkpoint.policy import Saving
from paddle_mnist.errors import CheckpointError, OutputError, RunLockedError
from paddle_mnist.progress import TrainState
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


def test_former_owner_saves_nothing_more(tmp_path):
    with RunDirectory(tmp_path).opened() as former:
        record = tmp_path / ".lock.json"
        record.write_text(record.read_text().replace(platform.node(), "gone-node"))
        os.utime(record, (0, 0))
        with RunDirectory(tmp_path).opened(saving=Saving(break_lock_after=60)) as present:
            for write in (
                lambda run: run.checkpoints.commit("m_epoch0", {".pdparams": b"1"}, TrainState()),
                lambda run: run.write_result({}),
            ):
                with pytest.raises(RunLockedError, match="has lost its lock"):
                    write(former)
                assert not former.result.exists() and not former.checkpoints.folder.exists()
            present.write_result({})
    assert former.result.exists() and not record.exists()


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


# A file system, or a whole machine, that lacks something.
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


@pytest.mark.parametrize("call", ["FSYNC", "FLOCK"])
@pytest.mark.parametrize("code", ["EINVAL", "ENOTSUP", "ENOSYS", "EBADF", "ENOLCK", "EIO"])
def test_file_system_without_locks_or_fsync_of_folders_costs_one_line(
    tmp_path, refusing, call, code
):
    done = subprocess.run(
        [sys.executable, "-c", OPENS, tmp_path / "run"],
        env={**os.environ, **refusing(call, code)},
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
        assert done.returncode == 0 and ".lock.json says that a process trains here" in lines[0]

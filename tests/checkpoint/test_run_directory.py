"""Run directories behind symbolic links, and on file systems that lack locks or fsync."""

import os
import shutil
import subprocess
import sys

import pytest
from fit_rows import StopsAt, train

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import CheckpointError, OutputError, RunLockedError


def train_once(folder, **options):
    return train("SGD with clipping", folder, epochs=1, **options)


def test_fresh_behind_links_moves_the_targets_and_keeps_the_links(tmp_path):
    """The link of the run, and that of its checkpoints on another disk."""
    run, disk = tmp_path / "run", tmp_path / "disk"
    for folder in ("run", "kept"):
        (disk / folder).mkdir(parents=True)
    run.symlink_to(disk / "run")
    (run / "checkpoints").symlink_to("../kept")
    train_once(run)
    assert (disk / "kept/model_epoch0.json").exists()
    train_once(run, fresh=True, seed=6)
    assert run.is_symlink() and run.resolve() == disk / "run"
    assert "seed: 5" in (disk / "run.1/config.yaml").read_text()
    assert "seed: 6" in (disk / "run/config.yaml").read_text()
    assert (run / "checkpoints").resolve() == disk / "kept.1"
    assert (disk / "run.1/checkpoints/model_epoch0.json").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("run")] == ["run"]


def test_run_directory_behind_a_link_has_the_lock_of_its_folder(tmp_path):
    (tmp_path / "link").symlink_to("run")
    with RunDirectory(tmp_path / "link").opened(), pytest.raises(RunLockedError):
        train_once(tmp_path / "run")


def test_fit_behind_a_link_makes_its_folder_unless_the_disk_is_missing(tmp_path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "run"
    link.symlink_to("disk/run")
    train_once(link)
    assert (tmp_path / "disk/run/train.log").exists()
    shutil.rmtree(link / "checkpoints")
    (link / "checkpoints").symlink_to("/nowhere/checkpoints")
    with pytest.raises(CheckpointError, match="links to /nowhere/checkpoints, which is not there"):
        train_once(link)
    link.unlink()
    link.symlink_to(tmp_path / "unmounted/run")
    with pytest.raises(OutputError, match=r"run: cannot write \(No such file .* leads nowhere"):
        train_once(link)
    assert not (tmp_path / "unmounted").exists()


def test_name_of_a_run_is_that_of_its_final_weights(tmp_path):
    train_once(tmp_path / "run", name="b")
    manifest = next((tmp_path / "run/checkpoints").glob("b_epoch*.json"))
    shutil.copy(manifest, manifest.with_name("a_epoch0_step1_breakpoint.json"))
    assert RunDirectory(tmp_path / "run").name == "b"


# A file system, or a whole machine, that lacks something.
OPENS = """
import sys
from pathlib import Path
from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.metrics.console import log_to_console
from paddle_mnist.checkpoint.run import RunDirectory

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


@pytest.mark.parametrize(
    ("call", "code"),
    [("FSYNC", "EINVAL"), ("FLOCK", "ENOLCK"), ("FSYNC", "EIO"), ("FLOCK", "EIO")],
)
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
    if code == "EIO":
        assert done.returncode == 7 and "cannot write" in lines[0]
    elif call == "FSYNC":
        assert done.returncode == 0 and "cannot fsync a directory" in lines[0]
    else:
        assert done.returncode == 0 and ".lock.json is the lock" in lines[0]


def test_run_renamed_during_training_says_so(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(RunLockedError, match=r"run: renamed or deleted during training") as caught:
        train_once(run, callbacks=[StopsAt(3, lambda: run.rename(tmp_path / "moved"))])
    assert "process" not in str(caught.value) and not run.exists()


def test_checkpoints_deleted_during_training_are_warned_of_once(tmp_path, caplog):
    folder = tmp_path / "run/checkpoints"
    train("SGD with clipping", folder.parent, callbacks=[StopsAt(6, lambda: shutil.rmtree(folder))])
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warnings == [f"{folder}: deleted during training, with all earlier checkpoints"]
    assert [path.name for path in folder.glob("*.json")] == ["model_epoch1.json"]

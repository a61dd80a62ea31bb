"""`paddle-mnist checkpoints` on the checkpoints of a real run."""

import contextlib
import json
import logging
import os
import re
import shutil
import signal
from datetime import datetime
from pathlib import Path

import pytest

from paddle_mnist import TrainConfig, train_and_evaluate
from paddle_mnist.errors import StoppedError
from paddle_mnist.system.lock import locked

NAMES = [
    "mnist_epoch0_step5",
    "mnist_epoch0_step10",
    "mnist_epoch0",
    "mnist_epoch1_step15",
    "mnist_epoch1_step16_breakpoint",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny):
    """A run of 10 steps an epoch, saved at every 5th; after step 16 a signal broke it off."""

    def stop(record):
        if "step 16/" in record.getMessage():
            os.kill(os.getpid(), signal.SIGTERM)
        return True

    folder = tmp_path_factory.mktemp("trained") / "run"
    options = {"epochs": 3, "batch_size": 32, "log_every": 4, "visualdl": False, "figures": False}
    options |= {"save_every_steps": 5, "keep_last": 99, "save_at_start": False}
    log = logging.getLogger("paddle_mnist")
    log.addFilter(stop)
    try:
        with contextlib.suppress(StoppedError):
            train_and_evaluate(TrainConfig(data=str(tiny), output=str(folder), **options))
    finally:
        log.removeFilter(stop)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def files(folder):
    """Return the files in a folder, and when each was changed."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def listed(tool, *args, **kwargs):
    return json.loads(tool("checkpoints", "list", *args, "--json", **kwargs).stdout)


# ------------------------------------------------------------------ list


def test_list_shows_a_table_and_the_same_as_json(tool, run):
    before = files(run)
    listing = listed(tool, "run", TZ="Asia/Shanghai")
    rows = listing["checkpoints"]
    assert [row["name"] for row in rows] == NAMES
    assert [row["step"] for row in rows] == [5, 10, 10, 15, 16]
    assert [row["epoch"] for row in rows] == [0, 0, 0, 1, 1]
    kinds = ["inside", "inside", "epoch end", "inside", "breakpoint"]
    assert [row["what"] for row in rows] == kinds
    assert [row["name"] for row in rows if row["newest"]] == [NAMES[4]]
    assert [row["name"] for row in rows if row["best"]] == [NAMES[2]]
    assert not any(row["damaged"] for row in rows)
    assert not listing["damaged"] and not listing["leftovers"] and not listing["quarantine"]
    for row in rows:
        own = [path for path in (run / "checkpoints").iterdir() if path.stem == row["name"]]
        assert row["bytes"] == sum(path.stat().st_size for path in own) > 100_000
        manifest = json.loads((run / f"checkpoints/{row['name']}.json").read_text())
        assert row["valid_acc"] == manifest["state"]["metrics"].get("valid/acc")
        assert row["saved_at"].endswith("+08:00")
        assert abs(datetime.fromisoformat(row["saved_at"]).timestamp() - manifest["saved_at"]) < 1

    head, *lines = tool("checkpoints", "list", "run", TZ="Asia/Shanghai").stdout.splitlines()
    assert head.split() == "name step epoch bytes saved at valid acc what".split()
    assert [line.split()[0] for line in lines] == NAMES
    for line, row in zip(lines, rows):
        assert row["saved_at"] in line and f" {row['bytes']} " in line and row["what"] in line
    assert f"{rows[2]['valid_acc']:.4f}  epoch end [best]" in lines[2]
    assert lines[4].endswith("breakpoint [newest]")
    assert files(run) == before


def test_list_shows_damage_leftovers_and_quarantine(tool, run):
    """`newest` is the one that a run would resume from, not the newest by name."""
    folder = run / "checkpoints"
    (folder / f"{NAMES[4]}.pdopt").unlink()
    flip(folder / f"{NAMES[0]}.json")
    (folder / f"{NAMES[3]}.json").unlink()
    (folder / ".mnist_epoch1.pdparams.part").write_bytes(b"half")
    (folder / "quarantine/mnist_epoch7.1").mkdir(parents=True)
    listing = listed(tool, "run")
    assert [row["name"] for row in listing["checkpoints"]] == [NAMES[1], NAMES[2], NAMES[4]]
    assert [row["newest"] for row in listing["checkpoints"]] == [False, True, False]
    assert [row["damaged"] for row in listing["checkpoints"]] == [False, False, True]
    assert len(listing["damaged"]) == 2
    lost = (".mnist_epoch1.pdparams.part", f"{NAMES[3]}.pdopt", f"{NAMES[3]}.pdparams")
    assert listing["leftovers"] == [f"run/checkpoints/{name}" for name in lost]
    assert listing["quarantine"] == ["run/checkpoints/quarantine/mnist_epoch7.1"]
    text = tool("checkpoints", "list", "run").stdout
    assert "breakpoint [damaged]" in text and "epoch end [newest] [best]" in text
    assert text.count("\ndamaged: run/checkpoints/mnist_") == 2
    assert f"/{NAMES[4]}.pdopt: No such file or directory; {NAMES[4]}.json lists it\n" in text
    assert text.count("\nleftovers: ") == 3 and text.count("\nquarantine: ") == 1

    for path in folder.glob("*.pdparams"):
        flip(path)
    rows = listed(tool, "run")["checkpoints"]
    assert not any(row["newest"] or row["best"] for row in rows)


# ------------------------------------------------------------------ verify, prune


def test_verify_reports_each_damage_and_moves_nothing(tool, run):
    """All of them, not only the first, to know what to copy again."""
    folder = run / "checkpoints"
    done = tool("checkpoints", "verify", "run")
    assert done.stdout.splitlines() == [f"run/checkpoints/{name}.json: OK" for name in NAMES]
    flip(folder / f"{NAMES[0]}.pdparams")
    (folder / f"{NAMES[2]}.pdopt").unlink()
    os.truncate(folder / f"{NAMES[4]}.json", 100)
    (folder / f"{NAMES[3]}.json").unlink()
    before = files(run)
    done = tool("checkpoints", "verify", "run", expect=4)
    assert re.sub(r": (?!OK).*", ": REASON", done.stdout).splitlines() == [
        f"run/checkpoints/{NAMES[1]}.json: OK",
        f"run/checkpoints/{NAMES[4]}.json: REASON",
        f"run/checkpoints/{NAMES[0]}.pdparams: REASON",
        f"run/checkpoints/{NAMES[2]}.pdopt: REASON",
        f"run/checkpoints/{NAMES[3]}.pdopt: REASON",
        f"run/checkpoints/{NAMES[3]}.pdparams: REASON",
    ]
    assert done.stderr.startswith("error: run/checkpoints: 3 checkpoints are damaged, 1 are intact")
    assert done.stderr.count("\n") == 1 and files(run) == before


NEWEST = ["--keep_last", "1", "--keep_epochs", "false", "--keep_best", "false"]
POLICIES = [  # options, and what is left of the five: the epoch's end is the best, and number 2
    ([], [0, 1, 2, 3, 4]),  # the run keeps 99
    (NEWEST, [4]),
    (["--keep_last=1", "--keep_epochs=false"], [2, 4]),
    ([*NEWEST[:-2], "--keep_best", "3"], [2, 4]),
]


@pytest.mark.parametrize(("options", "left"), POLICIES)
def test_prune_deletes_what_its_dry_run_lists(tool, run, options, left):
    before = files(run)
    going = [name for number, name in enumerate(NAMES) if number not in left]
    gone = {path for path in before if path.stem in going}
    *lines, total = tool("checkpoints", "prune", "run", *options).stdout.splitlines()
    assert files(run) == before
    assert [line.split(",")[0] for line in lines] == [f"would delete {name}" for name in going]
    size = sum(path.stat().st_size for path in gone)
    assert total.startswith(f"{len(going)} of 5 checkpoints, {size:,} bytes; nothing is deleted")

    done = tool("checkpoints", "prune", "run", *options, "--yes").stdout.splitlines()
    assert done[:-1] == [line.replace("would delete", "deleted") for line in lines]
    after = files(run)
    assert set(before) - set(after) == gone
    assert all(before[path] == after[path] for path in after if path.stem in NAMES)


def test_prune_keeps_the_newest_that_is_whole(tool, run):
    flip(run / f"checkpoints/{NAMES[4]}.pdparams")
    done = tool("checkpoints", "prune", "run", *NEWEST, "--yes")
    assert "damaged checkpoint: run/checkpoints" in done.stderr
    rows = listed(tool, "run")["checkpoints"]
    assert {row["name"]: row["newest"] for row in rows} == {NAMES[3]: True, NAMES[4]: False}


@pytest.mark.parametrize("place", ["run", "run/checkpoints"])
def test_prune_of_a_run_that_is_training_exits_75(tool, run, place):
    """Two that delete by their own rules could delete each other's newest."""
    before = files(run)
    with locked(run / ".lock"):
        error = tool("checkpoints", "prune", place, *NEWEST, "--yes", expect=75).stderr
        assert "another process is training there" in error and error.count("\n") == 1
        assert "would delete" in tool("checkpoints", "prune", place, *NEWEST).stdout
        assert tool("checkpoints", "verify", place).stdout.count(": OK\n") == 5
    assert set(files(run)) == set(before)


def test_invalid_arguments_exit_with_one_line(tool, run):
    before = files(run)
    for args, code, message in (
        ("list nope", 4, "nope: no checkpoint there"),
        ("verify", 4, "work/output: no run found"),
        ("run", 2, "choose from"),
        ("prune run/train.log --yes", 2, "train.log: expected a run"),
        ("prune run --keep_lst 3", 2, "did you mean --keep_last?"),
        ("prune run --keep_last 0", 2, "keep_last is '0'"),
    ):
        error = tool("checkpoints", *args.split(), expect=code).stderr
        assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert files(run) == before

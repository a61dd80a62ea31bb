"""`tools/checkpoints.py`, run as a user runs it, on what real trainings left."""

import json
import os
import re
import shutil
import sys
from datetime import datetime
from pathlib import Path

import forked
import pytest

from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.progress import TrainState
from paddle_mnist.system.locks import locked

# 10 steps an epoch, saved at every 5th; after step 16 a signal breaks it off.
TRAINING = """
import logging, os, signal, sys
from paddle_mnist import TrainConfig, train_and_evaluate
from paddle_mnist.errors import StoppedError

class Stop(logging.Handler):
    def emit(self, record):
        if "step 16/" in record.getMessage():
            os.kill(os.getpid(), signal.SIGTERM)

logging.getLogger("paddle_mnist").addHandler(Stop())
try:
    train_and_evaluate(TrainConfig(
        data=sys.argv[1], output="run", epochs=3, batch_size=32, save_every_steps=5, keep_last=99,
        log_every=4, visualdl=False, figures=False,
    ))
except StoppedError:
    sys.exit(0)
sys.exit("was not stopped")
"""
NAMES = [
    "mnist_epoch0_step5",
    "mnist_epoch0_step10",
    "mnist_epoch0",
    "mnist_epoch1_step15",
    "mnist_epoch1_step16_breakpoint",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny):
    """The folder of a run that was broken off, to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    forked.run([sys.executable, "-c", TRAINING, tiny], cwd=folder, check=True, timeout=120)
    return folder / "run"


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


def listed(tool, *args):
    return json.loads(tool("checkpoints", *args, "--json").stdout)


# ------------------------------------------------------------------ list


def test_list_shows_what_is_there(tool, run):
    """A table for eyes, and the same as JSON for programs; nothing on the disk is changed."""
    before = files(run)
    listing = listed(tool, "run")
    assert [row["name"] for row in listing["checkpoints"]] == NAMES
    assert [row["step"] for row in listing["checkpoints"]] == [5, 10, 10, 15, 16]
    assert [row["epoch"] for row in listing["checkpoints"]] == [0, 0, 0, 1, 1]
    kinds = ["inside", "inside", "epoch end", "inside", "breakpoint"]
    assert [row["what"] for row in listing["checkpoints"]] == kinds
    assert [row["newest"] for row in listing["checkpoints"]] == [False] * 4 + [True]
    assert [row["best"] for row in listing["checkpoints"]] == [False, False, True, False, False]
    assert not any(row["damaged"] for row in listing["checkpoints"])
    assert not listing["damaged"] and not listing["leftovers"] and not listing["quarantine"]
    for row in listing["checkpoints"]:
        own = [p for p in (run / "checkpoints").iterdir() if p.stem == row["name"]]
        assert row["bytes"] == sum(path.stat().st_size for path in own) > 100_000
        manifest = json.loads((run / f"checkpoints/{row['name']}.json").read_text())
        assert row["valid_acc"] == manifest["state"]["metrics"].get("valid/acc")
        assert abs(datetime.fromisoformat(row["saved_at"]).timestamp() - manifest["saved_at"]) < 1

    text = tool("checkpoints", "run").stdout
    head, *rows = text.splitlines()
    assert head.split() == "name step epoch bytes saved at valid acc what".split()
    assert [row.split()[0] for row in rows] == NAMES
    for line, row in zip(rows, listing["checkpoints"]):
        assert row["saved_at"] in line and f" {row['bytes']} " in line and row["what"] in line
    assert f"{listing['checkpoints'][2]['valid_acc']:.4f}  epoch end [best]" in rows[2]
    assert rows[4].endswith("breakpoint [newest]")
    assert text == tool("checkpoints", "run", "list").stdout
    assert files(run) == before


def test_times_are_those_of_the_clock_on_the_wall(tool, run):
    for zone, offset in (("Asia/Shanghai", "+08:00"), ("UTC", "+00:00")):
        row = json.loads(tool("checkpoints", "run", "--json", TZ=zone).stdout)["checkpoints"][0]
        assert row["saved_at"].endswith(offset)


def test_list_names_damage_leftovers_and_quarantine(tool, run):
    """`newest` is what a training would go on from, not what is newest by name."""
    folder = run / "checkpoints"
    flip(folder / f"{NAMES[4]}.pdopt")
    flip(folder / f"{NAMES[0]}.json")
    (folder / f"{NAMES[3]}.json").unlink()
    (folder / ".mnist_epoch1.pdparams.part").write_bytes(b"half")
    (folder / "quarantine/mnist_epoch7.1").mkdir(parents=True)
    listing = listed(tool, "run")
    assert [row["name"] for row in listing["checkpoints"]] == [NAMES[1], NAMES[2], NAMES[4]]
    assert [row["newest"] for row in listing["checkpoints"]] == [False, True, False]
    assert [row["damaged"] for row in listing["checkpoints"]] == [False, False, True]
    assert len(listing["damaged"]) == 2
    assert listing["leftovers"] == [
        f"run/checkpoints/{name}"
        for name in (".mnist_epoch1.pdparams.part", f"{NAMES[3]}.pdopt", f"{NAMES[3]}.pdparams")
    ]
    assert listing["quarantine"] == ["run/checkpoints/quarantine/mnist_epoch7.1"]
    text = tool("checkpoints", "run").stdout
    assert "breakpoint [damaged]" in text and "epoch end [newest] [best]" in text
    assert text.count("\ndamaged: run/checkpoints/mnist_") == 2
    assert text.count("\nleftovers: ") == 3 and text.count("\nquarantine: ") == 1


def test_list_when_none_is_whole(tool, run):
    """Then a list is needed most; nothing in it is called newest or best."""
    for path in (run / "checkpoints").glob("*.pdparams"):
        flip(path)
    listing = listed(tool, "run")
    assert [row["name"] for row in listing["checkpoints"] if row["damaged"]] == NAMES
    assert not any(row["newest"] or row["best"] for row in listing["checkpoints"])
    text = tool("checkpoints", "run").stdout
    assert text.count("[damaged]\n") == 5 and "[newest]" not in text and "[best]" not in text


@pytest.mark.parametrize("place", ["run", "run/", "run/checkpoints", "copied"])
def test_run_may_be_any_folder_with_checkpoints(tool, run, place):
    if place == "copied":
        shutil.copytree(run / "checkpoints", run.parent / place)
    assert [row["name"] for row in listed(tool, place)["checkpoints"]] == NAMES


def test_here(tool, run):
    done = tool("checkpoints", ".", "--json", cwd=run / "checkpoints")
    assert [row["name"] for row in json.loads(done.stdout)["checkpoints"]] == NAMES


def test_tutorials_folder(tool, tmp_path):
    """Its `checkpoint/`: saved by `Trainer`, or by its own code, which writes no manifests."""
    program = (
        "import paddle\n"
        "from paddle_mnist import MNIST, MnistDataset, Trainer\n"
        "data = paddle.io.DataLoader(MnistDataset('train', 'digits', limit=64), batch_size=32)\n"
        "model = MNIST()\n"
        "adam = paddle.optimizer.Adam(0.01, parameters=model.parameters())\n"
        "Trainer('mnist.pdparams', model, adam).train(data, 0, 2, 'checkpoint')\n"
        "paddle.save(model.state_dict(), 'checkpoint/mnist_epoch7.pdparams')\n"
    )
    forked.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)
    listing = listed(tool, "checkpoint")
    assert [row["name"] for row in listing["checkpoints"]] == ["mnist_epoch0", "mnist_epoch1"]
    assert listing["leftovers"] == ["checkpoint/mnist_epoch7.pdparams"]
    options = ("--keep_last", "1", "--keep_epochs", "false", "--keep_best", "false", "--yes")
    assert "deleted mnist_epoch0, " in tool("checkpoints", "checkpoint", "prune", *options).stdout
    assert {path.name for path in tmp_path.rglob("*.pd*")} == {
        "mnist.pdparams",
        "mnist_epoch1.pdparams",
        "mnist_epoch1.pdopt",
        "mnist_epoch7.pdparams",
    }
    assert not list(tmp_path.glob("*.log")) and not list(tmp_path.rglob(".lock"))


# ------------------------------------------------------------------ verify


def test_verify_of_whole_checkpoints(tool, run):
    before = files(run)
    done = tool("checkpoints", "run", "verify")
    lines = [f"run/checkpoints/{name}.json: OK" for name in NAMES]
    assert done.stdout.splitlines() == lines and not done.stderr
    assert files(run) == before


def test_verify_names_each_damage_and_moves_nothing(tool, run):
    """All of them, not only the first: who copies checkpoints wants to know what to copy again."""
    folder = run / "checkpoints"
    flip(folder / f"{NAMES[0]}.pdparams")
    (folder / f"{NAMES[2]}.pdopt").unlink()
    os.truncate(folder / f"{NAMES[4]}.json", 100)
    (folder / f"{NAMES[3]}.json").unlink()
    before = files(run)
    done = tool("checkpoints", "run", "verify", expect=4)
    assert re.sub(r": (?!OK).*", ": REASON", done.stdout).splitlines() == [
        f"run/checkpoints/{NAMES[1]}.json: OK",
        f"run/checkpoints/{NAMES[4]}.json: REASON",
        f"run/checkpoints/{NAMES[0]}.pdparams: REASON",
        f"run/checkpoints/{NAMES[2]}.pdopt: REASON",
        f"run/checkpoints/{NAMES[3]}.pdopt: REASON",
        f"run/checkpoints/{NAMES[3]}.pdparams: REASON",
    ]
    assert done.stderr.startswith("error: run/checkpoints: 3 checkpoints are damaged, 1 are whole")
    assert done.stderr.count("\n") == 1 and files(run) == before


def test_verify_agrees_with_the_training(tool, run, tiny):
    """A training sets aside what `verify` calls damaged, and goes on from what it calls OK."""
    flip(run / f"checkpoints/{NAMES[4]}.pdopt")
    assert NAMES[4] in tool("checkpoints", "run", "verify", expect=4).stdout
    output = tool("train", "-c", "run/config.yaml", "-o", "output=run").stdout
    assert f"resuming after step 15, from run/checkpoints/{NAMES[3]}.json" in output
    listing = listed(tool, "run")
    assert listing["quarantine"] == [f"run/checkpoints/quarantine/{NAMES[4]}.1"]
    assert NAMES[4] not in [row["name"] for row in listing["checkpoints"]]
    assert tool("checkpoints", "run", "verify").stdout.count(": OK\n") == len(
        listing["checkpoints"]
    )


# ------------------------------------------------------------------ prune

NEWEST = ["--keep_last", "1", "--keep_epochs", "false", "--keep_best", "false"]
# Options, and what is left of the five: the epoch's end is the best, and number 2.
POLICIES = {
    "as the run does": ([], [0, 1, 2, 3, 4]),  # it was told to keep 99
    "three": (["--keep_last", "3"], [2, 3, 4]),
    "newest": (NEWEST, [4]),
    "epochs": (["--keep_last", "1", "--keep_best", "false"], [2, 4]),
    "best": (["--keep_last", "1", "--keep_epochs", "false"], [2, 4]),
    "four": (["--keep_last=4", "--keep_epochs=false", "--keep_best=false"], [1, 2, 3, 4]),
    "every minute": ([*NEWEST, "--keep_every_minutes", "0.0000001"], [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", POLICIES)
def test_prune_says_what_it_would_delete_and_then_deletes_that(tool, run, name):
    """A dry run is believed: what it says and what `--yes` does must be one."""
    options, left = POLICIES[name]
    before = files(run)
    sizes = {path: path.stat().st_size for path in before}
    going = [one for number, one in enumerate(NAMES) if number not in left]
    gone = {path for path in before if path.stem in going}

    lines = tool("checkpoints", "run", "prune", *options).stdout.splitlines()
    assert files(run) == before
    assert lines == [
        *(
            f"would delete {one}, {sum(sizes[p] for p in gone if p.stem == one):,} bytes"
            for one in going
        ),
        f"{len(going)} of 5 checkpoints, {sum(map(sizes.get, gone)):,} bytes; nothing is deleted "
        "without --yes",
    ]

    done = tool("checkpoints", "run", "prune", *options, "--yes").stdout.splitlines()
    assert done[:-1] == [line.replace("would delete", "deleted") for line in lines[:-1]]
    assert lines[-1] == f"{done[-1]}; nothing is deleted without --yes"
    after = files(run)
    assert set(before) - set(after) == gone
    assert all(before[path] == after[path] for path in after if path.stem in NAMES)


def test_breakpoints_may_go(tool, run):
    """The newest is kept as the newest; an older one only as a breakpoint."""
    folder = run / "checkpoints"
    manifest = json.loads((folder / f"{NAMES[4]}.json").read_text())
    data = {
        suffix: (folder / f"{NAMES[4]}{suffix}").read_bytes() for suffix in (".pdparams", ".pdopt")
    }
    state = TrainState.from_dict({**manifest["state"], "step": 20, "epoch": 2, "position": 0})
    CheckpointStore(folder).commit("mnist_epoch1", data, state)
    kept = [row["name"] for row in listed(tool, "run")["checkpoints"]]
    assert kept == [*NAMES, "mnist_epoch1"]
    tool("checkpoints", "run", "prune", *NEWEST, "--yes")
    assert [row["name"] for row in listed(tool, "run")["checkpoints"]] == [NAMES[4], "mnist_epoch1"]
    tool("checkpoints", "run", "prune", *NEWEST, "--keep_breakpoints", "false", "--yes")
    assert [row["name"] for row in listed(tool, "run")["checkpoints"]] == ["mnist_epoch1"]


def test_prune_keeps_the_newest_that_is_whole(tool, run):
    """Whatever is newer and damaged: it is what the training goes on from."""
    flip(run / f"checkpoints/{NAMES[4]}.pdparams")
    done = tool("checkpoints", "run", "prune", *NEWEST, "--yes")
    assert "damaged checkpoint: run/checkpoints" in done.stderr
    listing = listed(tool, "run")["checkpoints"]
    assert [(row["name"], row["newest"]) for row in listing] == [
        (NAMES[3], True),
        (NAMES[4], False),
    ]


def test_prune_leaves_nothing_beside_a_folder_that_is_no_runs(tool, run):
    """Somebody's `checkpoints/`: what is beside it is his, and no place for a lock and a log."""
    folder = Path(shutil.copytree(run / "checkpoints", run.parent / "mine/checkpoints"))
    assert "4 of 5" in tool("checkpoints", folder, "prune", *NEWEST, "--yes").stdout
    assert list((run.parent / "mine").iterdir()) == [folder]
    assert {path.stem for path in folder.iterdir()} == {NAMES[4]}


@pytest.mark.parametrize("place", ["run", "run/checkpoints"])
def test_prune_of_a_run_that_is_training(tool, run, place):
    """Two that delete by their own rules could delete each other's newest. To look is free."""
    before = files(run)
    with locked(run / ".lock"):
        error = tool("checkpoints", place, "prune", *NEWEST, "--yes", expect=75).stderr
        assert "another process is training there" in error and error.count("\n") == 1
        assert "would delete" in tool("checkpoints", place, "prune", *NEWEST).stdout
        assert tool("checkpoints", place, "verify").stdout.count(": OK\n") == 5
    assert set(files(run)) == set(before)
    assert "4 of 5" in tool("checkpoints", place, "prune", *NEWEST, "--yes").stdout


# ------------------------------------------------------------------ what can be wrong

BAD = {
    "no such folder": (["nope"], 4, "nope: no checkpoint there"),
    "an empty folder": (["empty"], 4, "empty: no checkpoint there"),
    "a file": (["file"], 4, "file: no checkpoint there"),
    "a run without checkpoints": (["young"], 4, "young: no checkpoint there"),
    "prune of nothing": (["nope", "prune", "--yes"], 4, "nope: no checkpoint there"),
    "only leftovers": (["leftovers", "verify"], 4, "0 checkpoints are damaged, 0 are whole"),
    "no run": ([], 4, "work/output: no run found"),
    "unknown action": (["empty", "delete"], 2, "empty and delete are given; expected one run, and"),
    "two actions": (["empty", "list", "verify"], 2, "list and verify are given; expected one run"),
    "prune of one": (["file", "prune", "--yes"], 2, "file: prune takes a run"),
    "unknown option": (["empty", "prune", "--keep_lst", "3"], 2, "did you mean --keep_last?"),
    "bad number": (["empty", "prune", "--keep_last", "0"], 2, "keep_last is '0'"),
    "bad word": (["empty", "prune", "--keep_best", "perhaps"], 2, "keep_best is 'perhaps'"),
    "no home": (["~nobody0"], 2, "expected a folder"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_clear_line(tool, tmp_path, name):
    for folder in ("empty", "young/checkpoints", "leftovers"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "leftovers/mnist_epoch0.pdparams").touch()
    args, code, message = BAD[name]
    before = files(tmp_path)
    error = tool("checkpoints", *args, expect=code).stderr
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert files(tmp_path) == before and not (tmp_path / "nope").exists()


def test_needs_no_paddle(tool, run):
    """To look at checkpoints where they are kept, not where they are trained."""
    (run.parent / "broken").mkdir()
    (run.parent / "broken/paddle.py").write_text("raise ImportError('must not be imported')")
    path = os.pathsep.join([str(run.parent / "broken"), os.environ.get("PYTHONPATH", "")])
    for action in ("list", "verify", "prune"):
        tool("checkpoints", "run", action, PYTHONPATH=path)


def test_help_says_what_may_be_done(tool):
    text = tool("checkpoints", "--help").stdout
    assert "tools/checkpoints.py [RUN] [list|verify|prune] [options]" in text
    for name in ("--json", "--yes", "--keep_last", "--keep_every_minutes", "--keep_breakpoints"):
        assert name in text


def test_a_mirror(tool, run):
    """By its URL; messages show that, not where it was downloaded to."""
    pytest.importorskip("fsspec", reason="needs the extra mirror")
    url = run.as_uri()
    contents = listed(tool, url)
    assert contents["folder"] == f"{url}/checkpoints"
    assert [row["name"] for row in contents["checkpoints"]] == NAMES

    tool("checkpoints", url, "prune", *NEWEST)
    assert {path.stem for path in run.glob("checkpoints/*.json")} == {*NAMES}
    tool("checkpoints", url, "prune", *NEWEST, "--yes")
    assert {path.stem for path in run.glob("checkpoints/*")} == {NAMES[4]}

    weights = f"checkpoints/{NAMES[4]}.pdparams"
    assert tool("checkpoints", url, "verify").stdout.endswith(f"{NAMES[4]}.json: OK\n")
    flip(run / weights)
    done = tool("checkpoints", url, "verify", expect=4)
    assert f"{url}/{weights}: " in done.stdout
    assert f"error: {url}/checkpoints: 1 checkpoints are damaged, 0 are whole" in done.stderr

    done = tool("checkpoints", f"{url}/nothing", expect=4)
    assert f"{url}/nothing: no checkpoint there" in done.stderr

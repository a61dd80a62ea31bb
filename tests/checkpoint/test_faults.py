"""The commit protocol of checkpoints, proved point by point.

A small training is watched once; every operation on the folder of its checkpoints is a point. Then
for each point: it is killed there; the disk fails there, once or from there on; the power fails
there. Each time a checkpoint must be left that is whole and no older than the newest that was
promised, and the same training started again must end with the bits of the unbroken one.
"""

import contextlib
import errno
import functools
import hashlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Optional

import forked
import paddle
import pytest
from conftest import ROOT
from faulty_disk import (
    CALLS,
    Before,
    Disk,
    Operation,
    at,
    fail,
    from_on,
    kill,
    lay_out,
    takes_space,
    tree_of,
    tried,
    watched,
)
from synthetic_data import tiny_splits

from paddle_mnist import MNIST, BatchLoader, MnistDataset, Trainer
from paddle_mnist.checkpoint import checkpointer
from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, Checkpoint
from paddle_mnist.checkpoint.policy import Saving
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.data.seeding import reseed
from paddle_mnist.errors import CheckpointError, OutputError
from paddle_mnist.metrics.writers import ManyWriters
from paddle_mnist.mnist.arrays import Data, Split
from paddle_mnist.mnist.options import OptimizerOptions
from paddle_mnist.progress import TrainState
from paddle_mnist.system.files import PART

SLOW = pytest.mark.slow
RELEASE = pytest.mark.release
STRIDE = 3  # of the points in CI

# Two epochs of three steps; saved after step 4, inside the second epoch, and at the end.
EPOCHS, STEPS = 2, 6
OPTIMIZER_OPTIONS = OptimizerOptions("adam", 0.01, "cosine", total_steps=STEPS)
ONE = Saving(every_epochs=2, every_steps=4, keep_last=1, keep_best=False)  # the sharpest policy


# ------------------------------------------------------------------ the training


@functools.cache
def loader() -> BatchLoader:
    splits = {mode: Split(*pair, 256) for mode, pair in tiny_splits({"train": 12}).items()}
    dataset = MnistDataset("train", Data("tiny", "made here", "", "", splits))
    return BatchLoader(dataset, 4, seed=1, shuffle=True)


def store_in(folder: Path) -> CheckpointStore:
    """Two folders down, so that a first save has two to make."""
    return CheckpointStore(folder / "run/checkpoints")


def weights_of(folder: Path) -> Path:
    """Beside the folder that is watched: here it is about checkpoints only."""
    return folder.with_name(f"{folder.name}.pdparams")


def started(folder: Path, store: Optional[CheckpointStore] = None, saving: Saving = ONE) -> Trainer:
    """Do as `train_and_evaluate` before the first step: clear up, find the newest, load it."""
    store = store or store_in(folder)
    store.remove_temporary_files()
    checkpoint = store.newest(quarantine_damaged=True)
    paddle.seed(1)
    model = MNIST()
    optimizer = OPTIMIZER_OPTIONS(model.parameters())
    if checkpoint:
        load_checkpoint(checkpoint, model, optimizer)
    return Trainer(
        weights_of(folder),
        model,
        optimizer,
        checkpointer=StoreCheckpointer(
            store, saving, resumed_from=checkpoint.state if checkpoint else None
        ),
        writer=ManyWriters([]),
        state=checkpoint.state if checkpoint else TrainState(),
        reseed=functools.partial(reseed, 1),
    )


def finish(trainer: Trainer) -> None:
    trainer.train(loader(), trainer.state.epoch, EPOCHS)


# ------------------------------------------------------------------ what is on the disk


def whole(folder: Path) -> dict[str, tuple]:
    """The order of each checkpoint that is whole, by name; found without the code that resumes."""
    sort_keys = {}
    for checkpoint in store_in(folder).all():
        with contextlib.suppress(CheckpointError):
            checkpoint.verify()
            sort_keys[checkpoint.name] = checkpoint.sort_key
    return sort_keys


def newest_in(folder: Path) -> tuple:
    """The order of the newest checkpoint that is whole; () if none is."""
    return max(whole(folder).values(), default=())


def end_of(folder: Path) -> dict[str, str]:
    """SHA-256 of what a training comes to: the final weights, and the files of its last checkpoint.

    Every checkpoint that is there must be whole, and no temporary file be left.
    """
    checkpoints = store_in(folder).all()
    assert len(whole(folder)) == len(checkpoints)
    assert not list(folder.rglob(f".*{PART}"))
    last = checkpoints[-1].path
    files = {"weights": weights_of(folder)}
    files |= {last.stem + suffix: last.with_suffix(suffix) for suffix in (PARAMS, OPTIMIZER)}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


class NotedStore(CheckpointStore):
    """Notes what is committed, and when `commit` returned: from then on a checkpoint is promised.

    done: the operations on the disk so far, a list that grows.
    """

    def __init__(self, folder: Path, done: list[Operation]):
        super().__init__(folder)
        self.done = done
        self.contents: dict[
            str, list
        ] = {}  # by name: the files of each commit, whatever it came to
        self.returned: list[tuple[int, tuple]] = []  # (operations done, order)
        with contextlib.suppress(CheckpointError):
            newest = self.newest()
            if newest:  # from before
                self.contents[newest.name] = [files_of(newest)]
                self.returned.append((0, newest.sort_key))

    def commit(self, name, files, state, more=None) -> Checkpoint:
        self.contents.setdefault(name, []).append(
            {
                suffix: one if isinstance(one, bytes) else one.to_bytes()
                for suffix, one in files.items()
            }
        )
        checkpoint = super().commit(name, files, state, more)
        self.returned.append((len(self.done), checkpoint.sort_key))
        return checkpoint

    def promised(self, done: int) -> tuple:
        """The order of the newest that is promised after so many operations; () if none is."""
        return max((order for number, order in self.returned if number <= done), default=())


def files_of(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {suffix: checkpoint.read(suffix) for suffix in (PARAMS, OPTIMIZER)}


def must_hold(store: NotedStore, done: int, folder: Path, when: str) -> None:
    """Check that a power failure after so many operations left in `folder` what was promised."""
    try:
        newest = store_in(folder).newest()
    except CheckpointError as error:
        pytest.fail(f"{when}: {error}")
    assert (newest.sort_key if newest else ()) >= store.promised(done), when
    assert newest is None or files_of(newest) in store.contents[newest.name], when


# ------------------------------------------------------------------ without a fault


class Unbroken:
    """The training without a fault, and the points at which there will be some."""

    def __init__(self, start: Path, pytestconfig: pytest.Config):
        self.start = start
        self.whole: list[dict] = []  # ahead of each point
        folder = self.again(start.with_name("unbroken"))
        with watched(folder, lambda operation: self.whole.append(whole(folder))) as done:
            self.store = NotedStore(store_in(folder).folder, done)
            trainer = started(folder, self.store)
            self.ready = len(done)  # the points until it trains
            finish(trainer)
        self.points = done
        self.tried = tried(range(len(done) + 1), STRIDE, pytestconfig)
        self.tree = tree_of(folder)
        self.end = end_of(folder)

    def again(self, folder: Path) -> Path:
        """Another folder to start in, as that of this training was."""
        return Path(shutil.copytree(self.start, folder))

    def each(self, fault: str) -> Iterator[tuple[int, str]]:
        """The numbers of the points that are tried, and what to say of a fault there."""
        for number, point in enumerate(self.points):
            if number in self.tried:
                yield number, f"{fault} {number}, {point.call} of {point.path}"


@pytest.fixture(
    scope="module",
    params=[
        "nothing",
        pytest.param("damage", marks=SLOW),
        pytest.param("nothing, in the background", marks=RELEASE),
        pytest.param("damage, in the background", marks=SLOW),
    ],
)
def unbroken(request, tmp_path_factory) -> Iterator[Unbroken]:
    """nothing: the first save makes its folders, the second deletes what the first one saved.

    damage: the newest of two checkpoints is damaged, and a killed save has left its temporary
    file. The one is set aside and the other deleted; what is saved has the name of the damaged one.
    in the background: a thread writes what is saved during the training, as of a large net.
    """
    beginning, _, is_threads = request.param.partition(", ")
    folder = tmp_path_factory.mktemp(beginning) / "start"
    folder.mkdir()
    if beginning == "damage":
        finish(started(folder, saving=replace(ONE, keep_epochs=True, keep_last=2)))
        checkpoints = store_in(folder).folder
        os.truncate(checkpoints / "mnist_epoch1.pdopt", 99)
        (checkpoints / ".mnist_epoch0.pdparams.part").write_bytes(b"half")
    with pytest.MonkeyPatch.context() as patch:
        if is_threads:
            patch.setattr(checkpointer, "BACKGROUND_BYTES", 0)
        yield Unbroken(folder, request.config)


def test_every_change_of_the_disk_is_a_point(unbroken):
    """Else nothing below would prove anything: the operations seen make up the whole outcome."""
    disk = Disk(unbroken.start)
    for operation in unbroken.points:
        disk.apply(operation)
    assert disk.seen() == unbroken.tree
    assert {operation.call for operation in unbroken.points} == set(CALLS)
    assert len(unbroken.points) == len(unbroken.whole) > 30


def test_both_starts_end_with_the_same_bits(unbroken, tmp_path):
    (tmp_path / "plain").mkdir()
    finish(started(tmp_path / "plain"))
    assert end_of(tmp_path / "plain") == unbroken.end


# ------------------------------------------------------------------ (a) killed


def train_and_kill(folder: Path, number: int, background_bytes: int) -> None:
    checkpointer.BACKGROUND_BYTES = background_bytes
    with watched(folder, at(number, kill)):
        finish(started(folder))


def exit_code(number: int, folder: Path) -> int:
    """Train in a process of its own, killed ahead of an operation if there are so many."""
    process = forked.forks().Process(
        target=train_and_kill, args=(folder, number, checkpointer.BACKGROUND_BYTES)
    )
    process.start()
    process.join()
    return process.exitcode


def test_killed_at_any_point(unbroken, tmp_path):
    """The whole checkpoints are those of the unbroken training there, and its promises hold."""
    for number, when in unbroken.each("killed ahead of"):
        folder = unbroken.again(tmp_path / str(number))
        assert exit_code(number, folder) == -signal.SIGKILL, when
        assert whole(folder) == unbroken.whole[number], when
        assert newest_in(folder) >= unbroken.store.promised(number), when
        finish(started(folder))
        assert end_of(folder) == unbroken.end, when
    assert exit_code(len(unbroken.points), unbroken.again(tmp_path / "beyond")) == 0


# ------------------------------------------------------------------ (b) the disk fails


def checked(folder: Path, fault: Before) -> Before:
    """`fault`, and at each operation: the newest whole checkpoint is no older than it was."""
    newest: tuple = ()

    def before(operation: Operation) -> None:
        nonlocal newest
        earlier, newest = newest, newest_in(folder)
        assert newest >= earlier, operation
        fault(operation)

    return before


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_disk_fails_once_at_any_point(unbroken, tmp_path, code, caplog, lines):
    """Training warns once, continues, saves again, and comes to the same end.

    Ahead of the first step it is an error: nothing is lost, and the same command resumes.
    What comes after the last commit is a deletion, which is reported as such.
    """
    last = unbroken.store.returned[-1][0]
    for number, when in unbroken.each("failed at"):
        folder = unbroken.again(tmp_path / str(number))
        with watched(folder, checked(folder, at(number, fail(code)))):
            if number < unbroken.ready:
                with pytest.raises(OutputError):
                    started(folder)
            trainer = started(folder)
            caplog.clear()
            finish(trainer)
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == (number >= unbroken.ready), when
        assert any("be deleted" in line for line in lines()) == (number >= last), when
        assert end_of(folder) == unbroken.end, when


def is_any(operation: Operation) -> bool:
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "refused"),
    [(errno.ENOSPC, takes_space), (errno.EIO, is_any)],
    ids=["full", "dead"],
)
def test_disk_fails_from_any_point_on(unbroken, tmp_path, code, refused):
    """All steps are done; then it is an error, unless the last state had been saved before.

    What was whole when the disk failed is whole still, and on a disk that is well again the same
    command resumes to the same end.
    """

    def fault(operation: Operation) -> None:
        if refused(operation):
            fail(code)(operation)

    last = unbroken.store.returned[-1][0]
    for number, when in unbroken.each("failing from"):
        folder = unbroken.again(tmp_path / str(number))
        starts = not any(map(refused, unbroken.points[number : unbroken.ready]))
        saves = not any(map(refused, unbroken.points[number:last]))
        with watched(folder, checked(folder, from_on(number, fault))):
            with contextlib.nullcontext() if starts else pytest.raises(OutputError):
                trainer = started(folder)
            if starts:
                with contextlib.nullcontext() if saves else pytest.raises(OutputError):
                    finish(trainer)
                assert trainer.state.step == STEPS, when
        if not saves:
            assert unbroken.whole[number].items() <= whole(folder).items(), when
        finish(started(folder))
        assert end_of(folder) == unbroken.end, when


# ------------------------------------------------------------------ the power fails


def commit(store: CheckpointStore, epoch: int) -> None:
    files = {PARAMS: b"weights %d" % epoch * 9, OPTIMIZER: b"moments %d" % epoch * 9}
    store.commit(f"mnist_epoch{epoch - 1}", files, TrainState(epoch=epoch, step=10 * epoch))


def save_four(store: CheckpointStore) -> None:
    """Each deletes the one before."""
    for epoch in range(1, 5):
        commit(store, epoch)
        store.prune(ONE)


def quarantine_and_save(store: CheckpointStore) -> None:
    """The damaged one is moved away, and one of its name saved again."""
    store.remove_temporary_files()
    assert store.newest(quarantine_damaged=True).name == "mnist_epoch0"
    for epoch in (2, 3):
        commit(store, epoch)
        store.prune(ONE)


@pytest.mark.parametrize("history", [save_four, quarantine_and_save])
def test_power_fails_at_any_point(tmp_path, history):
    """Everything that `Disk` says may be left, after each operation; equal folders once."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if history is quarantine_and_save:
        commit(store_in(folder), 1)
        commit(store_in(folder), 2)
        os.truncate(store_in(folder).folder / "mnist_epoch1.pdopt", 9)
        (store_in(folder).folder / ".mnist_epoch2.pdopt.part").write_bytes(b"half")
    disk = Disk(folder)
    with watched(folder) as done:
        store = NotedStore(store_in(folder).folder, done)
        history(store)
    tried = set()
    for number in range(len(done) + 1):
        for tree in disk.crashes():
            outcome = (store.promised(number), frozenset(tree.items()))
            if outcome not in tried:
                tried.add(outcome)
                left = lay_out(tree, tmp_path / "left")
                must_hold(store, number, left, f"{done[:number][-3:]} left {tree}")
                shutil.rmtree(left)
        if number < len(done):
            disk.apply(done[number])
    assert len(tried) > 300


@pytest.mark.parametrize("again", [1, 2], ids=["of the same name", "of another name"])
def test_power_fails_after_a_save_that_followed_a_failed_one(tmp_path, again):
    """A failed save leaves work undone in the folders: no hole in what the next one promises."""
    (tmp_path / "well").mkdir()
    with watched(tmp_path / "well") as points:
        commit(store_in(tmp_path / "well"), 1)
    for number, point in enumerate(points):
        folder = tmp_path / str(number)
        folder.mkdir()
        disk = Disk(folder)
        with watched(folder, at(number, fail(errno.EIO))) as done:
            store = NotedStore(store_in(folder).folder, done)
            with pytest.raises(OutputError):
                commit(store, 1)
            commit(store, again)
        for operation in done:
            disk.apply(operation)
        for tree in disk.crashes():
            left = lay_out(tree, tmp_path / "left")
            must_hold(store, len(done), left, f"failed at {number}, {point}; left {tree}")
            shutil.rmtree(left)


@pytest.mark.slow
def test_power_fails_at_any_point_of_a_training_which_resumes(unbroken, tmp_path):
    """Of each point one of the folders that may be left, drawn at random but always the same."""
    draw = random.Random(0)
    disk = Disk(unbroken.start)
    for number in range(len(unbroken.points) + 1):
        tree = draw.choice(list(disk.crashes()))
        if number in unbroken.tried:
            folder = lay_out(tree, tmp_path / str(number))
            when = f"power failed after {unbroken.points[:number][-3:]}"
            must_hold(unbroken.store, number, folder, when)
            finish(started(folder))
            assert end_of(folder) == unbroken.end, when
        if number < len(unbroken.points):
            disk.apply(unbroken.points[number])


# ------------------------------------------------------------------ a disk that is really full


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    try:
        subprocess.run(mount, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small disk here: {getattr(error, 'stderr', error)}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
def test_training_outlives_a_disk_that_is_full_for_a_while(tool, tiny, tmp_path, small_disk):
    """It says that a save failed; when there is room again it saves, and ends as if nothing was.

    It cannot end before there is room: it prints more than fits into a pipe that nobody reads.
    """
    small = "--recipe default --epochs 8 --batch_size 8 --visualdl false --figures false".split()
    small += ["--data", str(tiny)]
    options = [*small, "--save_every_steps", "1", "--log_every", "1"]
    options += ["--keep_last", "1", "--keep_epochs", "false"]
    ballast = small_disk / "ballast"
    space = os.statvfs(small_disk)
    ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - 100_000))
    command = [sys.executable, ROOT / "tools/train.py", *options, "--output", small_disk / "run"]
    printed = []
    with forked.Popen(command, cwd=tmp_path, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            printed.append(line)
            if "is not saved; training continues" in line:
                ballast.unlink(missing_ok=True)
    assert process.returncode == 0, "".join(printed)
    assert not ballast.exists()
    tool("train", *small, "--output", "unbroken")
    last = "checkpoints/mnist_epoch7"
    for name in ("mnist.pdparams", last + PARAMS, last + OPTIMIZER):
        unbroken = (tmp_path / "unbroken" / name).read_bytes()
        assert (small_disk / "run" / name).read_bytes() == unbroken, name

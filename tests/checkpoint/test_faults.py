"""The commit protocol of checkpoints, proved point by point.

A small training is watched once; every operation on the folder of its checkpoints is a point. Then
for each point: it is killed there; the disk fails from there on; the power fails there. Each time
a checkpoint must be left that is whole and no older than the newest that was promised, and the same
training started again must end with the bits of the unbroken one.
"""

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Optional

import forked
import numpy as np
import paddle
import pytest
from faulty_disk import (
    CALLS,
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
from fit_rows import StopsAt, bits, train
from paddle import nn

from paddle_mnist.checkpoint.checkpointer import Checkpointer
from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, Checkpoint
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import CheckpointError, OutputError
from paddle_mnist.system.files import PART
from paddle_mnist.train_state import TrainState

STRIDE = 3  # of the points in CI

STEPS = 6  # in two epochs; saved after step 4, inside the second epoch, and at the end
ONE = Saving(every_epochs=2, every_steps=4, keep_last=1, keep_best=False)  # the sharpest policy


# ------------------------------------------------------------------ the training


def store_in(folder: Path) -> CheckpointStore:
    """Two folders down, so that a first save has two to make."""
    return CheckpointStore(folder / "run/checkpoints")


class Training:
    """Do as a run does before its first step: clear up, find the newest checkpoint, load it."""

    def __init__(self, folder: Path, store: Optional[CheckpointStore] = None, saving: Saving = ONE):
        store = store or store_in(folder)
        store.remove_temporary_files()
        found = store.load_newest()
        paddle.seed(1)
        self.net = nn.Linear(40, 30)
        self.rate = paddle.optimizer.lr.CosineAnnealingDecay(0.01, STEPS)
        self.optimizer = paddle.optimizer.Adam(self.rate, parameters=self.net.parameters())
        self.state = found.state if found else TrainState()
        if found:
            load_checkpoint(found, self.net, self.optimizer)
        resumed_from = found.state if found else None
        self.checkpointer = Checkpointer(
            store, self.net, self.optimizer, saving, resumed_from=resumed_from
        )

    def finish(self) -> None:
        while self.state.step < STEPS:
            inputs = np.random.RandomState(self.state.step).rand(4, 40).astype("float32")
            self.net(paddle.to_tensor(inputs)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.clear_grad()
            self.rate.step()
            self.state.count_step(samples=4)
            self.checkpointer.after_step(self.state)
            if self.state.position == STEPS // 2:
                self.state.end_epoch()
                self.checkpointer.after_epoch(self.state)
        self.checkpointer.at_end(self.state)


# ------------------------------------------------------------------ what is on the disk


def whole(folder: Path) -> dict[str, tuple]:
    """The order of each checkpoint that is whole, by name; found without the code that resumes."""
    sort_keys = {}
    for checkpoint in store_in(folder).all():
        with contextlib.suppress(CheckpointError):
            checkpoint.verify()
            sort_keys[checkpoint.name] = checkpoint.sort_key
    return sort_keys


def end_of(folder: Path) -> list[bytes]:
    """The bits of the last checkpoint of a run that has ended, without Paddle's names.

    Every checkpoint that is there must be whole, and no temporary file be left.
    """
    checkpoints = store_in(folder).all()
    assert len(whole(folder)) == len(checkpoints)
    assert not list(folder.rglob(f".*{PART}"))
    values = [checkpoints[-1].load(suffix).values() for suffix in (PARAMS, OPTIMIZER)]
    return [value.tobytes() for value in itertools.chain(*values) if isinstance(value, np.ndarray)]


def files_of(checkpoint: Checkpoint) -> list[bytes]:
    return [checkpoint.path.with_suffix(end).read_bytes() for end in (PARAMS, OPTIMIZER)]


class NotedStore(CheckpointStore):
    """Notes what is committed, and when `commit` returned: from then on a checkpoint is promised.

    done: the operations on the disk so far, a list that grows.
    """

    def __init__(self, folder: Path, done: list[Operation]):
        super().__init__(folder)
        self.done = done
        self.contents: dict[str, list] = {}  # by name: the files of each commit, also if it failed
        self.returned: list[tuple[int, tuple]] = []  # (operations done, order)
        with contextlib.suppress(CheckpointError):
            newest = self.newest()
            if newest:  # from before
                self.contents[newest.name] = [files_of(newest)]
                self.returned.append((0, newest.sort_key))

    def commit(self, name, files, *others) -> Checkpoint:
        data = [contents.to_bytes() for contents in files.values()]
        self.contents.setdefault(name, []).append(data)
        checkpoint = super().commit(name, files, *others)
        self.returned.append((len(self.done), checkpoint.sort_key))
        return checkpoint

    def promised(self, done: int) -> tuple:
        """The order of the newest that is promised after so many operations; () if none is."""
        return max((order for number, order in self.returned if number <= done), default=())


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
            training = Training(folder, self.store)
            self.ready = len(done)  # the points until it trains
            training.finish()
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


@pytest.fixture(scope="module", params=["nothing", pytest.param("damage", marks=pytest.mark.slow)])
def unbroken(request, tmp_path_factory) -> Unbroken:
    """nothing: the first save makes its folders, the second deletes what the first one saved.

    damage: the newest of two checkpoints is damaged, and a killed save has left its temporary
    file. The one is set aside and the other deleted; what is saved has the name of the damaged one.
    """
    folder = tmp_path_factory.mktemp(request.param) / "start"
    folder.mkdir()
    if request.param == "damage":
        Training(folder, saving=replace(ONE, keep_epochs=True, keep_last=2)).finish()
        checkpoints = store_in(folder).folder
        os.truncate(checkpoints / "model_epoch1.pdopt", 99)
        (checkpoints / ".model_epoch0.pdparams.part").write_bytes(b"half")
    return Unbroken(folder, request.config)


def test_every_change_of_the_disk_is_a_point(unbroken, tmp_path):
    """Else nothing below would prove anything: the operations seen make up the whole outcome."""
    disk = Disk(unbroken.start)
    for operation in unbroken.points:
        disk.apply(operation)
    assert disk.seen() == unbroken.tree
    assert {operation.call for operation in unbroken.points} == set(CALLS)
    assert len(unbroken.points) == len(unbroken.whole) > 30
    for number, sort_keys in enumerate(unbroken.whole):
        newest = max(sort_keys.values(), default=())
        assert newest >= unbroken.store.promised(number), unbroken.points[number]
    (tmp_path / "plain").mkdir()
    Training(tmp_path / "plain").finish()
    assert end_of(tmp_path / "plain") == unbroken.end


# ------------------------------------------------------------------ (a) killed


def train_and_kill(folder: Path, number: int) -> None:
    with watched(folder, at(number, kill)):
        Training(folder).finish()


def exit_code(number: int, folder: Path) -> int:
    """Train in a process of its own, killed ahead of an operation if there are so many."""
    process = forked.forks().Process(target=train_and_kill, args=(folder, number))
    process.start()
    process.join()
    return process.exitcode


def test_killed_at_any_point(unbroken, tmp_path):
    """The whole checkpoints are those of the unbroken training there."""
    for number, when in unbroken.each("killed ahead of"):
        folder = unbroken.again(tmp_path / str(number))
        assert exit_code(number, folder) == -signal.SIGKILL, when
        assert whole(folder) == unbroken.whole[number], when
        Training(folder).finish()
        assert end_of(folder) == unbroken.end, when
    assert exit_code(len(unbroken.points), unbroken.again(tmp_path / "beyond")) == 0


# ------------------------------------------------------------------ (b) the disk fails


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "refused"),
    [(errno.ENOSPC, takes_space), (errno.EIO, lambda operation: True)],
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
        with watched(folder, from_on(number, fault)):
            with contextlib.nullcontext() if starts else pytest.raises(OutputError):
                training = Training(folder)
            if starts:
                with contextlib.nullcontext() if saves else pytest.raises(OutputError):
                    training.finish()
                assert training.state.step == STEPS, when
        if not saves:
            assert unbroken.whole[number].items() <= whole(folder).items(), when
        Training(folder).finish()
        assert end_of(folder) == unbroken.end, when


# ------------------------------------------------------------------ the power fails


def commit(store: CheckpointStore, epoch: int, value: float = 0) -> None:
    values = {PARAMS: value or epoch, OPTIMIZER: -(value or epoch)}
    files = {suffix: SavedState({"w": np.full(9, value)}) for suffix, value in values.items()}
    store.commit(f"mnist_epoch{epoch - 1}", files, TrainState(epoch=epoch, step=10 * epoch))


def save_four(store: CheckpointStore) -> None:
    """Each deletes the one before."""
    for epoch in range(1, 5):
        commit(store, epoch)
        store.prune(ONE)


def quarantine_and_save(store: CheckpointStore) -> None:
    """The damaged one is moved away, and one of its name saved again."""
    store.remove_temporary_files()
    assert store.load_newest().name == "mnist_epoch0"
    for epoch in (2, 3):
        commit(store, epoch)
        store.prune(ONE)


def save_again(store: CheckpointStore) -> None:
    """The only one is replaced by another of its name, and that one again."""
    for value in range(1, 5):
        commit(store, 1, value)


@pytest.mark.parametrize("history", [save_four, quarantine_and_save, save_again])
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


def test_power_fails_after_a_save_that_followed_a_failed_one(tmp_path):
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
            commit(store, 1)
        for operation in done:
            disk.apply(operation)
        for tree in disk.crashes():
            left = lay_out(tree, tmp_path / "left")
            must_hold(store, len(done), left, f"failed at {number}, {point}; left {tree}")
            shutil.rmtree(left)


# ------------------------------------------------------------------ a disk that is really full


def test_manifest_counts_the_lines_of_the_history_that_are_on_the_disk(tmp_path):
    """Else a run that resumes after a power failure has gaps or lines twice."""
    run, forced, counted = tmp_path / "run", [0], []

    def note(operation):
        lines = (run / "metrics.jsonl").read_bytes().count(b"\n") if forced[1:] else 0
        if operation.call == "fsync" and operation.path.name == "metrics.jsonl":
            forced.append((run / "metrics.jsonl").read_bytes().count(b"\n"))
        elif operation.call == "replace" and operation.target.match("checkpoints/*.json"):
            counted.append(json.loads((run / operation.path).read_text())["metrics_lines"])
            assert counted[-1] == forced[-1] == lines

    run.mkdir()
    with watched(run, note) as done:
        train("Adam", run)
    assert len(counted) == 3 and counted[0] == 0 < counted[1] < counted[2]
    calls = [(operation.call, str(operation.path)) for operation in done]
    made = calls.index(("open", "metrics.jsonl"))
    assert ("fsync", ".") in calls[made : calls.index(("fsync", "metrics.jsonl"))]


@pytest.mark.slow
def test_training_outlives_a_disk_that_is_full_for_a_while(tmp_path, lines):
    """It says that a save failed; when there is room again it saves, and ends as if nothing was."""
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")

    def fill():
        with contextlib.suppress(OSError), open(disk / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    callbacks = [StopsAt(3, fill), StopsAt(6, (disk / "ballast").unlink)]
    try:
        result = train("Adam", disk / "run", callbacks=callbacks, save_every_steps=1)
        assert any("is not saved; training continues" in line for line in lines())
        assert bits(result) == bits(train("Adam", tmp_path / "unbroken", save_every_steps=1))
    finally:
        subprocess.run(["umount", disk], check=True)

"""Checkpoints: committed whole, verified, matched to the model or refused with a diff."""

import cProfile
import math
import os
import pstats
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest
from fit_rows import train
from hypothesis import given
from hypothesis import strategies as st
from paddle import nn

from paddle_mnist import checkpoint
from paddle_mnist.checkpoint.checkpointer import Checkpointer
from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, Checkpoint
from paddle_mnist.checkpoint.saving import KEEP_EPOCHS, Saving
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import CheckpointError, DivergedError, OutputError, StoppedError
from paddle_mnist.train_state import TrainState

OPTIMIZERS = {
    "SGD": paddle.optimizer.SGD,
    "Momentum": paddle.optimizer.Momentum,
    "Adam": paddle.optimizer.Adam,
    "AdamW": paddle.optimizer.AdamW,
}
NEWEST = Saving(keep_last=1, keep_best=False)  # keeps nothing else


class Raw:
    """Bytes in place of a `SavedState`, for tests of files alone."""

    def __init__(self, data):
        self.data = data

    def write_to(self, file):
        file.write(self.data)


BYTES = {PARAMS: Raw(b"weights" * 50), OPTIMIZER: Raw(b"moments" * 80)}


class Net(nn.Layer):
    """Layers of the given names and widths, made in that order; always run first, middle, last."""

    def __init__(self, **widths):
        super().__init__()
        for name, width in widths.items():
            setattr(self, name, nn.Linear(4 if name == "first" else 8, width))

    def forward(self, inputs):
        for name in ("first", "middle", "last"):
            layer = getattr(self, name, None)
            inputs = paddle.tanh(layer(inputs)) if layer else inputs
        return inputs


WIDTHS = {"first": 8, "middle": 8, "last": 4}


def trained(widths, steps, start=None, optimizer="Adam", schedule=True):
    """A net and its optimizer, after a load if there is something to load, and some steps."""
    paddle.seed(5)
    model = Net(**widths)
    rate = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 50) if schedule else 0.01
    built = OPTIMIZERS[optimizer](rate, parameters=model.parameters())
    if start:
        load_checkpoint(start, model, built)
    for number in steps:
        inputs = np.random.RandomState(number).rand(4, 4).astype("float32")
        (model(paddle.to_tensor(inputs)) ** 2).mean().backward()
        built.step()
        built.clear_grad()
        if schedule:
            rate.step()
    return model, built


def state_of(epoch, accuracy=None):
    metrics = {} if accuracy is None else {"valid/acc": accuracy}
    return TrainState(epoch=epoch, step=epoch * 10, metrics=metrics)


def save(store, model, optimizer, epoch=1):
    """Commit the checkpoint of a model after `epoch` epochs, and return it."""
    Checkpointer(store, model, optimizer, name="mnist").after_epoch(state_of(epoch))
    return store.newest()


def commit(store, accuracies):
    """Commit checkpoints of epochs that ended with these accuracies."""
    for epoch, accuracy in enumerate(accuracies):
        store.commit(f"mnist_epoch{epoch}", BYTES, state_of(epoch + 1, accuracy))


def pruned(store, saving):
    return [checkpoint.name for checkpoint in store.prune(saving)]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    before = path.stat()
    path.write_bytes(data)
    # A change within the same tick of the file system's clock would leave the time as it was.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


# ------------------------------------------------------------------ contents


def test_load_into_another_net_raises_with_a_diff_unless_not_strict():
    other = Net(first=8, extra=2, last=5)
    kept = other.last.weight.numpy()
    weights = {name: value.numpy() for name, value in Net(**WIDTHS).state_dict().items()}
    weights["first.bias"] = weights["first.bias"].astype(np.float16)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_into(other, weights)
    first, *rest = str(caught.value).splitlines()
    assert "does not fit the model" in first
    assert {*rest} == {
        "  missing     extra.weight: [8, 2] float32",
        "  missing     extra.bias: [2] float32",
        "  unexpected  middle.weight: [8, 8] float32",
        "  unexpected  middle.bias: [8] float32",
        "  different   first.bias: [8] float16; expected [8] float32",
        "  different   last.weight: [8, 4] float32; expected [8, 5] float32",
        "  different   last.bias: [4] float32; expected [5] float32",
    }
    assert np.array_equal(other.last.weight.numpy(), kept)
    incompatible = checkpoint.load_into(other, weights, strict=False)
    assert incompatible.missing_keys == ["extra.weight", "extra.bias"]
    assert incompatible.unexpected_keys == ["middle.weight", "middle.bias"]
    assert incompatible.mismatched_keys == ["first.bias", "last.weight", "last.bias"]
    assert np.array_equal(other.first.weight.numpy(), weights["first.weight"])


def test_load_checkpoint_of_another_optimizer_raises_one_line(store):
    start = save(store, *trained(WIDTHS, range(1), optimizer="Adam"))
    trained(WIDTHS, [], start, "AdamW")  # which has the same state
    for loaded in ("SGD", "Momentum"):
        with pytest.raises(CheckpointError) as caught:
            trained(WIDTHS, [], start, loaded)
        message = str(caught.value)
        assert f"the optimizers differ: Adam there, {loaded} now" in message
        assert "weights_only" in message and "\n" not in message


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"widths": {**WIDTHS, "extra": 2}}, "missing     extra.weight moment1: [8, 2]"),
        ({"widths": {"first": 8, "last": 4}}, "unexpected  middle.bias moment2: [8]"),
        ({"widths": {**WIDTHS, "last": 5}}, "[8, 4] float32; expected [8, 5] float32"),
        ({"schedule": False}, "unexpected  LR_Scheduler: dict"),
        ({}, "missing     LR_Scheduler"),  # saved without
    ],
)
def test_load_checkpoint_that_does_not_fit_raises_with_a_diff(store, changed, difference):
    start = save(store, *trained(WIDTHS, range(1), schedule=bool(changed)))
    with pytest.raises(CheckpointError, match="does not fit the optimizer") as caught:
        trained(**{"widths": WIDTHS, "steps": [], "start": start, **changed})
    assert difference in str(caught.value)


def test_save_of_weights_that_are_not_finite_raises(store):
    model, optimizer = trained(WIDTHS, range(1))
    save(store, model, optimizer)
    for value in (float("nan"), float("inf")):
        with paddle.no_grad():
            model.middle.bias[3] = value
        with pytest.raises(
            DivergedError, match=r"middle\.bias is no longer finite after step 20"
        ) as error:
            save(store, model, optimizer, epoch=2)
        assert "look for NaN in the data" in str(error.value)
    assert [c.name for c in store.all()] == ["mnist_epoch0"]


def test_checkpointer_without_a_store_saves_nothing(lines):
    """As in all processes but the main one, where weights may not be finite either."""
    model, optimizer = trained(WIDTHS, range(1))
    with paddle.no_grad():
        model.middle.bias[3] = float("nan")
    checkpointer, state = Checkpointer(None, model, optimizer), state_of(1, 0.5)
    checkpointer.at_start(state)
    checkpointer.after_step(state)
    checkpointer.after_epoch(state)
    checkpointer.after_error(StoppedError(15), state)
    checkpointer.at_end(state)
    assert lines() == []


# ------------------------------------------------------------------ the store


def test_newest_is_by_step_and_best_by_metric_the_earliest_of_equals(store):
    assert store.newest() is None and store.best() is None
    for epoch, accuracy in {11: 0.9, 10: 0.9, 3: 0.5, 12: None}.items():
        store.commit(f"mnist_epoch{epoch - 1}", BYTES, state_of(epoch, accuracy))
    (store.folder / "mnist_epoch50.pdparams").write_bytes(b"without a manifest")
    names = ["mnist_epoch2", "mnist_epoch9", "mnist_epoch10", "mnist_epoch11"]
    assert [c.name for c in store.all()] == names
    assert store.newest().name == "mnist_epoch11" and store.best().name == "mnist_epoch9"


def test_prune_deletes_what_the_policy_drops_and_nothing_else(store):
    commit(store, [1.0, 0.5, 0.3, 0.2])
    for step, end in ((15, ""), (16, "_breakpoint")):
        inside = TrainState(epoch=1, position=step, step=step)
        store.commit(f"mnist_epoch1_step{step}{end}", BYTES, inside)
    (store.folder / "notes.txt").write_text("mine")
    saving = replace(NEWEST, keep_epochs=True, keep_breakpoints=True)
    assert pruned(store, saving) == ["mnist_epoch1_step15"]
    dropped = ["mnist_epoch1_step16_breakpoint", "mnist_epoch1", "mnist_epoch2"]
    assert pruned(store, replace(NEWEST, keep_best=True)) == dropped
    assert store.newest().name == "mnist_epoch3" and store.best().name == "mnist_epoch0"
    left = {path.stem for path in store.folder.iterdir()}
    assert left == {"mnist_epoch0", "mnist_epoch3", "notes"}


def test_prune_keeps_whole_checkpoints_in_place_of_damaged_ones(store):
    """The damaged best and the damaged newest stay too, to be quarantined."""
    commit(store, [0.9, 0.99, 0.98, 0.5, 0.6, 0.4])
    for epoch in (1, 5):
        flip(store.folder / f"mnist_epoch{epoch}.pdparams")
    assert pruned(store, replace(NEWEST, keep_best=True)) == ["mnist_epoch0", "mnist_epoch3"]
    assert store.best().name == "mnist_epoch2" and store.newest().name == "mnist_epoch4"
    assert {path.name for path in store.find_damaged()} == {
        "mnist_epoch1.json",
        "mnist_epoch5.json",
    }
    for epoch in (2, 4):
        (store.folder / f"mnist_epoch{epoch}.pdopt").unlink()
    with pytest.raises(CheckpointError, match="no evaluated checkpoint is valid"):
        store.best()


def test_prune_reads_only_files_that_changed_after_their_manifest(store):
    """And each of them once, however many are kept."""
    read = []

    def note(event, args):
        if event == "open" and args[1] == "r" and str(args[0]).endswith((PARAMS, OPTIMIZER)):
            read.append(Path(args[0]).stem)

    def save_and_prune(store, epoch):
        store.commit(f"mnist_epoch{epoch}", BYTES, state_of(epoch + 1))
        read.clear()
        store.prune(replace(NEWEST, keep_last=3))
        return sorted(set(read)), len(read)

    sys.addaudithook(note)
    assert [save_and_prune(store, epoch) for epoch in range(5)] == [([], 0)] * 5
    for path in store.folder.glob("*.json"):
        os.utime(path, (0, 0))
    another = CheckpointStore(store.folder)
    assert save_and_prune(another, 5) == (["mnist_epoch3", "mnist_epoch4"], 4)
    assert save_and_prune(another, 6) == ([], 0)


def test_saves_need_no_more_calls_after_many_of_them(store):
    saving, calls = replace(NEWEST, keep_epochs=True), []
    for epoch in range(60):
        with cProfile.Profile() as profile:
            for step in (10 * epoch + 5, 10 * epoch + 10):
                state = TrainState(epoch=(step + 1) // 10, position=step % 10, step=step)
                store.commit(f"mnist_epoch{epoch}_step{step}", BYTES, state)
                store.prune(saving)
        calls.append(pstats.Stats(profile).total_calls)
    assert len(store.all()) == 60
    assert calls[-1] < 1.2 * calls[9]


def test_prune_sees_checkpoints_deleted_meanwhile_as_they_are(store, caplog):
    """A best one that is gone takes the place of no other."""
    saving = replace(NEWEST, keep_best=True)
    commit(store, [0.9, 0.99, 0.5])
    assert pruned(store, saving) == ["mnist_epoch0"]
    for path in store.folder.glob("mnist_epoch1.*"):
        path.unlink()
    expected = {(3, 0.6): ["mnist_epoch2"], (4, 0.4): [], (5, 0.4): ["mnist_epoch4"]}
    for (epoch, accuracy), dropped in expected.items():
        store.commit(f"mnist_epoch{epoch}", BYTES, state_of(epoch + 1, accuracy))
        assert pruned(store, saving) == dropped
    assert not caplog.records


@pytest.mark.parametrize("mirrored", [False, True])
def test_resume_reads_each_file_of_the_newest_checkpoint_once(mirrored, tmp_path):
    """Verified as it is loaded, also where the run is compared with its mirror."""
    run, read = tmp_path / "run", []
    options = {"mirror": str(tmp_path / "mirror")} if mirrored else {}
    train("BatchNorm", run, epochs=1, **options)
    newest = CheckpointStore(run / "checkpoints").newest()
    files = sorted(str(newest.path.with_name(name)) for name in newest.manifest["files"])

    def note(event, args):
        if event == "open" and args[1] in ("r", "rb") and str(args[0]) in files:
            read.append(str(args[0]))

    sys.addaudithook(note)
    train("BatchNorm", run, epochs=2, override="epochs", keep_last=9, **options)
    assert sorted(read) == files


def test_newest_and_best_while_another_process_prunes_find_a_whole_checkpoint(store, lines):
    commit(store, [0.0])

    def write():
        for epoch in range(1, 150):
            store.commit(f"mnist_epoch{epoch}", BYTES, state_of(epoch + 1, epoch / 200))
            store.prune(NEWEST)

    writer = threading.Thread(target=write)
    writer.start()
    reader = CheckpointStore(store.folder)
    while writer.is_alive():
        assert reader.newest() and reader.best()
    writer.join()
    assert reader.newest().name == "mnist_epoch149" and lines() == []


@pytest.mark.parametrize("older", [False, True], ids=["new", "over an older one"])
def test_commit_that_fails_half_way_leaves_no_half_of_a_checkpoint(store, older):
    """Over an older one, the new one is whole under a second name, until the next commit."""
    commit(store, [None, None] if older else [None])
    (store.folder / "mnist_epoch1.pdopt").unlink(missing_ok=True)
    (store.folder / "mnist_epoch1.pdopt").mkdir()  # in the way of the second file
    with pytest.raises(OutputError, match=r"mnist_epoch1\.pdopt: cannot write"):
        store.commit("mnist_epoch1", {**BYTES, PARAMS: Raw(b"new")}, state_of(2))
    assert [c.name for c in store.all()] == ["mnist_epoch0", *["mnist_epoch1_new"][:older]]
    assert store.newest() == store.all()[-1] and not list(store.folder.glob(".*"))
    (store.folder / "mnist_epoch1.pdopt").rmdir()
    store.commit("mnist_epoch1", BYTES, state_of(2))
    assert [c.name for c in store.all()] == ["mnist_epoch0", "mnist_epoch1"]
    assert store.orphaned_files() == [] and store.find_damaged() == {}


def test_extra_entries_of_a_manifest_do_not_replace_its_own(store):
    """A callback may use the same names."""
    entries = {"format": 0, "files": {}, "state": None, "saved_at": None, "note": "kept"}
    store.commit("mnist_epoch0", BYTES, state_of(1), entries)
    assert (store.newest().step, store.newest().manifest["note"]) == (10, "kept")


# ------------------------------------------------------------------ policies, without a disk


@pytest.mark.parametrize(
    ("every", "keep_best", "due"),
    [
        (1, False, [1, 2, 3, 4, 5, 6]),
        (2, False, [2, 4, 6]),
        (3, False, [3, 6]),
        (0, False, []),
        (None, True, [1, 4]),
        (3, True, [1, 3, 4, 6]),  # the scores are best at 1, and better at 4
        (None, 2, [1, 2, 4, 5]),  # 2 equals 1, and 5 equals 4
        (None, 3, [1, 2, 3, 4, 5]),
    ],
)
def test_saving_after_an_epoch_is_due_by_number_or_best_metric(every, keep_best, due):
    saving = Saving(every, keep_best=keep_best)
    saved, state = [], TrainState()
    for epoch, score in enumerate([0.5, 0.5, 0.4, 0.6, 0.6, 0.1], 1):
        state.step += 10
        state.record_evaluation({"valid/acc": score})
        state.end_epoch()
        saved += [epoch] if saving.is_due_after_epoch(state) else []
    assert saved == due


def test_saving_after_an_error_is_due_if_chosen_or_stopped_by_a_signal():
    """A signal means that the run is to resume later."""
    assert Saving().is_due_after_error(ValueError())
    assert not Saving(on_exception=False).is_due_after_error(ValueError())
    assert Saving(on_exception=False).is_due_after_error(StoppedError(15))


@pytest.mark.parametrize(
    ("steps", "seconds", "due"),
    [
        # (step, seconds since the newest checkpoint) of six steps
        (None, None, []),
        (2, None, [2, 4, 6]),
        (4, None, [4]),
        (None, 5.0, [3, 6]),
        (2, 5.0, [2, 3, 4, 6]),  # any of them, and one does not silence the other
        (None, 99.0, []),  # seconds alone never mean every step
    ],
)
def test_saving_after_a_step_is_due_by_number_or_time(steps, seconds, due):
    saving = Saving(every_steps=steps, every_seconds=seconds)
    since = {1: 1.0, 2: 4.9, 3: 5.0, 4: 0.5, 5: 1.5, 6: 7.0}
    saved = [n for n, s in since.items() if saving.is_due_after_step(TrainState(step=n), s)]
    assert saved == due


def test_saving_is_due_after_ten_minutes_by_default():
    for saving, due in (
        (Saving(), True),
        (Saving(every_seconds=None), False),
        (KEEP_EPOCHS, False),
    ):
        assert saving.is_due_after_step(TrainState(step=1), 600.0) == due
        assert not saving.is_due_after_step(TrainState(step=1), 599.0)


def entry(name, state, minute=0):
    return Checkpoint(Path(f"{name}.json"), {"state": state.as_dict(), "saved_at": 60.0 * minute})


def entries():
    """Ten checkpoints a minute apart; two end epochs; 3 and 8 have the best score; 2 broke off."""
    scores = {3: 0.9, 8: 0.9, 5: 0.7}
    return [
        entry(
            f"s{n}{'_breakpoint' * (n == 2)}",
            TrainState(
                step=n,
                position=n not in (4, 8),
                metrics={"valid/acc": scores[n]} if n in scores else {},
            ),
            minute=n,
        )
        for n in range(10)
    ]


@given(
    scores=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, math.nan]), min_size=1, max_size=12),
    mode=st.sampled_from(["max", "min"]),
    keep_best=st.integers(0, 4),
    every_epochs=st.integers(0, 3),
)
def test_training_keeps_its_best_checkpoints_and_the_newest(scores, mode, keep_best, every_epochs):
    saving = Saving(every_epochs, keep_last=1, keep_best=keep_best)
    state, checkpoints, newest = TrainState(mode=mode), [], None
    sign = 1 if mode == "max" else -1
    for epoch, score in enumerate(scores, 1):
        state.step += 10
        state.record_evaluation({"valid/acc": score})
        state.end_epoch()
        if saving.is_due_after_epoch(state):
            newest = f"s{epoch}"
            checkpoints.append(entry(newest, state))
            kept = saving.kept(checkpoints)
            checkpoints = [saved for saved in checkpoints if saved.name in kept]
        best_first = sorted(
            (-sign * score, epoch)
            for epoch, score in enumerate(scores[:epoch], 1)
            if not math.isnan(score)
        )
        best = {f"s{number}" for _, number in best_first[:keep_best]}
        assert {saved.name for saved in checkpoints} == best | ({newest} if newest else set())


@pytest.mark.parametrize(
    ("saving", "kept"),
    [
        (NEWEST, [9]),
        (replace(NEWEST, keep_last=3), [7, 8, 9]),
        (replace(NEWEST, keep_epochs=True), [4, 8, 9]),
        (replace(NEWEST, keep_best=2), [3, 8, 9]),
        (replace(NEWEST, keep_breakpoints=True), [2, 9]),
        (replace(NEWEST, keep_every_minutes=4), [3, 7, 9]),
        (replace(KEEP_EPOCHS, keep_last=2, keep_every_minutes=4), [2, 3, 4, 7, 8, 9]),
        (replace(NEWEST, keep_last=99), list(range(10))),
    ],
)
def test_saving_keeps_the_union_of_its_rules(saving, kept):
    assert saving.kept(entries()) == {entries()[n].name for n in kept}
    assert saving.kept(reversed(entries())) == saving.kept(entries())

"""Checkpoints: committed whole, verified, matched to the model or refused with a diff."""

import itertools
import json
import os
import time
from dataclasses import replace

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle import nn

from paddle_mnist import MNIST
from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer, checkpoint_name
from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, Checkpoint, read_manifest
from paddle_mnist.checkpoint.policy import KEEP_EPOCHS, CheckpointInfo, Saving
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.checkpoint.weights import load_weights
from paddle_mnist.errors import CheckpointError, DivergedError, OutputError, StoppedError
from paddle_mnist.nn.schedule import Schedule
from paddle_mnist.progress import TrainState

OPTIMIZERS = {
    "sgd": paddle.optimizer.SGD,
    "momentum": paddle.optimizer.Momentum,
    "adagrad": paddle.optimizer.Adagrad,
    "adam": paddle.optimizer.Adam,
    "adamw": paddle.optimizer.AdamW,
}


NOTHING = Saving(keep_last=1, keep_best=False)  # but the newest


def build(optimizer="adam", model=None, seed=1):
    paddle.seed(seed)
    model = model or MNIST()
    rate = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 50)
    built = OPTIMIZERS[optimizer](rate, parameters=model.parameters())
    return model, built, Schedule(built)


def step(model, optimizer, schedule, number=0):
    images = paddle.to_tensor(np.random.RandomState(number).rand(4, 1, 28, 28).astype("float32"))
    (model(images) ** 2).mean().backward()
    optimizer.step()
    optimizer.clear_grad()
    schedule.after_step()


def state_of(epoch, accuracy=None):
    metrics = {} if accuracy is None else {"valid/acc": accuracy}
    return TrainState(epoch=epoch, step=epoch * 10, metrics=metrics)


def save(store, built, epoch, accuracy=None):
    """Commit the checkpoint of a model after `epoch` epochs."""
    model, optimizer, _ = built
    StoreCheckpointer(store).after_epoch(state_of(epoch, accuracy), model, optimizer)
    return read_manifest(store.folder / f"{checkpoint_name(built[0])}_epoch{epoch - 1}.json")


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture(scope="module")
def bytes_of():
    """The two files of a checkpoint, for tests that look only at the disk."""
    return {PARAMS: b"weights" * 50, OPTIMIZER: b"moments" * 80}


# ------------------------------------------------------------------ contents


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_going_on_after_a_load_gives_the_same_bits(store, name):
    """In one process, so the second model's names would count on; the match is by structure."""
    built = build(name)
    for number in range(3):
        step(*built, number)
    checkpoint = save(store, built, 1)
    for number in range(3, 6):
        step(*built, number)

    paddle.nn.Linear(2, 2)  # other layers in between change Paddle's counters
    again = build(name, seed=2)
    load_checkpoint(checkpoint, again[0], again[1])
    for number in range(3, 6):
        step(*again, number)
    for ours, theirs in zip(again[0].parameters(), built[0].parameters()):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
    assert again[1].get_lr() == built[1].get_lr()


def test_a_users_net_with_other_generated_names(store):
    """Any Layer, not only MNIST: plain Paddle counts its parameters on."""

    def net():
        return nn.Sequential(nn.Conv2D(1, 3, 5), nn.Flatten(), nn.Linear(3 * 24 * 24, 10))

    built = build("adam", net())
    step(*built)
    checkpoint = save(store, built, 1)
    step(*built, 1)
    again = build("adam", net())
    assert again[0][0].weight.name != built[0][0].weight.name
    load_checkpoint(checkpoint, again[0], again[1])
    step(*again, 1)
    for ours, theirs in zip(again[0].parameters(), built[0].parameters()):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def test_files_are_read_by_plain_paddle(store):
    built = build()
    step(*built)
    checkpoint = save(store, built, 1)
    plain = paddle.load(str(checkpoint.path.with_suffix(PARAMS)))
    assert MNIST().set_state_dict(plain) == ([], [])
    state = paddle.load(str(checkpoint.path.with_suffix(OPTIMIZER)))
    assert any(key.startswith("conv2d_0.w_0_moment1_") for key in state)
    assert state["LR_Scheduler"]["last_epoch"] == 1


def test_loading_in_ones_own_code(store, tmp_path):
    """A checkpoint by any of its names, and a file of plain Paddle's; strict unless told."""
    from paddle_mnist import checkpoint

    built = build()
    saved = save(store, built, 1)
    paddle.save(built[0].state_dict(), str(tmp_path / "bare.pdparams"))
    stem = saved.path.with_suffix("")
    for path in (stem, str(stem), stem.with_suffix(PARAMS), saved.path, tmp_path / "bare.pdparams"):
        model = build(seed=7)[0]
        assert checkpoint.load_into(model, path) == ([], [], [])
        for ours, theirs in zip(model.parameters(), built[0].parameters()):
            assert ours.numpy().tobytes() == theirs.numpy().tobytes()
    weights = checkpoint.load(stem)
    other = OtherNet()
    with pytest.raises(CheckpointError, match="the mapping does not fit the model"):
        checkpoint.load_into(other, weights)
    incompatible = checkpoint.load_into(other, weights, strict=False)
    assert incompatible.missing_keys == ["extra.weight", "extra.bias"]
    assert incompatible.unexpected_keys == ["conv2.weight", "conv2.bias"]
    assert incompatible.mismatched_keys == ["fc.weight", "fc.bias"]
    assert np.array_equal(other.conv1.weight.numpy(), weights["conv1.weight"])
    stem.with_suffix(PARAMS).write_bytes(b"")
    with pytest.raises(CheckpointError, match="0 bytes"):
        checkpoint.load(stem)


class OtherNet(nn.Layer):
    """MNIST with a wider last layer, one layer more, and one less."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2D(1, 20, 5, padding=2)
        self.extra = nn.Linear(2, 2)
        self.fc = nn.Linear(980, 11)


def test_weights_of_another_net_are_refused_with_a_diff():
    before = {name: p.numpy() for name, p in MNIST().state_dict().items()}
    model = OtherNet()
    kept = model.fc.weight.numpy()
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, before, "x.pdparams")
    lines = str(caught.value).splitlines()
    assert lines[0] == "x.pdparams does not fit the model:"
    assert set(lines[1:]) == {
        "  missing     extra.weight: [2, 2] float32",
        "  missing     extra.bias: [2] float32",
        "  unexpected  conv2.weight: [20, 20, 5, 5] float32",
        "  unexpected  conv2.bias: [20] float32",
        "  different   fc.weight: [980, 10] float32; expected [980, 11] float32",
        "  different   fc.bias: [10] float32; expected [11] float32",
    }
    assert np.array_equal(model.fc.weight.numpy(), kept)


def test_weights_of_another_dtype_are_refused():
    weights = {name: p.numpy() for name, p in MNIST().state_dict().items()}
    weights["fc.bias"] = weights["fc.bias"].astype(np.float16)
    with pytest.raises(CheckpointError, match=r"fc.bias: \[10\] float16; expected \[10\] float32"):
        load_weights(MNIST(), weights, "x")


@pytest.mark.parametrize(
    ("saved", "loaded", "classes"),
    [
        ("momentum", "adam", "Momentum there, Adam now"),
        ("adam", "momentum", "Adam there, Momentum now"),
        ("sgd", "adam", "SGD there, Adam now"),
        ("adam", "sgd", "Adam there, SGD now"),
        ("adagrad", "sgd", "Adagrad there, SGD now"),
    ],
)
def test_state_of_another_optimizer_is_refused_in_one_line(store, saved, loaded, classes):
    built = build(saved)
    step(*built)
    checkpoint = save(store, built, 1)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(checkpoint, *build(loaded)[:2])
    message = str(caught.value)
    assert f"the optimizers differ: {classes}" in message and "weights_only=True" in message
    assert "\n" not in message and "moment1" not in message


def test_optimizers_of_two_classes_with_the_same_state_are_one(store):
    built = build("adam")
    step(*built)
    load_checkpoint(save(store, built, 1), *build("adamw")[:2])


class Net(nn.Layer):
    """Layers of the given names and widths, made in that order; always run first, middle, last."""

    def __init__(self, **widths):
        super().__init__()
        for name, width in widths.items():
            setattr(self, name, nn.Linear(16 if name != "last" else 8, width))

    def forward(self, images):
        hidden = paddle.tanh(self.first(images.reshape([-1, 49, 16]).mean(1)))
        hidden = self.middle(paddle.concat([hidden, hidden], 1)) if self.has("middle") else hidden
        return self.last(hidden)

    def has(self, name):
        return name in dict(self.named_sublayers())


SAVED_NET = {"first": 8, "middle": 8, "last": 4}


def net_steps(widths, steps, checkpoint=None, optimizer="adam", schedule=True):
    """A net and its optimizer, after a load if there is something to load, and some steps."""
    paddle.seed(5)
    model = Net(**widths)
    rate = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 50) if schedule else 0.01
    built = OPTIMIZERS[optimizer](rate, parameters=model.parameters())
    if checkpoint:
        load_checkpoint(checkpoint, model, built)
    for number in steps:
        step(model, built, Schedule(built), number)
    return model, built, rate


@pytest.fixture
def net_checkpoint(store):
    return save(store, net_steps(SAVED_NET, range(3)), 1)


@pytest.mark.parametrize("order", list(itertools.permutations(SAVED_NET)))
def test_reordered_layers_are_matched_by_their_names(net_checkpoint, order):
    """Paddle numbers layers as they are made, so that its own keys would be mixed up silently."""
    unbroken = net_steps(SAVED_NET, range(6))[0].state_dict()
    widths = {name: SAVED_NET[name] for name in order}
    model = net_steps(widths, range(3, 6), net_checkpoint)[0].state_dict()
    for name, value in unbroken.items():
        assert model[name].numpy().tobytes() == value.numpy().tobytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"widths": {**SAVED_NET, "extra": 2}}, "missing     extra.weight moment1: [16, 2]"),
        ({"widths": {"first": 8, "last": 4}}, "unexpected  middle.bias moment2: [8]"),
        ({"widths": {**SAVED_NET, "last": 5}}, "[8, 4] float32; expected [8, 5] float32"),
        (
            {"widths": {"first": 8, "centre": 8, "last": 4}},
            "missing     centre.weight moment1: [16, 8]",
        ),
        ({"schedule": False}, "unexpected  LR_Scheduler: dict"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_diff_before_the_first_step(
    net_checkpoint, changed, message
):
    with pytest.raises(CheckpointError, match="does not fit the optimizer") as caught:
        net_steps(**{"widths": SAVED_NET, "steps": [], "checkpoint": net_checkpoint, **changed})
    assert message in str(caught.value)


def test_a_schedule_where_none_was_saved_is_refused(store):
    checkpoint = save(store, net_steps(SAVED_NET, range(3), schedule=False), 1)
    with pytest.raises(CheckpointError, match="missing     LR_Scheduler"):
        net_steps(SAVED_NET, [], checkpoint)


# ------------------------------------------------------------------ the store


def test_order_is_by_step_not_by_name(store, bytes_of):
    for epoch in (11, 10, 3):  # as strings, "epoch9" comes after "epoch10"
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch))
    assert [c.name for c in store.all()] == ["mnist_epoch2", "mnist_epoch9", "mnist_epoch10"]
    assert store.newest().name == "mnist_epoch10"


def test_best_is_by_metric_the_earliest_of_equals(store, bytes_of):
    for epoch, accuracy in enumerate([0.5, 0.9, 0.9, None, 0.7], 1):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch, accuracy))
    assert store.best().name == "mnist_epoch1"


def test_best_that_is_damaged_is_not_taken(store, bytes_of):
    for epoch, accuracy in enumerate([0.5, 0.9, 0.7], 1):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch, accuracy))
    (store.folder / "mnist_epoch1.pdopt").unlink()
    assert store.best().name == "mnist_epoch2"
    for epoch in (0, 2):
        (store.folder / f"mnist_epoch{epoch}.pdopt").unlink()
    with pytest.raises(CheckpointError, match="no evaluated checkpoint is valid"):
        store.best()


def test_what_is_kept_is_whole(store, bytes_of):
    """A damaged best does not cost the next best its life."""
    for epoch, accuracy in enumerate([0.9, 0.99, 0.98, 0.5, 0.6], 1):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch, accuracy))
    _flip(store.folder / "mnist_epoch1.pdparams")
    assert store.prune(replace(NOTHING, keep_best=True)) == ["mnist_epoch0", "mnist_epoch3"]
    assert store.best().name == "mnist_epoch2" and store.newest().name == "mnist_epoch4"
    assert (store.folder / "mnist_epoch1.json").exists()  # left, to be set aside


def test_reading_while_the_writer_deletes(store, bytes_of):
    """Between the listing and the look at the files: what was deleted is no damage."""
    for epoch in (1, 2):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch, 0.5))

    class Late(CheckpointStore):
        def all(self):
            return self._read_manifests()[0]

        def _read_manifests(self):
            listing = super()._read_manifests()
            if (self.folder / "mnist_epoch1.json").exists():
                store.commit("mnist_epoch2", bytes_of, state_of(3, 0.4))
                store.prune(NOTHING)
            return listing

    assert Late(store.folder).newest().name == "mnist_epoch2"
    for epoch in (1, 2):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch, 0.5))
    assert Late(store.folder).best().name == "mnist_epoch2"


def test_the_newest_that_is_whole_is_never_deleted(store, bytes_of):
    """Whatever damaged one is newer, and whatever the policy."""
    for epoch in (1, 2, 3):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch))
    _flip(store.folder / "mnist_epoch2.pdparams")
    assert store.prune(NOTHING) == ["mnist_epoch0"]
    assert store.newest().name == "mnist_epoch1"


def test_reads_of_a_prune_do_not_grow_with_what_is_kept(store, bytes_of, monkeypatch):
    """Only files of another process are hashed, once, if they changed after their manifest."""
    reads = []
    opened = Checkpoint.opened
    monkeypatch.setattr(
        Checkpoint,
        "opened",
        lambda checkpoint, s: reads.append(checkpoint.name) or opened(checkpoint, s),
    )
    saving = replace(NOTHING, keep_epochs=True)

    def save_and_prune(writer, epoch):
        """Something is let go each time, so that what is kept must be whole."""
        inside = replace(state_of(epoch), epoch=epoch - 1, position=1, step=10 * epoch - 1)
        writer.commit(f"mnist_epoch{epoch - 1}_step{10 * epoch - 1}", bytes_of, inside)
        writer.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch))
        reads.clear()
        assert writer.prune(saving)
        return len(reads)

    assert [save_and_prune(store, epoch) for epoch in range(1, 6)] == [0] * 5
    for hours, read in ((-1, [10, 0, 0]), (1, [0, 0, 0])):
        for path in store.folder.glob("*.json"):
            written = time.time_ns() + hours * 3600 * 10**9
            os.utime(path, ns=(written, written))
        another = CheckpointStore(store.folder)
        assert [save_and_prune(another, epoch) for epoch in range(6, 9)] == read


def test_the_first_prune_reads_nothing_that_was_verified_before(store, bytes_of, monkeypatch):
    for epoch in (1, 2):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch))
        os.utime(store.folder / f"mnist_epoch{epoch - 1}.json", (0, 0))
    another = CheckpointStore(store.folder)
    assert another.newest().name == "mnist_epoch1"
    monkeypatch.setattr(Checkpoint, "opened", None)
    assert another.prune(NOTHING) == ["mnist_epoch0"]


@pytest.mark.parametrize("writer_is_new", [False, True])
def test_a_change_of_what_is_remembered_is_noticed(store, bytes_of, writer_is_new):
    for epoch in (1, 2, 3):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch))
        store.prune(replace(NOTHING, keep_last=2))
    writer = CheckpointStore(store.folder) if writer_is_new else store
    writer.commit("mnist_epoch3", bytes_of, state_of(4))
    _flip(store.folder / "mnist_epoch3.pdparams")
    assert writer.prune(NOTHING) == ["mnist_epoch1"]
    assert writer.newest().name == "mnist_epoch2"


def test_empty_folder_has_no_checkpoint(store):
    assert store.newest() is None and store.best() is None


def test_files_without_a_manifest_are_no_checkpoint(store, bytes_of):
    store.commit("mnist_epoch0", bytes_of, state_of(1))
    (store.folder / "mnist_epoch1.pdparams").write_bytes(b"torn")
    (store.folder / ".mnist_epoch1.pdopt.part").write_bytes(b"torn")
    assert [c.name for c in store.all()] == ["mnist_epoch0"]


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    before = path.stat()
    path.write_bytes(data)
    # A change within the same tick of the file system's clock would leave the time as it was.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def test_checkpoint_damaged_twice_is_quarantined_twice(store, bytes_of):
    """Every kind of damage: see `test_corruption.py`."""
    for epoch in (1, 2):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch))
    for number in (1, 2):
        _flip(store.folder / f"mnist_epoch1{PARAMS}")
        assert store.newest(quarantine_damaged=True).name == "mnist_epoch0"
        assert (store.folder / f"quarantine/mnist_epoch1.{number}/mnist_epoch1.json").exists()
        assert not list(store.folder.glob("mnist_epoch1*"))
        store.commit("mnist_epoch1", bytes_of, state_of(2))


def test_files_of_two_checkpoints_do_not_mix(store, bytes_of):
    for epoch in (1, 2):
        files = {suffix: data + bytes([epoch]) for suffix, data in bytes_of.items()}
        store.commit(f"mnist_epoch{epoch - 1}", files, state_of(epoch))
    os.replace(store.folder / "mnist_epoch0.pdopt", store.folder / "mnist_epoch1.pdopt")
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        store.newest()


def test_damage_never_means_a_start_from_zero(store, bytes_of):
    store.commit("mnist_epoch0", bytes_of, state_of(1))
    (store.folder / "mnist_epoch0.pdopt").unlink()
    for _ in range(2):  # the second time only the quarantine tells
        with pytest.raises(CheckpointError, match="no valid checkpoint"):
            store.newest(quarantine_damaged=True)


def test_a_commit_that_fails_half_way_is_not_there(store, bytes_of):
    store.commit("mnist_epoch0", bytes_of, state_of(1))
    (store.folder / "mnist_epoch1.pdopt").mkdir()  # in the way of the second file
    with pytest.raises(OutputError, match=r"mnist_epoch1\.pdopt: cannot write"):
        store.commit("mnist_epoch1", bytes_of, state_of(2))
    assert store.newest().name == "mnist_epoch0"
    assert not list(store.folder.glob(".*"))


def test_a_commit_over_an_old_one_of_its_name_never_mixes_the_two(store, bytes_of):
    for epoch in (1, 2):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch))
    (store.folder / "mnist_epoch1.pdopt").unlink()
    (store.folder / "mnist_epoch1.pdopt").mkdir()  # in the way of the second file
    with pytest.raises(OutputError):
        store.commit("mnist_epoch1", {**bytes_of, PARAMS: b"new"}, state_of(2))
    assert [c.name for c in store.all()] == ["mnist_epoch0"]


def test_manifest_binds_its_context(store, bytes_of):
    store.context["data_hash"] = "abc"
    store.commit("mnist_epoch0", bytes_of, state_of(1), {"optimizer": "Adam"})
    manifest = json.loads((store.folder / "mnist_epoch0.json").read_text())
    assert (manifest["data_hash"], manifest["optimizer"]) == ("abc", "Adam")
    assert manifest["state"] == state_of(1).as_dict()
    assert manifest["files"]["mnist_epoch0.pdparams"]["size"] == len(bytes_of[PARAMS])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_saved(store, value):
    built = build()
    save(store, built, 1)
    with paddle.no_grad():
        built[0].conv2.bias[3] = value
    with pytest.raises(DivergedError, match=r"conv2\.bias is no longer finite after step 20"):
        save(store, built, 2)
    assert [c.name for c in store.all()] == ["mnist_epoch0"]


# ------------------------------------------------------------------ policies, without a disk


@pytest.mark.parametrize(
    ("every", "keep_best", "due"),
    [
        (1, False, [1, 2, 3, 4, 5, 6]),
        (2, False, [2, 4, 6]),
        (3, False, [3, 6]),
        (9, False, []),
        (0, False, []),
        (None, True, [1, 4]),
        (3, True, [1, 3, 4, 6]),  # the scores are best at 1, and better at 4
    ],
)
def test_when_to_save_after_an_epoch(every, keep_best, due):
    saving = Saving(every, keep_best=keep_best)
    saved, state = [], TrainState()
    for epoch, score in enumerate([0.5, 0.5, 0.4, 0.6, 0.6, 0.1], 1):
        state.step += 10
        state.record_evaluation({"valid/acc": score})
        state.end_epoch()
        saved += [epoch] if saving.is_due_after_epoch(state) else []
    assert saved == due


@pytest.mark.parametrize(
    ("on_exception", "error", "due"),
    [
        (True, ValueError(), True),
        (False, ValueError(), False),
        (True, StoppedError(15), True),
        (False, StoppedError(15), True),  # who sends a signal means to go on later
    ],
)
def test_when_to_save_after_an_error(on_exception, error, due):
    assert Saving(on_exception=on_exception).is_due_after_error(error) == due


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
def test_when_to_save_after_a_step(steps, seconds, due):
    saving = Saving(every_steps=steps, every_seconds=seconds)
    since = {1: 1.0, 2: 4.9, 3: 5.0, 4: 0.5, 5: 1.5, 6: 7.0}
    saved = [n for n, s in since.items() if saving.is_due_after_step(TrainState(step=n), s)]
    assert saved == due


@pytest.mark.parametrize(
    ("saving", "due"), [(Saving(), True), (Saving(every_seconds=None), False), (KEEP_EPOCHS, False)]
)
def test_kill_costs_ten_minutes_at_most_unless_that_is_turned_off(saving, due):
    assert saving.is_due_after_step(TrainState(step=1), 600.0) == due
    assert not saving.is_due_after_step(TrainState(step=1), 599.0)


def entries():
    """Ten checkpoints a minute apart; two end epochs; 3 and 8 have the best score; 2 broke off."""
    scores = {3: 0.9, 8: 0.9, 5: 0.7}
    return [
        CheckpointInfo(f"s{n}", (n, 0), n * 60.0, n in (4, 8), scores.get(n), n == 2)
        for n in range(10)
    ]


@pytest.mark.parametrize(
    ("saving", "kept"),
    [
        (NOTHING, [9]),
        (replace(NOTHING, keep_last=3), [7, 8, 9]),
        (replace(NOTHING, keep_epochs=True), [4, 8, 9]),
        (replace(NOTHING, keep_best=True), [3, 9]),
        (replace(NOTHING, keep_breakpoints=True), [2, 9]),
        (replace(NOTHING, keep_every_minutes=4), [3, 7, 9]),
        (replace(KEEP_EPOCHS, keep_last=2, keep_every_minutes=4), [2, 3, 4, 7, 8, 9]),
        (replace(NOTHING, keep_last=99), list(range(10))),
    ],
)
def test_what_to_keep_is_the_union_of_the_rules(saving, kept):
    assert saving.kept(entries()) == {f"s{n}" for n in kept}
    assert saving.kept(reversed(entries())) == saving.kept(entries())


SAVED = st.tuples(
    st.integers(0, 99),
    st.fixed_dictionaries(
        {
            "ends_epoch": st.booleans(),
            "score": st.none() | st.floats(0, 1),
            "breakpoint": st.booleans(),
        }
    ),
)
POLICIES = st.builds(
    Saving,
    keep_epochs=st.booleans(),
    keep_last=st.integers(1, 5),
    keep_every_minutes=st.none() | st.floats(0.1, 9),
    keep_best=st.booleans(),
    keep_breakpoints=st.booleans(),
)


@given(st.lists(SAVED, min_size=1), POLICIES)
def test_the_newest_is_always_kept_and_keeping_is_stable(drawn, saving):
    saved = [CheckpointInfo(f"s{i}", (n, i), n * 30.0, **more) for i, (n, more) in enumerate(drawn)]
    kept = saving.kept(saved)
    assert max(saved, key=lambda info: info.sort_key).name in kept
    assert saving.kept([info for info in saved if info.name in kept]) == kept


def test_pruning_deletes_what_the_policy_drops_and_nothing_else(store, bytes_of):
    for epoch in range(1, 5):
        store.commit(f"mnist_epoch{epoch - 1}", bytes_of, state_of(epoch, 1 / epoch))
    (store.folder / "notes.txt").write_text("mine")
    dropped = store.prune(replace(NOTHING, keep_best=True))
    assert dropped == ["mnist_epoch1", "mnist_epoch2"]
    assert store.newest().name == "mnist_epoch3" and store.best().name == "mnist_epoch0"
    left = {path.stem for path in store.folder.iterdir()}
    assert left == {"mnist_epoch0", "mnist_epoch3", "notes"}

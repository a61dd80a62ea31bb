"""Damage of every kind to every file of a checkpoint: found, named, set aside, the one before used.

The table is made over real checkpoints of a small net, with and without an averaged copy of the
weights. `golden/format-N` hold a checkpoint of each format that is read, to be read for ever.
"""

import hashlib
import json
import logging
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.manifest import FORMAT, OPTIMIZER, PARAMS, TRAINING, read_manifest
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import CheckpointError
from paddle_mnist.nn.ema import NO_AVERAGE, ExponentialMovingAverage
from paddle_mnist.progress import TrainState

GOLDEN = Path(__file__).parents[1] / "golden"
GOLDEN_DIGESTS = {
    4: "081df2200ed9a70dd3170399202fb341f890eb5b73f24f8835fe304a31af91c6",
}
MANIFEST = ".json"
FILES = {
    "plain": (PARAMS, OPTIMIZER, MANIFEST),
    "averaged": (PARAMS, OPTIMIZER, TRAINING, MANIFEST),
}
OLDER, NEWER = "mnist_epoch0", "mnist_epoch1"


def small_net(averaged):
    model = nn.Linear(3, 2)
    weight = np.arange(6, dtype=np.float32).reshape(3, 2) / 8
    model.set_state_dict({"weight": weight, "bias": np.float32([-1, 1])})
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 50)
    optimizer = paddle.optimizer.Adam(schedule, parameters=model.parameters())
    return model, optimizer, ExponentialMovingAverage(model, 0.5) if averaged else NO_AVERAGE


def save_epochs(folder, averaged, epochs=2):
    """Train a small net and save it after each epoch of one step, as `Trainer` does.

    `golden/format-4` is what `save_epochs("tests/golden/format-4", averaged=True, epochs=1)` left
    under Paddle 3.3.1 when the format was made. Never make it anew: a version that cannot read it
    cannot read the users' checkpoints either.
    """
    context = {"config": {"seed": 1, "batch_size": 32}, "data_hash": "ab" * 32}
    store = CheckpointStore(folder, context)
    with unique_name.guard():  # Paddle counts its names from 0, whatever was built before
        model, optimizer, average = small_net(averaged)
        model.checkpoint_name = "mnist"
        checkpointer = StoreCheckpointer(store, average=average)
        state = TrainState()
        for epoch in range(epochs):
            (model(paddle.to_tensor([[1.0, 2.0, 4.0 + epoch]])) ** 2).sum().backward()
            with state.stepping(samples=32):
                optimizer.step()
                optimizer.clear_grad()
                optimizer._learning_rate.step()
            average.update(model, epoch)
            state.record_evaluation({"valid/acc": 0.5 + epoch / 8, "valid/loss": 0.25})
            state.end_epoch()
            checkpointer.after_epoch(state, model, optimizer)
    return store


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of two checkpoints, by kind; to be copied."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in FILES}
    for kind, folder in folders.items():
        save_epochs(folder, averaged=kind == "averaged")
        files = {stem + suffix for stem in (OLDER, NEWER) for suffix in FILES[kind]}
        assert {path.name for path in folder.iterdir()} == files
    return folders


@pytest.fixture
def copied(saved, tmp_path):
    def copy(kind):
        return Path(shutil.copytree(saved[kind], tmp_path / kind))

    return copy


@pytest.fixture
def warnings(caplog):
    """Return a function that gives what was logged since it was last called."""
    log = logging.getLogger("paddle_mnist")
    log.addHandler(caplog.handler)  # a command run in this process may have cut it from the root
    before, log.propagate = log.propagate, False

    def messages():
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    yield messages
    log.removeHandler(caplog.handler)
    log.propagate = before


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# ------------------------------------------------------------------ the table


def flip(path):
    """One bit, in the middle; for all the others, see `test_every_bit_of_every_file_is_guarded`."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path, length):
    os.truncate(path, length(path.stat().st_size))


def append(path):
    path.write_bytes(path.read_bytes() + b"\0")


def make_folder(path):
    path.unlink()
    path.mkdir()


def take(stem, suffixes):
    """Files of the other checkpoint, as they were, under the names of this one's."""
    other = stem.with_name(NEWER if stem.name == OLDER else OLDER)
    for suffix in suffixes:
        shutil.copy(other.with_suffix(f"{suffix}.kept"), stem.with_suffix(suffix))


def exchange(stem):
    """Weights and optimizer of one checkpoint under each other's names."""
    for source, target in ((PARAMS, OPTIMIZER), (OPTIMIZER, PARAMS)):
        shutil.copy(stem.with_suffix(f"{source}.kept"), stem.with_suffix(target))


def seal(manifest):
    """A manifest with its checksum, worked out anew: SHA-256 over the JSON of all else."""
    others = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return {**others, "checksum": hashlib.sha256(text.encode()).hexdigest()}


def edit(path, sealed=True, **values):
    """Other entries in a manifest; None takes one out."""
    manifest = {**json.loads(path.read_text()), **values}
    manifest = {key: value for key, value in manifest.items() if value is not None}
    path.write_text(json.dumps(seal(manifest) if sealed else manifest))


def data_of(path):
    """The names that belong to the manifest at `path`."""
    return [path.stem + suffix for suffix in (PARAMS, OPTIMIZER)]


# To any file.
DAMAGE = {
    "flipped": flip,
    "emptied": partial(cut, length=lambda size: 0),
    "cut to 1": partial(cut, length=lambda size: 1),
    "cut in half": partial(cut, length=lambda size: size // 2),
    "cut by 1": partial(cut, length=lambda size: size - 1),
    "longer by 1": append,
}
# To any file but the manifest, without which it is no checkpoint: see below.
LOSS = {"missing": Path.unlink, "a folder": make_folder}
MANIFESTS = {
    "of format 5": partial(edit, format=5),
    "of format '1.1'": partial(edit, format="1.1"),
    "of format 5, sealed in another way": partial(edit, format=5, checksum="x", sealed=False),
    "without a checksum": partial(edit, sealed=False, checksum=None),
    "edited": partial(edit, sealed=False, data_hash="cd" * 32),
    "of a list": lambda path: path.write_text("[]"),
    "of a number": lambda path: path.write_text("1"),
    "of nothing": lambda path: path.write_text("{}"),
    "nested too deep": lambda path: path.write_text("[" * 10**5),
    "of zeros": lambda path: path.write_bytes(bytes(900)),
    # A right checksum makes no right manifest.
    "of other files": partial(edit, files={"../../etc/passwd": {"size": 1}}),
    "of no files": partial(edit, files={}),
    "of files without sizes": lambda path: edit(path, files={key: {} for key in data_of(path)}),
    "of a list of files": lambda path: edit(path, files=data_of(path)),
    "without a state": partial(edit, state=None),
    "with a state of other fields": partial(edit, state={"epoch": 1, "pace": 3}),
    "without a time": partial(edit, saved_at=None),
}


def damage_to(suffix, damage):
    return lambda stem: damage(stem.with_suffix(suffix))


def cases():
    """{(kind, name): (damage to the checkpoint at a stem, suffix of the file to be named)}."""
    table = {}
    for kind, suffixes in FILES.items():
        cases = {
            f"{suffix} {name}": (damage_to(suffix, damage), suffix)
            for suffix in suffixes
            for name, damage in {**DAMAGE, **({} if suffix == MANIFEST else LOSS)}.items()
        }
        for name, damage in MANIFESTS.items():
            cases[f"manifest {name}"] = damage_to(MANIFEST, damage), MANIFEST
        for suffix in suffixes:
            rest = [other for other in suffixes if other != suffix]
            cases[f"{suffix} of the other checkpoint"] = partial(take, suffixes=[suffix]), suffix
            named = PARAMS if suffix == MANIFEST else MANIFEST
            cases[f"all but {suffix} of the other checkpoint"] = partial(take, suffixes=rest), named
        cases["weights and optimizer exchanged"] = exchange, PARAMS
        table.update({(kind, name): value for name, value in cases.items()})
    return table


CASES = cases()


def test_the_table_is_whole():
    """It is made by loops, so it could lose whole regions without a sound."""
    assert len(CASES) == 102
    by_kind = {kind: sum(key[0] == kind for key in CASES) for kind in FILES}
    assert by_kind == {"plain": 46, "averaged": 56}


def keep_copies(folder):
    """Keep the files as they were before any was changed, for `take` and `exchange`."""
    for path in list(folder.iterdir()):
        shutil.copy(path, f"{path}.kept")


def drop_copies(folder):
    for path in folder.glob("*.kept"):
        path.unlink()


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_damaged_checkpoint_is_named_quarantined_and_the_one_before_used(copied, warnings, case):
    """The promise of the whole package: damage costs the way since the checkpoint before."""
    (kind, _), (damage, named) = case, CASES[case]
    folder = copied(kind)
    good = contents(folder)
    keep_copies(folder)
    damage(folder / NEWER)
    drop_copies(folder)
    damaged = {name: data for name, data in contents(folder).items() if name.startswith(NEWER)}
    store = CheckpointStore(folder)

    assert store.newest().name == OLDER  # one who only reads names it, and moves nothing
    (line,) = warnings()
    assert line.startswith(f"damaged checkpoint: {folder / NEWER}{named}: ")
    assert "\n" not in line and len(line) < 300 + len(str(folder))
    assert {n: d for n, d in contents(folder).items() if n.startswith(NEWER)} == damaged

    newest = store.newest(quarantine_damaged=True)
    assert warnings() == [line, f"moved to {folder / 'quarantine' / NEWER}.1"]
    assert newest.name == OLDER and (newest.step, newest.state.epoch) == (1, 1)
    assert contents(folder) == {n: d for n, d in good.items() if n.startswith(OLDER)}
    assert contents(folder / "quarantine" / f"{NEWER}.1") == damaged  # nothing is lost
    assert not list(folder.glob(f"{NEWER}*"))

    assert store.newest(quarantine_damaged=True).name == OLDER and warnings() == []


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_with_both_damaged_nothing_is_started_anew(copied, warnings, case):
    """Exit code 4, as often as it is asked: only a person may throw a training away."""
    (kind, _), (damage, named) = case, CASES[case]
    folder = copied(kind)
    keep_copies(folder)
    for name in (OLDER, NEWER):
        damage(folder / name)
    drop_copies(folder)
    for quarantine_damaged in (False, True, True):  # the last time only the quarantine tells
        with pytest.raises(CheckpointError, match=r"no valid checkpoint.*fresh=True") as caught:
            CheckpointStore(folder).newest(quarantine_damaged)
        assert caught.value.exit_code == 4 and "\n" not in str(caught.value)
    lines = [line for line in warnings() if line.startswith("damaged checkpoint: ")]
    names = {str(folder / name) + named for name in (OLDER, NEWER)}
    assert len(lines) == 4 and {line.split(": ")[1] for line in lines} == names
    assert len(list((folder / "quarantine").iterdir())) == 2


@pytest.mark.parametrize("damage", ["of format 5", "of format 5, sealed in another way"])
def test_a_future_format_is_called_so(copied, damage):
    """It is no damage, and what helps is another version; whichever way that one is sealed."""
    stem = copied("plain") / NEWER
    MANIFESTS[damage](stem.with_suffix(MANIFEST))
    with pytest.raises(CheckpointError, match=r"mnist_epoch1\.json: format 5; this version reads "):
        read_manifest(stem.with_suffix(MANIFEST))


@pytest.mark.parametrize("kind", FILES)
def test_every_bit_of_every_file_is_guarded(copied, kind):
    """All bits of a manifest, a bit of every byte of the others.

    A manifest holds what decides how a training goes on: were another step, rate or data_hash
    taken for the saved one, it would go on wrongly without a word. A flip may leave the same
    values (1e-05 and 1E-05), and only then be let pass.
    """
    folder = copied(kind)
    path = folder / f"{NEWER}{MANIFEST}"
    good = read_manifest(path).manifest
    flips = harmless = 0
    for suffix in FILES[kind]:
        path = folder / f"{NEWER}{suffix}"
        with path.open("r+b", buffering=0) as file:  # in place: many times as fast
            for at, byte in enumerate(path.read_bytes()):
                for bit in range(8) if suffix == MANIFEST else [at % 8]:
                    os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), at)
                    flips += 1
                    try:
                        checkpoint = read_manifest(folder / f"{NEWER}{MANIFEST}")
                        checkpoint.verify()
                    except CheckpointError as error:
                        assert str(error).startswith(f"{path}: ")
                    else:
                        assert checkpoint.manifest == good, f"bit {bit} of byte {at} of {path.name}"
                        harmless += 1
                os.pwrite(file.fileno(), bytes([byte]), at)
    read_manifest(folder / f"{NEWER}{MANIFEST}").verify()  # they were all put back
    assert flips > 7_000 and harmless < 20


def test_data_without_a_manifest_is_no_checkpoint(copied, warnings):
    """A save that was broken off leaves the same, so it is no damage and starts nobody at 0.

    It stays where it is, and `tools/checkpoints.py` lists it.
    """
    folder = copied("averaged")
    (folder / f"{NEWER}{MANIFEST}").unlink()
    store = CheckpointStore(folder)
    assert store.newest(quarantine_damaged=True).name == OLDER
    strays = [folder / f"{NEWER}{s}" for s in sorted(FILES["averaged"]) if s != MANIFEST]
    assert store.orphaned_files() == sorted(strays)
    (folder / f"{OLDER}{PARAMS}").unlink()
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        store.newest()


# ------------------------------------------------------------------ golden files


def form(value):
    """Names and types, without values."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items()}
    return [form(item) for item in value] if isinstance(value, list) else type(value).__name__


# After one step of Adam from 0, 1/8, 2/8, ... and -1, 1; the average follows 9/10 of the way.
GOLDEN_VALUES = {
    (PARAMS, "weight"): [[-0.009, 0.116], [0.241, 0.366], [0.491, 0.616]],
    (PARAMS, "bias"): [-1.009, 0.991],
    (TRAINING, "weight"): [[-0.01, 0.115], [0.24, 0.365], [0.49, 0.615]],
    (TRAINING, "bias"): [-1.01, 0.99],
    (OPTIMIZER, "linear_0.w_0_moment1_0"): [[0.3, 0.875], [0.6, 1.75], [1.2, 3.5]],
    (OPTIMIZER, "linear_0.b_0_moment1_0"): [0.3, 0.875],
    (OPTIMIZER, "linear_0.w_0_moment2_0"): [
        [0.009, 0.0765625],
        [0.036, 0.30625],
        [0.144, 1.225],
    ],
    (OPTIMIZER, "linear_0.b_0_moment2_0"): [0.009, 0.0765625],
    (OPTIMIZER, "linear_0.w_0_beta1_pow_acc_0"): [0.81],
    (OPTIMIZER, "linear_0.b_0_beta2_pow_acc_0"): [0.998001],
}


@pytest.mark.parametrize("number", GOLDEN_DIGESTS)
def test_a_checkpoint_of_every_format_is_read_for_ever(number):
    """Files as users have them on their disks: they are verified, and hold the values saved."""
    folder = GOLDEN / f"format-{number}"
    checkpoint = CheckpointStore(folder).newest()
    assert checkpoint.name == OLDER and checkpoint.manifest["format"] == number
    assert checkpoint.state == TrainState(
        epoch=1,
        step=1,
        samples=32,
        metrics={"valid/acc": 0.5, "valid/loss": 0.25},
        scores=[[1, 0.5]],
    )
    assert checkpoint.manifest["config"] == {"seed": 1, "batch_size": 32}
    for (suffix, name), values in GOLDEN_VALUES.items():
        loaded = checkpoint.load(suffix)[name]
        assert loaded.dtype == np.float32 and loaded.shape == np.shape(values)
        assert np.allclose(loaded, values, rtol=2e-5, atol=1e-8), (suffix, name)
    schedule = checkpoint.load(OPTIMIZER)["LR_Scheduler"]
    assert schedule == {"last_epoch": 1, "last_lr": pytest.approx(0.00999013364)}
    digest = hashlib.sha256(b"".join(data for _, data in sorted(contents(folder).items())))
    assert digest.hexdigest() == GOLDEN_DIGESTS[number]  # made anew, they would prove nothing


@pytest.mark.parametrize("number", GOLDEN_DIGESTS)
def test_a_checkpoint_of_every_format_goes_into_a_net_by_structured_names(number):
    checkpoint = CheckpointStore(GOLDEN / f"format-{number}").newest()
    nn.Linear(2, 2)  # so that Paddle's names for the net are not those in the files
    model, optimizer, average = small_net(averaged=True)
    names = checkpoint.manifest["names"]
    assert model.weight.name != names["weight"]
    load_checkpoint(checkpoint, model, optimizer, average)
    for suffix, loaded in ((TRAINING, model.state_dict()), (PARAMS, average.weights(model))):
        for name, value in loaded.items():
            assert value.numpy().tobytes() == checkpoint.load(suffix)[name].tobytes()
    state, saved = optimizer.state_dict(), checkpoint.load(OPTIMIZER)
    for name, ours in {"weight": model.weight.name, "bias": model.bias.name}.items():
        for moment in ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"):
            (moment_value,) = (v for k, v in state.items() if k.startswith(f"{ours}_{moment}_"))
            expected = saved[f"{names[name]}_{moment}_0"]
            assert moment_value.numpy().tobytes() == expected.tobytes()
    assert optimizer.get_lr() == saved["LR_Scheduler"]["last_lr"]


OUTDATED = range(1, FORMAT)  # what drafts and version 0.1 wrote


@pytest.mark.parametrize("number", OUTDATED)
def test_an_outdated_format_is_refused_in_one_line_and_stays_where_it_is(copied, warnings, number):
    folder = copied("plain")
    for name in (OLDER, NEWER):
        edit(folder / f"{name}{MANIFEST}", format=number)
    before = contents(folder)
    for find in (
        lambda store: read_manifest(folder / f"{OLDER}{MANIFEST}"),
        lambda store: store.newest(quarantine_damaged=True),
        CheckpointStore.best,
    ):
        with pytest.raises(CheckpointError) as caught:
            find(CheckpointStore(folder))
        assert str(caught.value) == (
            f"{folder / OLDER}{MANIFEST}: format {number}; formats 1 to 3 were written by drafts "
            "and version 0.1, and this version reads format 4; finish the run with paddle_mnist "
            f"0.2, or copy {OLDER}{PARAMS} to another folder and start a new run from it with "
            "start=StartFrom('PATH', weights_only=True)"
        )
    assert contents(folder) == before and warnings() == []
    weights = shutil.copytree(folder, folder / "copy") / f"{OLDER}{PARAMS}"
    weights.with_suffix(MANIFEST).unlink()
    assert {*load(weights)} == {"weight", "bias"}  # as the message says


@pytest.mark.parametrize("number", OUTDATED)
def test_a_run_that_begins_with_an_outdated_format_resumes_from_a_later_one(
    copied, warnings, number
):
    folder = copied("plain")
    edit(folder / f"{OLDER}{MANIFEST}", format=number)
    before = contents(folder)
    store = CheckpointStore(folder)
    assert store.newest(quarantine_damaged=True).name == store.best().name == NEWER
    (line,) = warnings()
    assert line.startswith(f"{folder / OLDER}{MANIFEST}: format {number}; ")
    assert contents(folder) == before


def test_todays_files_have_the_golden_form(tmp_path):
    """To change what is written, raise FORMAT, and keep reading this one."""
    save_epochs(tmp_path, averaged=True, epochs=1)
    newest = GOLDEN / f"format-{FORMAT}"
    today, golden = (CheckpointStore(folder).newest() for folder in (tmp_path, newest))
    assert form(today.manifest) == form(golden.manifest)
    for suffix in (PARAMS, OPTIMIZER, TRAINING):
        current, expected = today.load(suffix), golden.load(suffix)
        assert current.keys() == expected.keys()
        for key, value in expected.items():
            if isinstance(value, np.ndarray):
                assert (current[key].dtype, current[key].shape) == (value.dtype, value.shape)
                assert np.allclose(current[key], value, rtol=1e-5)
            else:
                assert form(current[key]) == form(value)

"""Damage of every kind to a checkpoint: found, reported, set aside, the one before used.

The damaged ones are of a small net with an averaged copy of its weights, so of four files.
`golden/format-N` hold a checkpoint of each format that is read, to be read forever.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import paddle
import pytest
from fit_rows import ProgramError, StopsAt, stop, train
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist.checkpoint.checkpointer import Checkpointer
from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.manifest import (
    FORMAT,
    OPTIMIZER,
    PARAMS,
    TRAINING,
    UnreadableError,
    read_manifest,
)
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.commands import checkpoints
from paddle_mnist.errors import CheckpointError, PaddleMnistError
from paddle_mnist.nn.ema import ExponentialMovingAverage
from paddle_mnist.train_state import TrainState

GOLDEN = Path(__file__).parents[1] / "golden/format-4"
GOLDEN_DIGEST = "081df2200ed9a70dd3170399202fb341f890eb5b73f24f8835fe304a31af91c6"
MANIFEST = ".json"
FILES = (PARAMS, OPTIMIZER, TRAINING, MANIFEST)
OLDER, NEWER = "mnist_epoch0", "mnist_epoch1"


def small_net():
    model = nn.Linear(3, 2)
    weight = np.arange(6, dtype=np.float32).reshape(3, 2) / 8
    model.set_state_dict({"weight": weight, "bias": np.float32([-1, 1])})
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 50)
    optimizer = paddle.optimizer.Adam(schedule, parameters=model.parameters())
    return model, optimizer, ExponentialMovingAverage(model, 0.5)


def save_epochs(folder, epochs=2):
    """Train a small net and save it after each epoch of one step, as `Trainer` does.

    `golden/format-4` is what `save_epochs("tests/golden/format-4", epochs=1)` left under Paddle
    3.3.1 when the format was made. Never replace it: a version that cannot read it cannot read the
    users' checkpoints either.
    """
    context = {"config": {"seed": 1, "batch_size": 32}, "data_hash": "ab" * 32}
    store = CheckpointStore(folder)
    with unique_name.guard():  # Paddle counts its names from 0, whatever was built before
        model, optimizer, average = small_net()
        model.checkpoint_name = "mnist"
        checkpointer = Checkpointer(store, model, optimizer, average=average, run_entries=context)
        state = TrainState()
        for epoch in range(epochs):
            (model(paddle.to_tensor([[1.0, 2.0, 4.0 + epoch]])) ** 2).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
            optimizer._learning_rate.step()
            state.count_step(samples=32)
            average.update(model, epoch)
            state.record_evaluation({"valid/acc": 0.5 + epoch / 8, "valid/loss": 0.25})
            state.end_epoch()
            checkpointer.after_epoch(state)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of two checkpoints, to be copied."""
    folder = tmp_path_factory.mktemp("saved")
    save_epochs(folder)
    assert {*contents(folder)} == {stem + suffix for stem in (OLDER, NEWER) for suffix in FILES}
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# ------------------------------------------------------------------ the table


def flip(path):
    """One bit, in the middle; for all the others, see the test of every bit."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def make_folder(path):
    path.unlink()
    path.mkdir()


def seal(manifest):
    """A manifest with its checksum, computed again: SHA-256 over the JSON of all else."""
    others = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return {**others, "checksum": hashlib.sha256(text.encode()).hexdigest()}


def edit(path, sealed=True, **values):
    """Other entries in a manifest; None takes one out."""
    manifest = {**json.loads(path.read_text()), **values}
    manifest = {key: value for key, value in manifest.items() if value is not None}
    path.write_text(json.dumps(seal(manifest) if sealed else manifest))


def edit_state(path, **values):
    edit(path, state={**json.loads(path.read_text())["state"], **values})


DAMAGE = {
    **{f"{suffix} flipped": (suffix, flip) for suffix in FILES},
    "emptied": (PARAMS, lambda path: path.write_bytes(b"")),
    "cut by 1": (OPTIMIZER, lambda path: os.truncate(path, path.stat().st_size - 1)),
    "longer by 1": (TRAINING, lambda path: path.write_bytes(path.read_bytes() + b"\0")),
    "missing": (OPTIMIZER, Path.unlink),
    "a folder": (PARAMS, make_folder),
    "of another suffix": (PARAMS, lambda path: shutil.copy(path.with_suffix(OPTIMIZER), path)),
}
DAMAGED_MANIFESTS = {
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "of format 3": partial(edit, format=3),
    "of format 6": partial(edit, format=6),
    "of format '1.1'": partial(edit, format="1.1"),
    "of format 6, sealed in another way": partial(edit, format=6, checksum="x", sealed=False),
    "without a checksum": partial(edit, sealed=False, checksum=None),
    "edited": partial(edit, sealed=False, data_hash="cd" * 32),
    "of a list": lambda path: path.write_text("[]"),
    "nested too deep": lambda path: path.write_text("[" * 10**5),
    "of zeros": lambda path: path.write_bytes(bytes(900)),
    # With a valid checksum:
    "of other files": partial(edit, files={"../../etc/passwd": {"size": 1}}),
    "of no files": partial(edit, files={}),
    "of files without sizes": partial(edit, files={NEWER + PARAMS: {}, NEWER + OPTIMIZER: {}}),
    "without a state": partial(edit, state=None),
    "with a state of other fields": partial(edit, state={"epoch": 1, "pace": 3}),
    "with a negative step": partial(edit_state, step=-1),
    "with another mode": partial(edit_state, mode="most"),
    "with a step that is text": partial(edit_state, step="7"),
    "with a score that is text": partial(edit_state, scores=[[1, "0.5"]]),
    "with sums of other fields": partial(edit_state, running_sums={"count": 1}),
    "without a time": partial(edit, saved_at=None),
}
DAMAGE |= {f"manifest {name}": (MANIFEST, act) for name, act in DAMAGED_MANIFESTS.items()}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_checkpoint_is_quarantined_and_the_one_before_used(folder, lines, caplog, case):
    """The promise of the whole package: damage costs the steps since the checkpoint before."""
    good = contents(folder)
    suffix, act = DAMAGE[case]
    path = folder / f"{NEWER}{suffix}"
    act(path)
    damaged = {name: data for name, data in contents(folder).items() if name.startswith(NEWER)}
    store = CheckpointStore(folder)

    assert store.newest().name == OLDER  # a reader reports it, and moves nothing
    (line,) = lines()
    assert line.startswith(f"damaged checkpoint: {path}: ")
    assert "\n" not in line and len(line) < 300 + len(str(folder))
    assert {n: d for n, d in contents(folder).items() if n.startswith(NEWER)} == damaged

    caplog.clear()
    newest = store.load_newest()
    assert lines() == [line, f"moved to {folder / 'quarantine' / NEWER}.1"]
    assert newest.name == OLDER and (newest.step, newest.state.epoch) == (1, 1)
    assert contents(folder) == {n: d for n, d in good.items() if n.startswith(OLDER)}
    assert contents(folder / "quarantine" / f"{NEWER}.1") == damaged  # nothing is lost


@contextlib.contextmanager
def refused(path, code):
    """Opening a file raises an error, as that of a network file system may."""

    def open_others(other, *rest, **options):
        if os.fspath(other) == os.fspath(path):
            raise OSError(code, os.strerror(code))
        return opened(other, *rest, **options)

    opened = os.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_others)
        yield


@contextlib.contextmanager
def broken(path):
    """Opening a file succeeds, and reading it raises EIO: nothing is mapped at address 0."""
    aside = path.rename(path.with_name("aside"))
    path.symlink_to("/proc/self/mem")
    yield
    aside.replace(path)


READ_ERRORS = {
    "Input/output error": broken,
    "Stale file handle": partial(refused, code=errno.ESTALE),
    "Too many open files": partial(refused, code=errno.EMFILE),
    "Permission denied": partial(refused, code=errno.EACCES),
}


@pytest.mark.parametrize("suffix", [PARAMS, TRAINING, MANIFEST])
@pytest.mark.parametrize("reason", READ_ERRORS)
def test_file_that_cannot_be_read_is_not_damaged_and_ends_the_run(folder, reason, suffix, lines):
    """It may be the newest or the best, so that none other is used, and it stays."""
    good, path = contents(folder), folder / f"{NEWER}{suffix}"
    store = CheckpointStore(folder)
    with READ_ERRORS[reason](path):
        for read in (store.newest, store.load_newest, store.best):
            with pytest.raises(CheckpointError, match=rf": cannot be read \({reason}\)") as caught:
                read()
            assert caught.value.exit_code == 4 and str(caught.value).startswith(f"{path}: ")
            assert "\n" not in str(caught.value) and lines() == []
        (error,) = store.find_damaged().values()
        assert isinstance(error, UnreadableError)
        assert store.prune(Saving(keep_last=1, keep_best=0)) == []
    assert contents(folder) == good
    assert store.load_newest().name == store.best().name == NEWER


def test_run_whose_checkpoints_are_all_damaged_raises_exit_4(folder):
    """Only a person may start over."""
    for name in (NEWER, OLDER):
        flip(folder / f"{name}{PARAMS}")
    store = CheckpointStore(folder)
    for newest in (store.newest, store.load_newest, store.load_newest):  # then from the quarantine
        with pytest.raises(CheckpointError, match=r"no valid .* mirror, use fresh=True") as caught:
            newest()
        assert caught.value.exit_code == 4 and "\n" not in str(caught.value)
    quarantined = [path / path.name.removesuffix(".1") for path in folder.glob("quarantine/*")]
    assert len(quarantined) == 2
    for stem in quarantined:
        with pytest.raises(CheckpointError, match=r"pdparams: .*SHA-256"):
            load(stem)


def test_read_manifest_of_a_future_format_raises(folder):
    """Another version helps, however that one seals its manifests."""
    manifest = folder / f"{NEWER}{MANIFEST}"
    for case in ("of format 6", "of format 6, sealed in another way"):
        DAMAGED_MANIFESTS[case](manifest)
        with pytest.raises(
            CheckpointError, match=r"mnist_epoch1\.json: format 6; this version reads"
        ):
            read_manifest(manifest)


def test_verify_with_any_bit_flipped_raises(folder):
    """All bits of a manifest, a bit of every byte of the others.

    A manifest holds what decides how a run resumes, such as the step and the data hash. A
    flip may leave the same values (1e-05 and 1E-05); only then may it pass.
    """
    path = folder / f"{NEWER}{MANIFEST}"
    good = read_manifest(path).manifest
    flips = harmless = 0
    for suffix in FILES:
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
    read_manifest(folder / f"{NEWER}{MANIFEST}").verify()  # they were all restored
    assert flips > 7_000 and harmless < 20


def test_data_without_a_manifest_is_orphaned(folder, lines):
    """An interrupted save leaves the same, so it is not damage. It stays where it is."""
    (folder / f"{NEWER}{MANIFEST}").unlink()
    store = CheckpointStore(folder)
    assert store.load_newest().name == OLDER and lines() == []
    assert store.orphaned_files() == sorted(folder / f"{NEWER}{s}" for s in FILES[:-1])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of Adam and a schedule that stopped inside its second epoch."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(ProgramError):
        train("Adam", run, callbacks=[StopsAt(7, stop)])
    return run


def places(value):
    """Return all (container, key) in a container, at any depth."""
    items = [*(value.items() if isinstance(value, dict) else enumerate(value))]
    inside = [places(item) for _, item in items if isinstance(item, (dict, list))]
    return [(value, key) for key, _ in items] + [place for found in inside for place in found]


NOT_NUMBERS = (None, "x", [], {}, [[1]], {"a": {"b": [1]}})
JUNK = (*NOT_NUMBERS, True, -1, 1.5, 10**30, 1e300, float("nan"))
READERS = {
    "list": lambda path: checkpoints.main(["list", str(path.parents[1]), "--json"]),
    "verify": lambda path: checkpoints.main(["verify", str(path.parents[1])]),
    "load": load,
    "best": lambda path: CheckpointStore(path.parent).best(),
    "resume": lambda path: train("Adam", path.parents[1]),
    "resume elsewhere": lambda path: train("Adam", path.parents[2] / "other", resume=str(path)),
}


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=40)
@given(data=st.data())
def test_manifest_with_another_entry_is_read_or_refused(stopped, tmp_path_factory, reader, data):
    """With a valid checksum, whatever is missing or of another type."""
    run = shutil.copytree(stopped, tmp_path_factory.mktemp("changed") / "run")
    path = CheckpointStore(run / "checkpoints").newest().path
    manifest = json.loads(path.read_text())
    container, key = data.draw(st.sampled_from(places(manifest)))
    if data.draw(st.booleans()):
        del container[key]
    else:  # the numbers of a schedule may be any
        junk = NOT_NUMBERS if container is manifest["schedule"] else JUNK
        container[key] = data.draw(st.sampled_from(junk))
    path.write_text(json.dumps(seal(manifest)))
    with contextlib.suppress(PaddleMnistError, SystemExit):
        READERS[reader](path)


# ------------------------------------------------------------------ golden files


def form(value):
    """Names and types, without values."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items()}
    return [form(item) for item in value] if isinstance(value, list) else type(value).__name__


def arrays(values):
    return [value for value in values.values() if isinstance(value, np.ndarray)]


def test_golden_checkpoint_loads_into_a_net_by_structured_names(tmp_path):
    """Files as users have them on their disks; saved again, they hold the same bits."""
    digest = hashlib.sha256(b"".join(data for _, data in sorted(contents(GOLDEN).items())))
    assert digest.hexdigest() == GOLDEN_DIGEST
    golden = CheckpointStore(GOLDEN).newest()
    assert golden.name == OLDER and golden.manifest["format"] == FORMAT
    metrics = {"valid/acc": 0.5, "valid/loss": 0.25}
    state = TrainState(epoch=1, step=1, samples=32, metrics=metrics, scores=[[1, 0.5]])
    assert golden.state == state
    assert golden.manifest["config"] == {"seed": 1, "batch_size": 32}
    nn.Linear(2, 2)  # so that Paddle's names for the net are not those in the files
    model, optimizer, average = small_net()
    assert model.weight.name != golden.manifest["names"]["weight"]
    load_checkpoint(golden, model, optimizer, average)
    store = CheckpointStore(tmp_path)
    Checkpointer(store, model, optimizer, average=average).after_epoch(state)
    for suffix in (PARAMS, OPTIMIZER, TRAINING):
        again, saved = store.newest().load(suffix), golden.load(suffix)
        assert all(map(np.array_equal, arrays(again), arrays(saved)))
        assert len(arrays(again)) == len(arrays(saved)) and len(again) == len(saved)
    assert optimizer.get_lr() == golden.load(OPTIMIZER)["LR_Scheduler"]["last_lr"]
    # After one step of Adam from 0, 1/8, 2/8, ... and -1, 1.
    expected = [[-0.009, 0.116], [0.241, 0.366], [0.491, 0.616]]
    assert np.allclose(average.weights(model)["weight"].numpy(), expected, rtol=2e-5)


def test_new_checkpoint_has_the_golden_form(tmp_path):
    """To change what is written, raise FORMAT, and keep reading this one."""
    save_epochs(tmp_path, epochs=1)
    today, golden = (CheckpointStore(folder).newest() for folder in (tmp_path, GOLDEN))
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


def test_checkpoints_deleted_after_the_last_save_are_saved_again_with_a_warning(tmp_path, lines):
    model, optimizer, _ = small_net()
    checkpointer = Checkpointer(CheckpointStore(tmp_path / "run"), model, optimizer)
    state = TrainState()
    state.count_step(samples=32)
    state.end_epoch()
    checkpointer.after_epoch(state)
    shutil.rmtree(tmp_path / "run")
    checkpointer.at_end(state)
    assert lines() == [f"{tmp_path / 'run'}: deleted during training, with all earlier checkpoints"]
    assert CheckpointStore(tmp_path / "run").newest().step == 1

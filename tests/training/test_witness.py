"""A resumed run compares the steps that it repeats with those that the interrupted run computed."""

import functools
import json
import os
import shutil
from pathlib import Path

import pytest
from fit_rows import ROWS, ProgramError, StopsAt, stop, terminate, train
from paddle import nn
from paddle.nn import functional as F
from silence import silent
from stopped_programs import some
from test_hidden_state import UNSAVABLE, build, draw_examples
from test_hidden_state import train as train_program
from usual_programs import PROGRAMS

from paddle_mnist import Callback, Mean
from paddle_mnist.errors import RepeatedStepError, StoppedError
from paddle_mnist.parallel.spawn import spawn
from paddle_mnist.training import witness

# As `kill -9` leaves a run: with the checkpoints before it.
KILLED = {
    "save_on_exception": False,
    "save_every_steps": 4,
    "save_every_epochs": 1,
    "keep_best": 0,
}
BEFORE = "before the interruption"


def kill(step, run, **options):
    """Train until a step, and save nothing more."""
    with pytest.raises(ProgramError):
        run(**{**KILLED, **options}, callbacks=[StopsAt(step, stop)])


def agrees(result, repeated):
    """Return whether the repeated steps of a run were compared, and are all the same."""
    expected = {"repeated": repeated, "differing": [], "compared": "all steps", "not_compared": []}
    return expected.items() <= result.witness.items()


# ------------------------------------------------------------------ the same


@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("program", some([*ROWS], 10))
def test_program_that_is_killed_repeats_its_steps(program, shards, tmp_path):
    if program == "endless batches" and shards:
        pytest.skip("cannot be divided")
    allowed = ["the result may depend on the number of shards"] if shards else []
    run = functools.partial(train, program, tmp_path, grad_shards=shards)
    with silent(*allowed):
        kill(4, run)
        kill(8, run)
        result = run(**KILLED)
    # 1 to 3; after step 4 or, where data can only be resumed after an epoch, 5.
    assert agrees(result, 3 + 2) or agrees(result, 3 + 3)
    assert result.witness["interruptions"] == 2


@pytest.mark.parametrize("program", PROGRAMS)
def test_usual_program_that_is_killed_repeats_its_steps(program, tmp_path):
    with silent():
        for step in (3, 7):
            with pytest.raises(ProgramError):
                train_program(tmp_path, program, StopsAt(step, stop), **KILLED)
        result = train_program(tmp_path, program, **KILLED)
    assert agrees(result, 2 + 2)


@pytest.mark.parametrize(
    "example",
    [
        *some([each for each in draw_examples(False, 8) if each.is_saved], 12),
        *some([each for each in draw_examples(True, 9) if each.is_saved], 6),
    ],
    ids=str,
)
def test_program_with_hidden_state_that_is_killed_repeats_its_steps(example, tmp_path):
    program = functools.partial(build, example)
    # An iterator that is used warns whether or not it has an influence.
    allowed = ["checkpoints do not contain it"] if example.kind in UNSAVABLE else []
    with silent(*allowed):
        for step in (3, 7, 11):
            with pytest.raises(ProgramError):
                train_program(tmp_path, program, StopsAt(step, stop), **KILLED)
        result = train_program(tmp_path, program, **KILLED)
    assert agrees(result, 2 + 2 + 2)


def test_run_without_a_checkpoint_repeats_its_steps_from_the_first(tmp_path, lines):
    run = functools.partial(train, "dropout", tmp_path, save_at_start=False)
    kill(4, run)
    assert not list(tmp_path.rglob("*.pdparams"))
    result = run(**KILLED)
    assert agrees(result, 3)
    assert lines()[-1] == "interrupted once; 3 repeated steps agree"


def test_steps_without_a_loss_are_equal(tmp_path):
    """The mean of a batch in which nothing counts is NaN."""

    def step(model, batch):
        return {"loss": Mean(model(batch[0]).sum(), 0)}

    run = functools.partial(train, "dropout", tmp_path, step=step, loss=None, metrics=None)
    kill(3, run)
    assert agrees(run(**KILLED), 2)


def test_sigterm_leaves_nothing_to_repeat(tmp_path, lines):
    with pytest.raises(StoppedError):
        train("dropout", tmp_path, callbacks=[StopsAt(3, terminate)])
    assert agrees(train("dropout", tmp_path), 0)
    assert lines()[-1] == "interrupted once; no step was repeated"


def test_run_that_was_never_interrupted_says_nothing(tmp_path, lines):
    result = train("dropout", tmp_path)
    assert agrees(result, 0) and not result.witness["interruptions"]
    assert not any("interrupted" in line for line in lines())
    assert json.loads((tmp_path / "result.json").read_text())["witness"] == result.witness
    assert not (tmp_path / "witness.bin").exists()


# ------------------------------------------------------------------ different


def scale():
    """Return a number that no checkpoint can hold."""
    return float(os.environ["SCALE"])


def scaling(name):
    """Return a step that scales what has a name in the records."""

    def step(model, batch):
        for layer in model.sublayers():
            if name == "checksum of the buffers" and isinstance(layer, nn.BatchNorm1D):
                layer._momentum = 0.1 * scale()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        is_scaled = name == ("loss" if model.training else "valid/loss")
        return {"loss": loss * scale() if is_scaled else loss}

    return step


class ScalesRate(Callback):
    """Sets the learning rate of step 6."""

    def before_training(self, training):
        self.optimizer = training.optimizer

    def after_step(self, view):
        if view.step == 5:
            self.optimizer.set_lr(0.05 * scale())


@pytest.fixture
def changing(tmp_path, monkeypatch):
    """Return a function that trains a run whose values of a name are scaled."""

    def run(name, number, **options):
        monkeypatch.setenv("SCALE", str(number))
        own = {"step": scaling(name), "loss": None, "metrics": None, **KILLED}
        callbacks = [ScalesRate()] if name == "learning rate" else []
        callbacks += options.pop("callbacks", [])
        return train("BatchNorm", tmp_path, callbacks=callbacks, **{**own, **options})

    return run


@pytest.mark.parametrize(
    "name, step",
    [("loss", 5), ("learning rate", 6), ("checksum of the buffers", 5), ("valid/loss", 5)],
)
def test_difference_is_one_warning_at_the_first_step_that_differs(name, step, changing, lines):
    options = {"save_every_epochs": 0}
    with pytest.raises(ProgramError):
        changing(name, 1, **options, callbacks=[StopsAt(8, stop)])
    result = changing(name, 2, **options, save_every_steps=100)
    (warning,) = (line for line in lines() if BEFORE in line)
    found = result.witness["differing"][0]
    assert warning.startswith(f"step {step}: the {name} is {found['now']}, but was")
    assert f"was {found['before']} before" in warning and "model_epoch0_step4" in warning
    assert "paddle-mnist prove" in warning and "docs/en/resume.md" in warning
    assert (found["step"], found["name"]) == (step, name)
    assert lines()[-1].startswith(f"interrupted once; repeated step {step} differs: ")
    assert json.loads((result.weights.parent / "result.json").read_text())["witness"] == (
        result.witness
    )


def test_difference_stops_the_run_before_another_checkpoint_if_so_chosen(changing, tmp_path):
    """A run that has computed steps 5 to 7 twice stops where the third differs from the first."""
    with pytest.raises(ProgramError):
        changing("loss", 1, callbacks=[StopsAt(8, stop)], save_every_epochs=0)
    files = {path: path.read_bytes() for path in (tmp_path / "checkpoints").iterdir()}
    for _ in range(2):
        with pytest.raises(RepeatedStepError, match=r"step 5: the loss is .* stop_on_difference"):
            changing("loss", 2, stop_on_difference=True, save_every_steps=1, save_every_epochs=0)
        assert files == {path: path.read_bytes() for path in (tmp_path / "checkpoints").iterdir()}
    result = changing("loss", 1, save_every_epochs=0)
    assert result.witness["interruptions"] == 3 and result.witness["repeated"] == 2 + 3
    assert result.witness["differing"] == []  # the steps that differed were never saved


def test_error_in_a_step_that_was_computed_before_is_a_warning(tmp_path, lines):
    run = functools.partial(train, "dropout", tmp_path, save_every_steps=100)
    kill(4, run)
    for step in (4, 2):  # 4 was never whole
        kill(step, run)
    (warning,) = (line for line in lines() if "may differ" in line)
    assert warning.startswith("step 2 fails, but the interrupted run had computed it; ")
    assert "model_epoch0_step0 does not restore" in warning


# ------------------------------------------------------------------ what may change


def test_other_threads_epochs_or_versions_are_not_compared(tmp_path, monkeypatch, lines):
    run = functools.partial(train, "dropout", tmp_path)
    kill(3, run)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    kill(4, run)
    run(**KILLED, epochs=3, override="epochs")
    threads, epochs, last = (line for line in lines() if "compared" in line)
    assert threads.endswith("OMP_NUM_THREADS changed") and epochs.endswith(": epochs changed")
    assert last == (
        "interrupted 2 times; no repeated step was compared (OMP_NUM_THREADS changed, epochs "
        "changed)"
    )


def killed_in_two_processes(folder, shards):
    kill(8, functools.partial(train, "BatchNorm", Path(folder), grad_shards=shards))


def resumed_in_two_processes(folder, shards):
    result = train("BatchNorm", Path(folder), grad_shards=shards, **KILLED)
    assert agrees(result, 2), result.witness  # in both


@pytest.mark.slow
@pytest.mark.parametrize("shards", [None, 2])
def test_main_process_keeps_the_records_of_all(shards, tmp_path, lines):
    for name in ("two", "one"):
        spawn(killed_in_two_processes, (str(tmp_path / name), shards), 2, device="cpu")
    spawn(resumed_in_two_processes, (str(tmp_path / "two"), shards), 2, device="cpu")
    result = train("BatchNorm", tmp_path / "one", grad_shards=shards, **KILLED)
    if shards:
        assert agrees(result, 2)
    else:
        assert lines()[-1].endswith("no repeated step was compared (processes changed)")


def test_finished_run_that_trains_on_was_not_interrupted(tmp_path, lines):
    train("dropout", tmp_path)
    result = train("dropout", tmp_path, epochs=3, override="epochs")
    assert result.stopped == "finished" and result.witness["interruptions"] == 0
    assert not any("not compared" in line for line in lines())


def test_finished_run_that_is_evaluated_again_was_not_interrupted(tmp_path, lines):
    train("dropout", tmp_path)
    (tmp_path / "result.json").unlink()
    result = train("dropout", tmp_path)
    assert result.stopped == "finished" and result.witness["interruptions"] == 0
    assert not any("not compared" in line for line in lines())


# ------------------------------------------------------------------ the file


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed after steps 1 to 3."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    kill(4, functools.partial(train, "dropout", folder))
    return folder


def resume(killed, folder, change):
    """Change the file of a copy of the run, and resume the copy."""
    shutil.copytree(killed, folder, dirs_exist_ok=True)
    change(folder / "witness.bin")
    return train("dropout", folder, **KILLED)


def changed_bytes(edit):
    return lambda path: path.write_bytes(edit(path.read_bytes()))


def replaced(make):
    def replace(path):
        path.unlink()
        make(path)

    return replace


OTHERS = {
    "missing": Path.unlink,
    "empty": changed_bytes(lambda data: b""),
    "half a header": changed_bytes(lambda data: data[:40]),
    "no JSON": changed_bytes(lambda data: b"records" + data),
    "another JSON": changed_bytes(lambda data: b'{"step": 1}' + data[data.index(b"\n") :]),
    "a difference of no step": changed_bytes(
        lambda data: data.replace(b'"differing": []', b'"differing": [{}]')
    ),
    "of another run": changed_bytes(lambda data: data.replace(b'"run": "', b'"run": "0')),
    "a pipe": replaced(os.mkfifo),
    "a folder": replaced(Path.mkdir),
    "a link to a device": replaced(lambda path: path.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_file_in_its_place_costs_one_line(name, killed, tmp_path, lines):
    result = resume(killed, tmp_path, OTHERS[name])
    assert result.stopped == "finished" and result.witness["interruptions"] == 1
    before = [line for line in lines() if line.startswith("steps before the interruption")]
    assert len(before) == 1 and "are not compared with repeated ones: " in before[0]
    assert "no repeated step was compared (" in lines()[-1]


def test_end_that_is_torn_anywhere_is_left_out(killed, tmp_path):
    whole, torn = killed / "witness.bin", tmp_path / "witness.bin"
    header, records = witness._read(whole)
    assert len(records) == 3
    for size in range(1, 40):
        torn.write_bytes(whole.read_bytes()[:-size])
        assert witness._read(torn) == (header, records[: 3 - -(-size // 36)])
    for size in (1, 35, 36, 37):
        edit = changed_bytes(lambda data, size=size: data[:-size])
        assert agrees(resume(killed, tmp_path / str(size), edit), 3 - -(-size // 36))


def test_damaged_records_are_left_out_with_one_line(killed, tmp_path, lines):
    def damage(data):
        start = data.index(b"\n") + 1
        for place in (0, 17):  # of the first record, and of the second
            where = start + 36 * (place > 0) + place
            data = data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]
        return data

    assert agrees(resume(killed, tmp_path, changed_bytes(damage)), 1)
    (line,) = (line for line in lines() if "leaving out" in line)
    assert line.endswith("witness.bin: leaving out damaged records (2 of 3)")


def test_link_is_replaced_and_its_target_left_alone(killed, tmp_path):
    target = tmp_path / "target"

    def link(path):
        path.rename(target)
        path.symlink_to(target)

    kept = (killed / "witness.bin").read_bytes()
    assert agrees(resume(killed, tmp_path / "run", link), 3)
    assert target.read_bytes() == kept


def test_file_keeps_the_newest_records(tmp_path, monkeypatch):
    """Those of step 10's evaluation and of steps 11 and 12; the file never has more than eight."""
    monkeypatch.setattr(witness, "MOST", 4)
    run = functools.partial(train, "dropout", tmp_path, epochs=3)
    options = {**KILLED, "save_every_epochs": 0, "save_every_steps": None}
    kill(13, run, **options)
    _, _, records = (tmp_path / "witness.bin").read_bytes().partition(b"\n")
    assert len(records) < 8 * 36
    result = run(**options)
    assert agrees(result, 2) and result.steps == 15


# ------------------------------------------------------------------ version 1.0


@pytest.mark.parametrize("others", [{}, {"witness": None}])
def test_finished_run_without_the_entry_is_not_evaluated_again(others, tmp_path, lines):
    train("dropout", tmp_path)
    path = tmp_path / "result.json"
    entries = json.loads(path.read_text())
    del entries["witness"]
    path.write_text(json.dumps({**entries, **others}))
    result = train("dropout", tmp_path)
    assert result.stopped == "already finished" and result.witness == {}
    assert not any("evaluating again" in line for line in lines())

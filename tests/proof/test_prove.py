"""`prove`: a program that calls `fit` is killed, repeated and compared."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import msgspec
import pytest

from paddle_mnist.checkpoint.names import find_pair, find_run, newest_run
from paddle_mnist.commands.prove import main
from paddle_mnist.errors import ConfigError
from paddle_mnist.proof.compare import differing_files, differing_objects, first_difference
from paddle_mnist.proof.prove import _stops, prove
from paddle_mnist.system.scratch import (
    PLAN,
    VARIABLE,
    StartPlan,
    diverted_to_read,
    find_plan,
    prefix,
)

pytestmark = pytest.mark.timeout(900)  # a busy machine takes long to import Paddle
PROGRAM = Path(__file__).with_name("programs.py")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Each test has a folder of its own, and leaves no scratch folder and no process behind."""
    scratch = tmp_path / "scratch"
    (tmp_path / "here").mkdir()
    scratch.mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield
    assert not [*scratch.glob("paddle_mnist_prove_*")]
    assert not processes(scratch)


def processes(scratch):
    """The processes that `prove` has started and that still live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{VARIABLE}={scratch}".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


# ---------------------------------------------------------------------------- whole programs


@pytest.mark.slow
def test_program_of_all_doors_has_the_same_bits_and_leaves_its_folder_alone():
    """Its second run starts from the first; both are evaluated, loaded and exported."""
    proof = prove(["python", str(PROGRAM)], epochs=2, kills=2)
    assert proof.same_bits and proof.is_deterministic, str(proof)
    assert "ended 2 times" in str(proof) and "the first 2 of 4 epochs" in str(proof)
    assert os.listdir() == ["exported"]  # neither the runs nor the mirror


@pytest.mark.slow
def test_what_a_resume_loses_is_found_and_named(capsys):
    options = ["--kills", "1", "--minutes", "10"]  # a busy machine would cut it
    assert main([*options, "--", "python", str(PROGRAM), "regularizer"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("DIFFERENT\nthe first to differ: step "), printed
    assert "resumed from model_epoch" in printed
    assert "model.0.weight.regularizer: L2Decay" in printed
    assert "metrics.jsonl, step 21 valid/loss: " in printed


@pytest.mark.slow
def test_program_that_differs_by_itself_is_said_not_to_be_deterministic():
    proof = prove(["python", str(PROGRAM), "random"], epochs=1, kills=1)
    assert not proof.same_bits and not proof.is_deterministic
    assert proof.lines[0].startswith("not deterministic") and "step 1 of" in proof.lines[1]


@pytest.mark.slow
@pytest.mark.parametrize("launched", [False, True], ids=["spawned", "launched"])
def test_two_processes_have_the_same_bits_and_leave_no_orphan(launched):
    launch = "-m paddle.distributed.launch --nproc_per_node 2 --backend gloo".split()
    command = [
        "python",
        *(launch if launched else []),
        str(PROGRAM),
        "two",
        "1" if launched else "2",
    ]
    proof = prove(command, epochs=2, kills=2)
    assert proof.same_bits, str(proof)


@pytest.mark.slow
def test_signal_that_lets_the_program_save():
    proof = prove(["python", str(PROGRAM), "alone"], epochs=2, kills=1, signal="TERM")
    assert proof.same_bits, str(proof)


@pytest.mark.slow
def test_interrupt_ends_all_processes():
    """As the keyboard does; the fixture looks for what is left."""
    command = [
        sys.executable,
        "-m",
        "paddle_mnist",
        "prove",
        "--",
        "python",
        str(PROGRAM),
        "two",
        "2",
    ]
    prover = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    scratch = os.environ["TMPDIR"]
    deadline = time.monotonic() + 300
    while len(processes(scratch)) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    prover.send_signal(signal.SIGINT)
    assert prover.wait(60) == 130
    assert "Traceback" not in prover.stderr.read()


# ---------------------------------------------------------------------------- bad input


# Opens its output a second time, which would truncate a file.
REOPENS = (
    "print('error: before it', flush=True); print('end', file=open('/dev/stderr', 'w')); exit(1)"
)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (["no-such-program"], "no-such-program: No such file or directory; expected a program"),
        (["python", "-c", "raise SystemExit(3)"], "before anything is killed: exit code 3"),
        (["python", "-c", "print('error: a line'); exit(1)"], "exit code 1: error: a line"),
        (["python", "-c", "pass"], "without a step of fit; expected a program that calls fit"),
        (["python", "-c", "import os; os.write(1, bytes(2**26)); exit(1)"], "exit code 1"),
        (["python", "-c", REOPENS], "exit code 1: error: before it"),
        (["python", "-c", "import time; time.sleep(60)"], "no second step after 1.2 s"),
    ],
    ids=["missing", "failing", "last line", "without fit", "loud", "reopens stderr", "slow"],
)
def test_program_that_cannot_be_tried_is_one_line(program, words, capsys):
    minutes = "0.02" if "sleep" in program[-1] else "10"
    assert main(["--minutes", minutes, "--", *program]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and printed.err.count("\n") == 1 and not printed.out


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("kills", "0", "kills is 0; expected a number above 0"),
        ("signal", "NONE", "signal is 'NONE'; expected one such as KILL or TERM"),
        ("minutes", "-1", "minutes is -1.0; expected a number above 0"),
        ("minutes", "nan", "minutes is nan; expected a number above 0"),
        ("steps", "0", "steps is 0; expected a number above 0"),
        ("epochs", "0", "epochs is 0; expected a number above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(name, value, error, capsys):
    assert main([f"--{name}", value, "--", "python"]) == 2
    assert capsys.readouterr().err == f"error: {error}\n"


def test_command_needs_a_program_or_a_recipe(capsys):
    for arguments in ([], ["--recipe", "digits", "--", "python"]):
        assert main(arguments) == 2
        expected = "error: expected either `-- PROGRAM [ARGUMENTS]` or --recipe NAME\n"
        assert capsys.readouterr().err == expected


@pytest.mark.slow
def test_program_that_writes_elsewhere_each_time_is_refused():
    with pytest.raises(ConfigError, match=r"no start resumed.*the same output at each start"):
        prove(["python", str(PROGRAM), "elsewhere"], epochs=1, kills=1)


@pytest.mark.slow
def test_program_whose_own_lock_outlives_a_kill_does_not_resume():
    """A second unbroken run would meet the lock, too: that says nothing of the program."""
    proof = prove(["python", str(PROGRAM), "lock"], epochs=1, kills=1)
    assert not proof.same_bits and "after kill 1 it does not resume: exit code 1" in str(proof)
    assert "FileExistsError" in str(proof) and "lock of its own must be free" in str(proof)


# ---------------------------------------------------------------------------- where runs are


def make_plan(folder, pid):
    plan = StartPlan(pid, str(folder / "attempt"))
    (folder / PLAN).write_bytes(msgspec.json.encode(plan))
    return plan


def test_paths_of_a_program_lead_to_the_scratch_folder(tmp_path, monkeypatch):
    """What it has trained there is read there; another run stays where it is."""
    plan = make_plan(tmp_path, os.getpid())
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    run = plan.diverted("runs/mine")
    assert run.is_relative_to(plan.runs) and plan.diverted(run) == run
    assert diverted_to_read("runs/mine") == "runs/mine"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    assert (
        diverted_to_read("runs/mine/checkpoints/model_epoch0") == f"{run}/checkpoints/model_epoch0"
    )
    assert diverted_to_read("runs") == str(run.parent)  # for the newest run
    assert diverted_to_read("runs/other") == "runs/other"
    assert find_run("runs/mine").path == run and newest_run() is None
    for suffix in (".pdparams", ".pdopt"):
        (run / f"net_epoch0{suffix}").touch()
    assert find_pair("runs/mine/net_epoch0.pdparams") == run / "net_epoch0"


@pytest.mark.parametrize("kind", ["missing", "damaged"])
def test_variable_that_was_left_diverts_nothing_and_is_named(kind, tmp_path, monkeypatch, lines):
    make_plan(tmp_path, os.getpid())
    (tmp_path / PLAN).write_text("{") if kind == "damaged" else (tmp_path / PLAN).unlink()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert find_plan() is None and diverted_to_read("runs/mine") == "runs/mine"
    assert [line for line in lines() if f"{VARIABLE} is {tmp_path}" in line and "unset it" in line]


def test_program_whose_prove_was_killed_leaves_its_own_runs_alone(tmp_path, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    make_plan(tmp_path, ended.pid)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=f"{VARIABLE} is .*, whose prove was killed; unset it"):
        find_plan()


def test_scratch_folders_of_killed_proves_are_removed(tmp_path):
    """Not those of others that run, nor those that were kept, nor those of other machines."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [*(f"{prefix()}{name}" for name in ("killed", "runs", "kept")), "paddle_mnist_prove_x"]
    folders = [tmp_path / "scratch" / name for name in names]
    for folder, pid in zip(folders, (ended.pid, os.getpid(), None, ended.pid)):
        (folder / "attempt/runs").mkdir(parents=True)
        if pid:
            make_plan(folder, pid)
    assert main(["--", "no-such-program"]) == 2
    assert [folder.exists() for folder in folders] == [False, True, True, True]
    for folder in folders[1:]:
        shutil.rmtree(folder)


# ------------------------------------------------------------------ what is chosen and compared


def events(epochs, steps, run="/run", inside=True):
    """What a run records."""
    yield {
        "event": "start",
        "run": run,
        "step": 0,
        "epoch": 0,
        "inside": inside,
        "checkpoint": None,
    }
    for epoch in range(epochs):
        for step in range(epoch * steps + 1, (epoch + 1) * steps + 1):
            entry = {"run": run, "step": step, "epoch": epoch}
            yield {"event": "step", **entry}
        yield {"event": "evaluation", "part": 1, **entry}
        yield {"event": "epoch", **entry, "epoch": epoch + 1}


@pytest.mark.parametrize("inside", [True, False])
def test_moments_are_of_all_kinds_in_order_and_one_in_the_second_epoch(inside):
    recorded = [*events(epochs=6, steps=10, inside=inside)]
    for seed in range(20):
        stops = _stops(recorded, 4, random.Random(seed))
        kinds, _, steps, _ = zip(*stops)
        assert {*kinds} == {"step", "evaluation", "epoch"} | ({"save"} if inside else set())
        assert list(steps) == sorted(steps) and len({*steps}) == 4 and any(s <= 20 for s in steps)
        assert 10 < steps[0] <= 20 and steps[-1] >= 45


def write_records(folder, losses, header):
    """Write what the witness of a run has recorded. losses: by step."""
    (folder / "run").mkdir(parents=True)
    records = []
    for step, loss in losses:
        body = struct.pack("<QIddI", step, 0, loss, 0.1, 7)
        records.append(body + struct.pack("<I", zlib.crc32(body)))
    lines = json.dumps({"interruptions": 0, "conditions": {}, **header}).encode(), b"".join(records)
    (folder / "run/witness.bin").write_bytes(b"\n".join(lines))


HEADER = {"repeated": 0, "differing": [], "compared": "all steps", "not_compared": []}
# The steps that each start has computed; the first begins anew, the others at the step before.
STARTS = [(1, 2, 3), (3, 4), (4,), (4, 5)]


@pytest.mark.parametrize(
    ("records", "replaced", "origin"),
    [
        ([(4, 0.25), (5, 0.125)], [], "step2"),
        ([(4, 0.25), (5, 0.5), (4, 0.5)], [], "step2"),  # the last start's agrees again
        ([(4, 0.25), (5, 0.5)], [(4, 0.25, 0.5)], "step2"),
        ([(4, 0.5), (5, 0.5), (4, 0.25)], [], "step3"),
        ([(4, 0.5), (5, 0.5)], [(4, 0.5, 0.25)], "step3"),
        ([(4, 0.5), (5, 0.25)], [], "step3"),
    ],
)
def test_first_step_that_differs_is_named_with_the_start_that_computed_it(
    records, replaced, origin, tmp_path
):
    """Also if a later start has computed it again, or the first record has replaced its own."""
    start, *steps, _, _ = events(1, 5)
    killed = list[dict]()
    for computed in STARTS:
        name = f"model_epoch0_step{computed[0] - 1}" if killed else None
        killed += [{**start, "checkpoint": name}, *(steps[step - 1] for step in computed)]
    same = [(step, 0.5) for step in range(1, 6)]
    write_records(tmp_path / "unbroken", same, HEADER)
    write_records(tmp_path / "again", same, HEADER)
    assert first_difference(tmp_path / "unbroken", tmp_path / "again", [start, *steps]) is None
    names = ("step", "name", "before", "now")
    differing = [dict(zip(names, (step, "loss", *values))) for step, *values in replaced]
    header = {**HEADER, "differing": differing}
    write_records(tmp_path / "killed", [*same[:3], *records], header)
    step = 5 if (5, 0.25) in records else 4
    assert first_difference(tmp_path / "unbroken", tmp_path / "killed", killed) == (
        f"step {step} of /run, which had resumed from model_epoch0_{origin}: loss 0.5 unbroken, "
        "0.25 now"
    )


def test_objects_that_were_not_restored_are_named():
    one, other = (
        [{"event": "objects", "run": "/run", "step": 3, "epoch": 0, "values": values}]
        for values in ({"step.n": "3", "a": "1"}, {"step.n": "0", "a": "1"})
    )
    assert differing_objects(one, other) == ["step.n: 3 unbroken, 0 resumed"]
    assert not differing_objects(one, one)


def test_files_differ_but_for_times_and_paths(tmp_path):
    for name, value in (("one", 0.5), ("other", 0.5)):
        run = tmp_path / name / "runs/mine"
        run.mkdir(parents=True)
        (run / "config.yaml").touch()
        result = {
            "metrics": {"valid/loss": value},
            "seconds": time.time(),
            "path": f"{run}/figures",
        }
        (run / "result.json").write_text(json.dumps(result))
        row = {"step": 1, "epoch": 0, "tag": "train/loss", "value": value, "time": time.time()}
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    one, other = tmp_path / "one", tmp_path / "other"
    assert differing_files(one, other, "killed") == []
    result["witness"] = {**HEADER, "interruptions": 1, "repeated": 3}
    (run / "result.json").write_text(json.dumps(result))
    assert differing_files(one, other, "killed") == []
    (run / "metrics.jsonl").write_text(json.dumps({**row, "value": 0.25}) + "\n")
    expected = "/runs/mine, metrics.jsonl, step 1 train/loss: 0.5 unbroken, 0.25 killed"
    assert differing_files(one, other, "killed") == [expected]

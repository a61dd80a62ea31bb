"""The main job, run as a user runs it: real processes, real signals, real files."""

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

import forked
import numpy as np
import pytest
from conftest import ROOT
from synthetic_data import tiny_splits, write_gzip, write_idx, write_json

from paddle_mnist.checkpoint.manifest import checksum
from paddle_mnist.mnist.cache import open_data

# A small training: 300 images, 10 steps an epoch.
SMALL = ["--recipe", "default", "--epochs", "3", "--batch_size", "32", "--log_every", "4"]
SMALL += ["--figures", "false"]
RUN = "work/output/default"


@pytest.fixture
def train(tool, tiny):
    def run(*args, **kwargs):
        data = () if "--data" in args else ("--data", tiny)
        return tool("train", *(() if "--recipe" in args else SMALL), *data, *args, **kwargs)

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tool_in, tiny):
    """The folder in which a small training ran to its end, unbroken."""
    folder = tmp_path_factory.mktemp("finished")
    tool_in(folder)("train", *SMALL, "--data", tiny)
    return folder


@pytest.fixture
def trained(finished, tmp_path):
    """A copy of that folder, for tests that change the run."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)


def metrics(folder, run=RUN):
    """`metrics.jsonl` without the times."""
    lines = (folder / run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def same_end(folder, finished, run=RUN):
    """Return whether a run ended with the bits and the history of the unbroken one."""
    names = [
        "mnist.pdparams",
        "checkpoints/mnist_epoch2.pdparams",
        "checkpoints/mnist_epoch2.pdopt",
    ]
    for name in names:
        one, other = (base / name for base in (folder / run, finished / RUN))
        assert one.read_bytes() == other.read_bytes(), name
    assert metrics(folder, run) == metrics(finished)
    keys = ("eval_acc", "eval_loss", "valid_acc", "valid_loss", "steps", "epochs", "checkpoint")
    one, other = (
        json.loads((base / "result.json").read_text()) for base in (folder / run, finished / RUN)
    )
    assert [one[key] for key in keys] == [other[key] for key in keys]


# ------------------------------------------------------------------ an unbroken run


def test_result_holds_what_is_promised(finished):
    result = json.loads((finished / RUN / "result.json").read_text())
    assert set(result) == set(
        "dataset eval_acc eval_loss valid_acc valid_loss epochs steps params seed world_size "
        "device train_seconds data_seconds samples_per_second checkpoint paddle numpy "
        "package images_used images_available metrics weights seconds stopped".split()
    )
    assert (result["dataset"], result["epochs"], result["steps"]) == ("tiny.json.gz", 3, 30)
    assert (result["params"], result["seed"], result["world_size"]) == (20_350, 1, 1)
    assert result["eval_acc"] == 1.0  # ten patterns are easily told apart
    assert result["train_seconds"] > 0 and result["samples_per_second"] > 0


def test_run_directory_holds_what_is_promised(finished):
    run = finished / RUN
    promised = (
        "config.yaml metrics.jsonl result.json train.log mnist.pdparams checkpoints vdl .lock"
    )
    assert {path.name for path in run.iterdir()} == set(promised.split())
    assert {path.name for path in (run / "checkpoints").iterdir()} == {
        f"mnist_epoch{e}.{s}" for e in range(3) for s in ("pdparams", "pdopt", "json")
    }
    tags = {line["tag"] for line in metrics(finished)}
    looked = {tag for tag in tags if tag.startswith("watch/")}
    assert tags - looked == {"train/loss", "train/acc", "train/lr", "valid/loss", "valid/acc"}
    assert {tag.split("/")[1] for tag in looked} >= {"conv1", "relu2", "fc", "fc.weight"}
    steps = [line["step"] for line in metrics(finished) if line["tag"] == "train/loss"]
    assert steps == [4, 8, 10, 12, 16, 20, 24, 28, 30]
    epochs = [line["epoch"] for line in metrics(finished) if line["tag"] == "valid/acc"]
    assert epochs == [0, 1, 2]


def test_manifest_binds_what_decides_the_result(finished):
    manifest = json.loads((finished / RUN / "checkpoints/mnist_epoch1.json").read_text())
    assert manifest["state"]["epoch"] == 2 and manifest["state"]["step"] == 20
    assert manifest["config"]["batch_size"] == 32 and "device" not in manifest["config"]
    assert len(manifest["data_hash"]) == 64 and manifest["dataset"] == "tiny.json.gz"
    assert manifest["names"]["fc.bias"] == "linear_0.b_0"
    assert {"paddle", "numpy", "package"} == set(manifest["versions"])


def test_twice_is_the_same_bits(train, tmp_path, finished):
    train()
    same_end(tmp_path, finished)


def test_the_eval_split_is_left_unscored_where_that_is_asked(train, tmp_path, finished):
    """Nothing else changes, and the next start scores it after all."""
    left = train("--final_split", "valid")
    assert "valid accuracy 1.0000" in left.stdout and "eval accuracy" not in left.stdout
    assert "the eval split is not scored" in left.stdout
    result = json.loads((tmp_path / RUN / "result.json").read_text())
    assert not any(name.startswith("eval") for name in (*result, *result["metrics"]))
    again = train("--final_split", "valid").stdout
    assert "this run is finished" in again and "the eval split is not scored" in again
    assert "evaluating again" not in again
    assert "eval accuracy 1.0000" in (scored := train().stdout) and "lr " not in scored
    same_end(tmp_path, finished)


# ------------------------------------------------------------------ the same command again


def test_finished_run_prints_its_result_and_trains_nothing(train, tmp_path):
    first = train()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / RUN).rglob("mnist*")}
    again = train()
    assert "this run is finished" in again.stdout and "--fresh" in again.stdout
    accuracy = next(line for line in first.stdout.splitlines() if line.startswith("eval accuracy"))
    assert accuracy in again.stdout
    assert "lr " not in again.stdout
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / RUN).rglob("mnist*")}


def start(tmp_path, tiny, *args):
    return forked.Popen(
        [sys.executable, ROOT / "tools/train.py", *SMALL, "--data", tiny, *args],
        cwd=tmp_path,
        stderr=subprocess.STDOUT,
    )


def wait_for(path, process):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.005)


@pytest.mark.parametrize("at", ["vdl", "checkpoints/mnist_epoch0.json", "mnist_epoch1"])
def test_killed_run_goes_on_to_the_same_bits(train, tmp_path, tiny, finished, at):
    """SIGKILL: before the first checkpoint, after it, and while the second is written."""
    process = start(tmp_path, tiny)
    path = tmp_path / RUN / at
    wait_for(path if at != "mnist_epoch1" else path.parent / f"checkpoints/{at}.pdparams", process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    output = train().stdout
    assert ("resuming after step" in output) == (at != "vdl")
    same_end(tmp_path, finished)


def test_copied_folder_goes_on_to_the_same_bits(train, tmp_path, tiny, finished):
    """As on another machine: with what the killed process has left of its lock."""
    process = start(tmp_path, tiny)
    wait_for(tmp_path / RUN / "checkpoints/mnist_epoch0.json", process)
    process.kill()
    process.wait()
    shutil.copytree(tmp_path / RUN, tmp_path / "moved")
    shutil.rmtree(tmp_path / RUN)
    record = tmp_path / "moved/.lock.json"
    record.write_text(record.read_text().replace(os.uname().nodename, "former-node"))
    assert "resuming after step" in train("--output", "moved").stdout
    same_end(tmp_path, finished, "moved")


@pytest.mark.parametrize("at", [1, 13, 20, 29])
def test_run_killed_inside_an_epoch_goes_on_from_there(train, tmp_path, tiny, finished, at):
    """Saved after every step; an epoch's last step has two checkpoints: inside it, and after it."""
    process = start(tmp_path, tiny, "--save_every_steps", "1")
    epoch = (at - 1) // 10
    wait_for(tmp_path / RUN / f"checkpoints/mnist_epoch{epoch}_step{at}.json", process)
    process.kill()
    process.wait()
    output = train().stdout
    assert int(re.search(r"resuming after step (\d+)", output)[1]) >= at
    same_end(tmp_path, finished)


def test_what_is_kept(train, tmp_path, finished):
    train("--save_every_steps", "3", "--keep_last", "2", "--keep_epochs", "false")
    names = {path.stem for path in (tmp_path / RUN / "checkpoints").iterdir()}
    accuracies = [line["value"] for line in metrics(finished) if line["tag"] == "valid/acc"]
    best = accuracies.index(max(accuracies))
    assert names == {"mnist_epoch2_step30", "mnist_epoch2", f"mnist_epoch{best}"}
    same_end(tmp_path, finished)


def test_saving_by_the_clock(train, tmp_path, finished):
    train("--save_every_seconds", "0.001", "--keep_last", "99")
    assert len(list((tmp_path / RUN / "checkpoints").glob("*_step*.json"))) == 30
    same_end(tmp_path, finished)


def test_run_killed_again_and_again(train, tmp_path, tiny, finished):
    for epoch in (0, 1):
        process = start(tmp_path, tiny)
        wait_for(tmp_path / RUN / f"checkpoints/mnist_epoch{epoch}.json", process)
        process.kill()
        process.wait()
    train()
    same_end(tmp_path, finished)


def test_keyboard_interrupt_ends_with_130_and_the_run_goes_on(train, tmp_path, tiny, finished):
    process = start(tmp_path, tiny)
    wait_for(tmp_path / RUN / "checkpoints/mnist_epoch0.json", process)
    process.send_signal(signal.SIGINT)
    output = process.stdout.read()
    assert process.wait() == 130 and "Traceback" not in output
    train()
    same_end(tmp_path, finished)


def test_result_lost_after_the_last_checkpoint_is_made_again(train, tmp_path, finished, trained):
    (tmp_path / RUN / "result.json").unlink()
    output = train().stdout
    assert "lr " not in output
    same_end(tmp_path, finished)


def test_damaged_checkpoint_is_named_and_the_one_before_used(train, tmp_path, finished, trained):
    (tmp_path / RUN / "result.json").unlink()
    os.truncate(tmp_path / RUN / "checkpoints/mnist_epoch2.pdopt", 99)
    output = train().stdout
    assert "damaged checkpoint" in output and "mnist_epoch2.pdopt: 99 bytes" in output
    assert "resuming after step 20" in output
    same_end(tmp_path, finished)


def test_no_whole_checkpoint_is_exit_4_and_never_a_start_from_zero(train, tmp_path, trained):
    for path in (tmp_path / RUN / "checkpoints").glob("*.pdparams"):
        path.write_bytes(b"")
    for _ in range(2):
        error = train(expect=4).stderr
        assert "no valid checkpoint" in error and "--fresh" in error


# Entries of a manifest's `config` that came later than others.
YOUNGER = ("augment", "ema", "incremental_from", "accumulate", "schedule_every")
YOUNGER += ("name", "monitor", "mode", "data", "replay_data", "valid")


def test_run_of_an_earlier_version_goes_on(train, tmp_path, finished, trained):
    """Its manifests know nothing of entries and fields that came later."""
    for path in (tmp_path / RUN / "checkpoints").glob("*.json"):
        manifest = json.loads(path.read_text())
        del manifest["computed_by"], manifest["replay_hash"]
        for younger in YOUNGER:
            del manifest["config"][younger]
        for name in [name for name in manifest["config"] if name.startswith("parameters.")]:
            del manifest["config"][name]
        manifest["checksum"] = checksum(manifest)
        path.write_text(json.dumps(manifest))
    assert "this run is finished" in train().stdout
    for path in (tmp_path / RUN / "checkpoints").glob("mnist_epoch2.*"):
        path.unlink()
    (tmp_path / RUN / "result.json").unlink()
    assert "resuming after step 20" in train().stdout
    same_end(tmp_path, finished)
    assert "  ema: 0.0 in the run, 0.9 now" in train("--ema", "0.9", expect=2).stderr
    other = write_json(tmp_path / "other.json.gz", tiny_splits(seed=9))
    assert "  data: '" in train("--data", other, expect=2).stderr


def test_lost_manifests_are_no_start_from_zero(train, tmp_path):
    train("--epochs", "2")
    files = (tmp_path / RUN / "checkpoints").glob("*.json")
    for path in files:
        path.unlink()
    before = {path: path.read_bytes() for path in (tmp_path / RUN / "checkpoints").iterdir()}
    for _ in range(2):
        assert "no manifest is there" in train("--epochs", "2", expect=4).stderr
        (tmp_path / RUN / "result.json").unlink(missing_ok=True)
    assert before == {path: path.read_bytes() for path in before}


def test_weights_that_are_gone_are_written_again(train, tmp_path, finished, trained):
    (tmp_path / RUN / "mnist.pdparams").unlink()
    train()
    same_end(tmp_path, finished)


def test_fresh_after_a_start_that_was_refused(train, tmp_path):
    train("--incremental_from", "nope", expect=4)
    train("--fresh", "--epochs", "1")
    assert (tmp_path / RUN / "result.json").exists()


def test_changed_command_is_refused_with_a_diff(train, tmp_path, finished, tiny):
    train("--epochs", "1")
    other = write_json(tmp_path / "other.json.gz", tiny_splits(seed=9))
    error = train("--epochs", "2", "--seed", "5", "--data", other, expect=2).stderr
    assert "  epochs: 1 in the run, 2 now" in error
    assert "  seed: 1 in the run, 5 now" in error
    assert "  data: '" in error
    assert all(way in error for way in ("--fresh", "--output", "--override epochs,seed,data"))
    assert "valid" not in error  # it comes with the data
    # what does not decide the result may change
    train("--epochs", "1", "--log_every", "3", "--visualdl", "false", "--figures", "false")


def rates(folder):
    return [line["value"] for line in metrics(folder) if line["tag"] == "train/lr"]


def test_override_changes_a_run_on_purpose(train, tmp_path):
    constant = ("--lr_schedule", "constant", "--log_every", "1")
    train(*constant, "--epochs", "1", "--learning_rate", "0.01")
    changed = (*constant, "--epochs", "2", "--learning_rate", "0.002")
    assert "--override learning_rate,epochs" in train(*changed, expect=2).stderr
    assert "--override learning_rate\n" in train(*changed, "--override", "epochs", expect=2).stderr
    train(*changed, "--override", "learning_rate,epochs")
    assert rates(tmp_path) == [0.01] * 10 + [0.002] * 10
    manifest = json.loads((tmp_path / RUN / "checkpoints/mnist_epoch1.json").read_text())
    assert manifest["config"]["learning_rate"] == 0.002


def test_override_of_the_epochs_follows_the_new_schedule(train, tmp_path):
    train("--epochs", "1", "--log_every", "1")  # one-cycle over 10 steps has ended
    train("--epochs", "3", "--log_every", "1", "--override", "epochs")
    train("--epochs", "3", "--log_every", "1", "--output", "unbroken")
    lines = (tmp_path / "unbroken/metrics.jsonl").read_text().splitlines()
    unbroken = [v["value"] for v in map(json.loads, lines) if v["tag"] == "train/lr"]
    assert rates(tmp_path)[10:] == unbroken[10:] and rates(tmp_path)[9] != unbroken[9]


def test_override_that_changes_the_steps_of_an_epoch_is_refused(train):
    train("--epochs", "1")
    args = ("--epochs", "2", "--batch_size", "64", "--override", "epochs,batch_size")
    error = train(*args, expect=2).stderr
    assert "step 10 is number 0 of epoch 2, but an epoch now has 5 steps" in error


def test_fewer_epochs_may_end_a_run_where_it_stands(train, tmp_path, tiny):
    """Stopped after two epochs of which none was evaluated, and then declared finished."""
    process = start(tmp_path, tiny, "--epochs", "40", "--eval_every_epochs", "40")
    wait_for(tmp_path / RUN / "checkpoints/mnist_epoch1.json", process)
    process.kill()
    process.wait()
    done = len(list((tmp_path / RUN / "checkpoints").glob("*.json")))
    train("--epochs", str(done), "--override", "epochs")
    result = json.loads((tmp_path / RUN / "result.json").read_text())
    assert result["epochs"] == done and 0 < result["valid_acc"] <= 1


def test_epoch_that_was_begun_cannot_be_declared_away(train, tmp_path, tiny):
    """Its steps are in the weights: they are no longer those of the epochs before."""
    process = start(tmp_path, tiny, "--epochs", "40", "--save_every_steps", "1")
    wait_for(tmp_path / RUN / "checkpoints/mnist_epoch1_step13.json", process)
    process.kill()
    process.wait()
    for path in (tmp_path / RUN / "checkpoints").glob("mnist_epoch1*"):
        if "_step13." not in path.name:
            path.unlink()
    for path in (tmp_path / RUN / "checkpoints").glob("mnist_epoch[2-9]*"):
        path.unlink()
    error = train("--epochs", "1", "--override", "epochs", expect=2).stderr
    assert "epochs is 1, but" in error and "2 begun or done" in error


def test_result_of_fewer_epochs_does_not_stand_while_a_run_goes_on(train, tmp_path, tiny):
    train("--epochs", "1")
    process = start(tmp_path, tiny, "--epochs", "40", "--override", "epochs")
    wait_for(tmp_path / RUN / "checkpoints/mnist_epoch1.json", process)
    process.kill()
    process.wait()
    assert not (tmp_path / RUN / "result.json").exists()


def test_fewer_epochs_than_done_are_refused(train):
    train("--epochs", "2")
    error = train("--epochs", "1", "--override", "epochs", expect=2).stderr
    assert "epochs is 1, but" in error and "2 begun or done" in error


def test_fresh_moves_aside_and_deletes_nothing(train, tmp_path, finished):
    train("--epochs", "1")
    kept = {p.name: p.read_bytes() for p in (tmp_path / RUN / "checkpoints").iterdir()}
    assert "moved work/output/default to work/output/default.1" in train("--fresh").stdout
    same_end(tmp_path, finished)
    aside = tmp_path / f"{RUN}.1/checkpoints"
    assert kept == {p.name: p.read_bytes() for p in aside.iterdir()}
    train("--fresh", "--epochs", "1")
    assert (tmp_path / f"{RUN}.2/result.json").exists()


def test_fresh_leaves_a_folder_alone_that_is_no_run(train, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/to.txt").write_text("dear")
    error = train("--output", "letters", "--fresh", expect=2).stderr
    assert "not a run's directory" in error and error.count("\n") == 1
    assert (tmp_path / "letters/to.txt").exists()


def test_fresh_with_a_bad_option_moves_nothing(train, tmp_path):
    train("--epochs", "1")
    train("--fresh", "--weight_decay_layers", "nope", expect=2)
    assert (tmp_path / RUN / "result.json").exists()
    assert not (tmp_path / f"{RUN}.1").exists()


def test_fresh_of_the_current_folder_is_refused(train, tmp_path):
    train("--epochs", "1", "--output", ".")
    assert "is the current folder" in train("--output", ".", "--fresh", expect=2).stderr


def test_config_of_a_run_is_to_be_used_again(train, tool, tmp_path):
    train("--epochs", "1", "--override", "epochs", "--seed", "4")
    config = (tmp_path / RUN / "config.yaml").read_text()
    assert "override: []" in config and "seed: 4" in config
    assert "this run is finished" in tool("train", "-c", f"{RUN}/config.yaml").stdout
    assert (
        "epochs: 1 in the run, 2"
        in tool("train", "-c", f"{RUN}/config.yaml", "--epochs", 2, expect=2).stderr
    )


def test_resume_off_and_resume_from_a_path(train, tmp_path, finished, trained):
    assert "start over with --fresh" in train("--resume", "off", expect=2).stderr
    first = f"{RUN}/checkpoints/mnist_epoch0"
    assert "choose another --output" in train("--resume", first, expect=2).stderr
    train("--resume", RUN, "--output", "whole")  # a run's directory: its newest, here its last
    assert (tmp_path / "whole/checkpoints/mnist_epoch2.json").exists()
    for suffix in ("", ".pdparams", ".json"):
        train("--resume", first + suffix, "--output", f"there{suffix}")
        one = tmp_path / f"there{suffix}/mnist.pdparams"
        assert one.read_bytes() == (finished / RUN / "mnist.pdparams").read_bytes()
    # the same command again
    assert "this run is finished" in train("--resume", first, "--output", "there").stdout
    manifest = json.loads((tmp_path / "there/checkpoints/mnist_epoch2.json").read_text())
    first_manifest = json.loads((tmp_path / f"{first}.json").read_text())
    assert manifest["parent"] == first_manifest["run_id"] != manifest["run_id"]
    assert metrics(tmp_path, "there") == metrics(finished)
    for name, code in {"nope": 4, ".": 4, "": 2}.items():
        assert train("--resume", name, "--output", "x", expect=code).stderr.count("\n") == 1


def test_same_images_in_another_form_are_the_same_data(train, tmp_path):
    idx = write_idx(tmp_path / "idx", tiny_splits({"train": 64, "valid": 8, "eval": 20}))
    splits = {mode: (s.images, s.labels) for mode, s in open_data(str(idx)).splits.items()}
    packed = write_json(tmp_path / "a.json.gz", splits)
    small = ("--eval_limit", "20", "--epochs", "1")
    train("--data", packed, *small)
    assert "this run is finished" in train("--data", idx, *small).stdout


def test_any_set_of_the_same_form_is_trained(train, tool, tmp_path):
    """As Fashion-MNIST and KMNIST are: four IDX files in a folder, which gives the name."""
    splits = tiny_splits({"train": 200, "valid": 40, "eval": 50}, seed=7)
    folder = write_idx(tmp_path / "kimono", splits)
    limits = (
        "--eval_limit",
        "50",
        "--batch_size",
        "16",
        "--epochs",
        "6",
        "--learning_rate",
        "0.02",
    )
    out = train("--data", folder, *limits, "--output", "run").stdout
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["dataset"] == "kimono" and "MNIST" not in out.split("eval accuracy")[1]
    assert result["eval_acc"] > 0.9 and result["steps"] == 6 * 13

    table = tool("eval", "--output", "run").stdout
    assert "class  precision  recall" in table and "digit" not in table
    assert "classes" not in json.loads(tool("eval", "--output", "run", "--json").stdout)
    names = [f"garment {number}" for number in range(10)]
    (folder / "classes.txt").write_text("\n".join(names))
    report = json.loads(tool("eval", "--output", "run", "--json").stdout)
    assert report["classes"] == names
    assert list(report["per_class"]) == list("0123456789")
    table = tool("eval", "--output", "run").stdout
    assert re.search(r"^garment 3 +\d\.\d{4}  \d\.\d{4}", table, re.M)
    assert len(re.findall(r"^ *\d+ .* \d+  garment \d$", table, re.M)) == 10  # of the matrix
    (folder / "classes.txt").write_text("shirt")
    assert "classes.txt: 1 lines; expected 10" in tool("eval", "--output", "run", expect=3).stderr


# ------------------------------------------------------------------ what can be in the way


def test_second_process_in_a_directory_gets_75(train, tmp_path, tiny):
    process = start(tmp_path, tiny, "--epochs", "200")
    wait_for(tmp_path / RUN / "config.yaml", process)
    assert "another process is training there" in train(expect=75).stderr
    process.kill()
    process.wait()
    train("--fresh")  # the lock died with its holder


def test_training_that_lost_its_lock_leaves_the_run_to_the_other(train, tmp_path, tiny, finished):
    """It was suspended, and taken for dead; continued, it changes nothing of the run any more."""
    process = start(tmp_path, tiny)
    wait_for(tmp_path / RUN / "checkpoints/mnist_epoch0.json", process)
    process.send_signal(signal.SIGSTOP)
    record = tmp_path / RUN / ".lock.json"
    values = json.loads(record.read_text())
    values["process"]["host"] = "gone-node"
    record.write_text(json.dumps(values))
    os.utime(record, (0, 0))
    error = train(expect=75).stderr
    assert f"process {process.pid} on host gone-node" in error
    assert "pass --break_lock_after SECONDS" in error
    assert "breaking the lock of" in train("--break_lock_after", "3600").stdout
    same_end(tmp_path, finished)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and "has lost its lock" in output, output
    same_end(tmp_path, finished)


def test_file_where_the_folder_should_be(train, tmp_path):
    (tmp_path / "taken").write_text("mine")
    error = train("--output", "taken", expect=7).stderr
    assert error.startswith("error: taken: cannot write") and error.count("\n") == 1
    assert (tmp_path / "taken").read_text() == "mine"


def test_no_permission(train):
    error = train("--output", "/sys/paddle_mnist", expect=7).stderr  # root is refused there too
    assert error.startswith("error: /sys/paddle_mnist: cannot write") and error.count("\n") == 1


def test_full_disk_while_logging_stops_and_the_run_goes_on(train, tmp_path, finished):
    """/dev/full takes nothing: No space left on device."""
    train("--epochs", "1")
    log = tmp_path / RUN / "train.log"
    log.unlink()
    log.symlink_to("/dev/full")
    error = train("--override", "epochs", expect=7).stderr
    assert "train.log: cannot write (No space left on device)" in error and error.count("\n") == 1
    log.unlink()
    train("--override", "epochs")
    assert (tmp_path / RUN / "result.json").exists()


@pytest.mark.parametrize("visualdl", ["true", "false"])
def test_disk_that_takes_no_more_stops_and_the_run_goes_on(
    tmp_path, tiny, train, finished, visualdl
):
    """Files may grow to 2,000 bytes: the metrics or VisualDL's file are the first to be larger."""
    process = forked.run(
        [sys.executable, ROOT / "tools/train.py", *SMALL, "--data", tiny, "--visualdl", visualdl],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        limits={resource.RLIMIT_FSIZE: (2000, 2000)},
        timeout=120,
    )
    assert process.returncode == 7, process.stderr
    assert process.stderr.startswith("error: ") and process.stderr.count("\n") == 1
    train()
    same_end(tmp_path, finished)


def test_diverged_training_names_the_step_and_ends_with_6(train):
    error = train("--learning_rate", "1e30", "--optimizer", "sgd", expect=6).stderr
    assert "the loss is" in error and "at epoch 1, step" in error and error.count("\n") == 1


def test_diverged_at_the_last_step_is_no_success(train, tmp_path):
    """A loss is taken before its step: the last step's damage shows in no training loss."""
    options = "--learning_rate 1e38 --optimizer sgd --lr_schedule constant --epochs 1"
    error = train("--train_limit", "32", *options.split(), expect=6).stderr
    assert "finite" in error and "epoch 1, step 1" in error and error.count("\n") == 1
    assert not (tmp_path / RUN / "checkpoints/mnist_epoch0.json").exists()
    assert not (tmp_path / RUN / "result.json").exists()


@pytest.mark.parametrize(
    "content", ['{"steps": 30}', "[]", "5", '{"checkpoint": "mnist_epoch2"', "{}"]
)
def test_damaged_result_is_made_again(train, tmp_path, finished, content, trained):
    (tmp_path / RUN / "result.json").write_text(content)
    train()
    same_end(tmp_path, finished)


@pytest.mark.slow
def test_console_that_takes_no_more_stops_and_the_run_goes_on(train, tmp_path, tiny, finished):
    command = [sys.executable, str(ROOT / "tools/train.py"), *SMALL, "--data", str(tiny)]
    for target in ("> /dev/full", "| head -2"):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {shlex.join(command)} {target}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 7, done.stderr
        assert done.stderr.startswith("error: the console: cannot write")
        assert done.stderr.count("\n") == 1
    train()
    same_end(tmp_path, finished)


@pytest.mark.parametrize("quiet", [False, True])
def test_library_call_logs_like_the_command_unless_quiet(tmp_path, tiny, quiet):
    program = (
        "from paddle_mnist import TrainConfig, train_and_evaluate\n"
        f"config = TrainConfig(data={str(tiny)!r}, epochs=1, figures=False, output='run')\n"
        f"train_and_evaluate(config, quiet={quiet})"
    )
    done = forked.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert done.stdout == "" if quiet else "epoch 1/1" in done.stdout
    assert "epoch 1/1" in (tmp_path / "run/train.log").read_text()


@pytest.mark.parametrize(
    ("device", "said"),
    [("gpu:0", "built without GPU"), ("tpu", "expected auto, cpu"), ("gpu:x", "expected auto")],
)
def test_device_that_is_not_there(train, device, said):
    import paddle

    if device == "gpu:0" and paddle.is_compiled_with_cuda():
        pytest.skip("this Paddle can use a GPU")
    assert said in train("--device", device, expect=5).stderr


def test_xpu_that_is_not_there_recommends_no_gpu_build(train):
    import paddle

    if paddle.is_compiled_with_xpu():
        pytest.skip("this Paddle can use an XPU")
    error = train("--device", "xpu", expect=5).stderr
    assert "paddlepaddle-xpu" in error and "hardware_support/xpu" in error
    assert "gpu" not in error


def test_lower_precision_is_refused_where_there_is_none(train):
    assert (
        "amp is O1, but the device, cpu, has no bfloat16"
        in train("--device", "cpu", "--amp", "O1", expect=5).stderr
    )


BAD = {
    "missing file": (["--data", "nope.json.gz"], 3, "nope.json.gz: no such file or folder"),
    "bad file": (["--data", "bad.json.gz"], 3, "bad.json.gz: 'h' at byte 0"),
    "unknown option": (["--epoch", "3"], 2, "did you mean --epochs?"),
    "bad value": (["--epochs", "-1"], 2, "epochs is '-1'"),
    "unknown recipe": (["--recipe", "defalt"], 2, "did you mean 'default'?"),
    "unknown layer": (["--weight_decay_layers", "fc2"], 2, "the net's layers are conv1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(train, tmp_path, name):
    write_gzip(tmp_path / "bad.json.gz", b"hello")
    args, code, message = BAD[name]
    error = train(*args, expect=code).stderr
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


# ------------------------------------------------------------------ evaluation


def test_eval_gives_the_runs_result(tool, finished):
    result = json.loads((finished / RUN / "result.json").read_text())
    for checkpoint in ("latest", f"{RUN}/mnist.pdparams", f"{RUN}/checkpoints/mnist_epoch2"):
        report = json.loads(tool("eval", "--checkpoint", checkpoint, "--json", cwd=finished).stdout)
        assert report["accuracy"] == result["eval_acc"]
        assert report["loss"] == result["eval_loss"]
        assert report["count"] == 70 == sum(map(sum, report["confusion_matrix"]))
        assert set(report["per_class"]["3"]) == {"precision", "recall", "f1-score", "support"}


def test_eval_best_is_the_highest_validation(tool, finished):
    report = json.loads(
        tool("eval", "-k", "best", "--split", "valid", "--json", cwd=finished).stdout
    )
    accuracies = [line["value"] for line in metrics(finished) if line["tag"] == "valid/acc"]
    assert report["accuracy"] == max(accuracies)
    best = accuracies.index(max(accuracies))
    assert report["checkpoint"].endswith(f"mnist_epoch{best}.pdparams")


def test_eval_prints_a_table(tool, finished):
    text = tool("eval", cwd=finished).stdout
    assert "mnist_epoch2.pdparams on tiny.json.gz, eval: accuracy 1.0000" in text
    assert "class  precision  recall  F1" in text
    assert "confusion matrix (row: the class, column: predicted)" in text


@pytest.mark.parametrize("data", ["digits", "mnist"])
def test_eval_of_digits_says_digit(tool, request, data):
    where = data if data == "digits" else str(request.getfixturevalue("real_data"))
    text = tool("eval", "-k", "pretrained", "--data", where).stdout
    assert "digit  precision  recall  F1" in text
    assert "(row: the digit, column: predicted)" in text


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["-k", "nope.pdparams"], 4, "No such file"),
        (["-k", "latest", "--output", "empty"], 4, "no checkpoint there"),
        (["-k", "bad.pdparams"], 4, "not a file of paddle.save"),
        (["-k", "other.pdparams"], 4, "does not fit the model"),
        (["--split", "test"], 2, "invalid choice"),
        (["--data", "nope"], 3, "nope: no such file"),
        (["-k", ""], 4, "expected latest, best, pretrained, or a path"),
        (["-k", "."], 4, "no checkpoint there"),
    ],
)
def test_eval_names_what_is_wrong(tool, finished, args, code, said):
    import paddle

    (finished / "bad.pdparams").write_bytes(b"hello")
    paddle.save({"w": paddle.ones([2])}, str(finished / "other.pdparams"))
    assert said in tool("eval", *args, cwd=finished, expect=code).stderr


def test_eval_never_takes_other_images_than_the_runs(tool, tmp_path, tiny):
    """Trained on what the environment named; then that is gone, or names something else."""
    path = write_json(tmp_path / "mine.json.gz", tiny_splits())
    small = ("--recipe", "default", "--epochs", "1", "--visualdl", "false", "--figures", "false")
    tool("train", *small, PADDLE_MNIST_DATA=str(path))
    assert json.loads(tool("eval", "--json").stdout)["dataset"] == "mine.json.gz"
    write_json(path, tiny_splits(seed=5))
    assert "other images than" in tool("eval", expect=3).stderr
    path.unlink()
    assert "mine.json.gz: no such file" in tool("eval", expect=3).stderr
    assert json.loads(tool("eval", "--json", "--data", tiny).stdout)["dataset"] == "tiny.json.gz"


def test_eval_of_tutorial_files_beside_a_config_of_somebody_else(tool, tmp_path, tiny):
    import paddle

    from paddle_mnist import MNIST

    (tmp_path / "config.yaml").write_text("my: own")
    (tmp_path / "checkpoint").mkdir()
    paddle.save(MNIST().state_dict(), str(tmp_path / "checkpoint/mnist_epoch0.pdparams"))
    args = ("-k", "checkpoint/mnist_epoch0.pdparams", "--data", tiny, "--json")
    assert json.loads(tool("eval", *args).stdout)["count"] == 70
    assert json.loads(tool("eval", *args[:2], "--json").stdout)["dataset"] == "digits"


def test_limit_that_leaves_classes_out_is_warned_of_once(train, tmp_path):
    splits = tiny_splits()
    splits["train"] = splits["train"][0], np.sort(splits["train"][1])
    data = write_json(tmp_path / "sorted.json.gz", splits)
    output = train("--data", data, "--epochs", "1", "--train_limit", "32").stdout
    assert output.count("train_limit is 32: the first 32 of 300 train images: none of class") == 1


@pytest.mark.slow
def test_figures_of_a_part_of_the_images_say_so(train, tool, tmp_path, tiny):
    """In the log, the result, the evaluation of the run, and the figures; of a whole split none."""
    from paddle_mnist import MNIST, MnistDataset, evaluate
    from paddle_mnist.mnist.report import draw
    from paddle_mnist.plots.history import read_history

    limits = ("--train_limit", "150", "--eval_limit", "20", "--epochs", "1", "--log_every", "1")
    first = train(*limits).stdout
    assert "; 150 of 300 / 20 of 60 / 20 of 70 images\n" in first
    for output in (first, train(*limits).stdout):  # trained, and already finished
        line = re.search(r"eval accuracy .*", output)[0]
        assert "(tiny.json.gz, the first 20 of 70 images)" in line
    result = json.loads((tmp_path / RUN / "result.json").read_text())
    assert result["images_used"] == {"train": 150, "valid": 20, "eval": 20}
    assert result["images_available"] == {"train": 300, "valid": 60, "eval": 70}

    own = "the run's own figures are of the first {} images (--{}); these are of all\n"
    for split, said in {
        "eval": own.format("20 of 70", "eval_limit 20"),
        "valid": own.format("20 of 60", "eval_limit 20"),
        "train": own.format("150 of 300", "train_limit 150"),
    }.items():
        done = tool("eval", RUN, "--split", split, "--json")
        assert said in done.stderr and json.loads(done.stdout)["count"] > 20
    other = write_json(tmp_path / "other.json.gz", tiny_splits(seed=3))
    assert "own figures" not in tool("eval", RUN, "--data", other).stderr

    history = read_history(tmp_path / RUN / "metrics.jsonl")
    for limit, note in ((20, "the first 20 of 70 images"), (None, "")):
        dataset, model = MnistDataset("eval", str(tiny), limit), MNIST()
        drawn = draw(model, dataset, evaluate(model, dataset), history)
        for name in ("confusion_matrix", "per_class"):
            title = drawn[name].axes[0].get_title("left")
            assert title.endswith(f"\n{note}") if note else "\n" not in title
        assert (note or "70 images") in drawn["mistakes"].get_suptitle()
        legend = [text.get_text() for text in drawn["curves"].axes[0].get_legend().get_texts()]
        assert legend == ["train", "valid: the first 20 of 60 images" if note else "valid"]


def test_whole_splits_are_not_said_to_be_limited(finished, tool_in, tiny):
    log = (finished / RUN / "train.log").read_text()
    assert "; 300 / 60 / 70 images\n" in log and " of 70" not in log and "the first" not in log
    result = json.loads((finished / RUN / "result.json").read_text())
    assert result["images_used"] == result["images_available"]
    assert "own figures" not in tool_in(finished)("eval", RUN).stderr


# ------------------------------------------------------------------ digits


@pytest.mark.slow
def test_plain_command_without_mnist_trains_on_digits_and_says_so(tool, tmp_path):
    done = tool("train")
    result = json.loads((tmp_path / "work/output/digits/result.json").read_text())
    assert result["dataset"] == "digits" and result["eval_acc"] >= 0.975
    assert "accuracies are not MNIST's" in done.stdout
    assert "(scikit-learn's digits, not MNIST)" in done.stdout
    log = (tmp_path / "work/output/digits/train.log").read_text()
    assert "not MNIST" in log
    manifest = json.loads(
        (tmp_path / "work/output/digits/checkpoints/mnist_epoch0.json").read_text()
    )
    assert manifest["dataset"] == "digits"
    assert json.loads(tool("eval", "--json").stdout)["accuracy"] == result["eval_acc"]

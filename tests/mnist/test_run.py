"""The commands `train` and `eval`: output, exit codes, and the run directory."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import forked
import psutil
import pytest
from conftest import ROOT, SMALL
from synthetic_data import tiny_splits, write_gzip, write_idx, write_json

PLAIN = [*SMALL, "--figures", "false", "--visualdl", "false", "--watch", "0"]


@pytest.fixture
def train(tool, tiny):
    def run(*args, **kwargs):
        data = () if "--data" in args else ("--data", tiny)
        output = () if "--output" in args else ("--output", "run")
        return tool("train", *PLAIN, *data, *output, *args, **kwargs)

    return run


@pytest.fixture
def trained(run_of_command, tmp_path):
    """A copy of a finished run, for tests that change it."""
    return shutil.copytree(run_of_command, tmp_path / "run")


def metrics(run, tag=""):
    """`metrics.jsonl` without the times, and without what `watch` logs."""
    entries = map(json.loads, (run / "metrics.jsonl").open())
    return [
        {key: value for key, value in entry.items() if key != "time"}
        for entry in entries
        if tag in entry["tag"] and not entry["tag"].startswith("watch/")
    ]


def result(run):
    return json.loads((run / "result.json").read_text())


def same_end(run, unbroken, name="mnist"):
    """Assert that a run ended with the bits and the history of an unbroken one.

    name: the prefix of its files.
    """
    for file in ("{}.pdparams", "checkpoints/{}_epoch2.pdopt"):
        found, expected = run / file.format(name), unbroken / file.format("mnist")
        assert found.read_bytes() == expected.read_bytes(), file
    assert metrics(run) == metrics(unbroken)
    assert result(run)["checkpoint"] == f"{name}_epoch2"
    for key in "eval_acc eval_loss valid_acc valid_loss steps epochs".split():
        assert result(run)[key] == result(unbroken)[key], key


# ------------------------------------------------------------------ an unbroken run


def test_run_directory_has_the_documented_files(run_of_command):
    run = run_of_command
    names = "config.yaml metrics.jsonl result.json train.log mnist.pdparams checkpoints vdl figures"
    assert {path.name for path in run.iterdir()} == {*names.split(), ".lock"}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {
        f"mnist_epoch{e}.{s}" for e in range(3) for s in ("pdparams", "pdopt", "json")
    }
    keys = "dataset eval_acc eval_loss valid_acc valid_loss epochs steps params seed world_size "
    keys += "device train_seconds data_seconds samples_per_second checkpoint paddle numpy package "
    keys += "images_used images_available metrics weights weights_file seconds stopped witness"
    values = result(run)
    assert set(values) == set(keys.split())
    assert (values["dataset"], values["epochs"], values["steps"]) == ("tiny.json.gz", 3, 30)
    assert (values["params"], values["seed"], values["world_size"]) == (20_350, 1, 1)
    assert values["eval_acc"] == 1.0  # ten patterns are easily told apart
    assert values["images_used"] == values["images_available"]
    steps = [entry["step"] for entry in metrics(run, "train/loss")]
    assert steps == [4, 8, 10, 12, 16, 20, 24, 28, 30]
    assert [entry["epoch"] for entry in metrics(run, "valid/acc")] == [0, 1, 2]
    manifest = json.loads((run / "checkpoints/mnist_epoch1.json").read_text())
    assert manifest["config"]["batch_size"] == 32 and "device" not in manifest["config"]
    assert len(manifest["data_hash"]) == 64 and manifest["names"]["fc.bias"] == "linear_0.b_0"


# ------------------------------------------------------------------ the same command again


def test_finished_run_prints_its_result_and_trains_nothing(train, trained):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("mnist*")}
    output = train().stdout
    assert "this run is finished" in output and "use --fresh to start over" in output
    assert "eval accuracy 1.0000" in output and "lr " not in output
    assert before == {path: path.stat().st_mtime_ns for path in trained.rglob("mnist*")}


def start(tmp_path, tiny, *args):
    command = [sys.executable, ROOT / "tools/train.py", *PLAIN, "--data", tiny, "--output", "run"]
    return forked.Popen([*command, *args], cwd=tmp_path, stderr=subprocess.STDOUT)


# Trains, and sends itself a signal where it begins to save a second time: RUN SIGNAL OPTIONS
INTERRUPTED = """
import os, sys
from faulty_disk import watched
from paddle_mnist.commands.train import main

def interrupt(operation):
    if "_epoch1." in operation.path.name and signals:
        os.kill(os.getpid(), signals.pop())

run, signals = sys.argv[1], [int(sys.argv[2])]
with watched(run, interrupt):
    code = main(["--output", run, *sys.argv[3:]])
sys.exit(code)
"""


def start_interrupted(tmp_path, tiny, number, *args):
    """A training that is interrupted after its first epoch, however busy the machine is."""
    options = [tmp_path / "run", int(number), *PLAIN, "--data", tiny, *args]
    command = [sys.executable, "-c", INTERRUPTED, *options]
    return forked.Popen(command, cwd=tmp_path, stderr=subprocess.STDOUT)


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.005)


def test_second_process_in_a_directory_exits_with_75(train, tmp_path, tiny):
    process = start(tmp_path, tiny, "--epochs", "200")
    wait_for(tmp_path / "run/config.yaml", process)
    assert "another process is training there" in train(expect=75).stderr
    process.kill()
    process.wait()
    train("--fresh", "--epochs", "1")  # the lock died with its holder


def test_suspended_run_whose_lock_is_broken_exits_with_75(train, tmp_path, tiny, run_of_command):
    """It was taken for dead on another machine; continued, it changes nothing of the run."""
    process = start_interrupted(tmp_path, tiny, signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.005)
    record = tmp_path / "run/.lock.json"
    values = json.loads(record.read_text())
    values["host"] = "gone-node"
    record.write_text(json.dumps(values))
    os.utime(record, (0, 0))
    error = train(expect=75).stderr
    assert f"process {process.pid} on host gone-node" in error and "break_lock_after" in error
    assert "breaking the lock of" in train("--break_lock_after", "3600").stdout
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and "has lost its lock" in output, output
    same_end(tmp_path / "run", run_of_command)


@pytest.mark.parametrize(
    ("lost", "part"), [("*.pdparams", "no valid checkpoint"), ("*.json", "manifests are missing")]
)
def test_lost_checkpoints_exit_with_4_and_never_start_from_zero(train, trained, lost, part):
    (trained / "result.json").unlink()
    for path in (trained / "checkpoints").glob(lost):
        path.unlink()
    for _ in range(2):
        assert part in train(expect=4).stderr


def test_changed_command_exits_with_2_and_a_diff(train, trained, tmp_path):
    other = write_json(tmp_path / "other.json.gz", tiny_splits(seed=9))
    error = train("--epochs", "4", "--seed", "5", "--data", other, expect=2).stderr
    assert "  epochs: 3 in the run, 4 now" in error and "  seed: 1 in the run, 5 now" in error
    assert "  data: '" in error and "valid" not in error
    ways = ("Use --fresh to start over", "another output", "use --override epochs,seed,data")
    assert all(way in error for way in ways)
    again = train("--log_every", "3")  # what does not decide the result may change
    assert "this run is finished" in again.stdout


def test_override_trains_with_the_new_rate(train, trained):
    changed = ("--epochs", "4", "--learning_rate", "0.002", "--lr_schedule", "constant")
    error = train(*changed, "--override", "epochs,lr_schedule", expect=2).stderr
    assert error.endswith("on purpose, use --override learning_rate\n")
    train(*changed, "--override", "epochs,lr_schedule,learning_rate")
    rates = [entry["value"] for entry in metrics(trained, "train/lr")]
    assert rates[-3:] == [0.002] * 3 and 0.002 not in rates[:-3]


def test_schedule_of_ones_own_resumes_and_may_not_change(train, tmp_path):
    args = "--lr_schedule polynomial --power 2 --decay_steps 4 --cycle --log_every 1".split()
    train(*args, "--output", "unbroken")
    train(*args, "--max_steps", "7", "--output", "broken")
    error = train(*args, "--power", "1", "--output", "broken", expect=2).stderr
    assert "  power: 2.0 in the run, 1.0 now" in error
    train(*args, "--output", "broken", "--override", "max_steps")
    for tag in ("train/lr", "train/loss"):
        assert metrics(tmp_path / "broken", tag) == metrics(tmp_path / "unbroken", tag)


def test_fresh_moves_a_run_aside_and_deletes_nothing(train, trained, tmp_path):
    kept = {path.name: path.read_bytes() for path in (trained / "checkpoints").iterdir()}
    train("--fresh", "--weight_decay_layers", "nope", expect=2)
    assert not (tmp_path / "run.1").exists()
    assert "moved run to run.1" in train("--fresh", "--epochs", "1").stdout
    aside = (tmp_path / "run.1/checkpoints").iterdir()
    assert kept == {path.name: path.read_bytes() for path in aside}
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/to.txt").touch()
    assert "not a run's directory" in train("--output", "letters", "--fresh", expect=2).stderr
    assert (tmp_path / "letters/to.txt").exists()


def test_resume_from_a_path_starts_a_new_run(train, trained, tmp_path, run_of_command):
    first = "run/checkpoints/mnist_epoch0"
    assert "another output" in train("--resume", first, expect=2).stderr
    train("--resume", first, "--output", "there")
    same_end(tmp_path / "there", run_of_command)
    assert "this run is finished" in train("--resume", first, "--output", "there").stdout
    manifests = (tmp_path / run / "checkpoints/mnist_epoch2.json" for run in ("there", "run"))
    new, old = (json.loads(path.read_text()) for path in manifests)
    assert new["parent"] == old["run_id"] != new["run_id"]


def test_named_run_resumes_and_is_found_by_all_that_reads_it(
    train, tool, tmp_path, tiny, run_of_command
):
    name, run = "[7]_epoch2", tmp_path / "run"
    process = start_interrupted(tmp_path, tiny, signal.SIGKILL, "--name", name)
    assert process.wait() == -signal.SIGKILL and not (run / "result.json").exists()
    assert (run / f"checkpoints/{name}_epoch0.json").exists()
    train("--name", name)
    same_end(run, run_of_command, name)
    assert not [*run.rglob("mnist*")]
    for other in ((), ("--name", "net")):
        assert f"  name: '{name}' in the run, '" in train(*other, expect=2).stderr
    assert json.loads(tool("eval", "run", "--json").stdout)["accuracy"] == 1.0
    second = f"{name}_epoch1"
    assert f"{second}.pdparams on tiny" in tool("eval", second, "--run", "run").stdout
    tool("export", "run", "exported")
    for weights in (("--run", "run"), ("--model", "exported")):
        assert "example.jpg" in tool("infer", "--example", *weights).stdout
    train("--init_from", "run", "--output", "child", "--name", "child", "--epochs", "1")
    assert (tmp_path / "child/child.pdparams").exists()
    pytest.importorskip("fsspec", reason="needs the extra mirror")
    mirrored = ("--name", name, "--mirror", "copy")
    train(*mirrored)
    shutil.rmtree(run)
    assert f"downloaded {name}_epoch2" in train(*mirrored).stdout
    same_end(run, run_of_command, name)


# ------------------------------------------------------------------ exit codes


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        ("--data bad.json.gz", 3, "bad.json.gz"),
        ("--weight_decay_layers fc2", 2, "did you mean 'fc'?"),
        (
            "--device tpu:0",
            5,
            "expected auto, cpu: the installed Paddle is built for cpu",
        ),
        ("--device npu --nprocs 2", 2, "device is 'npu', one for 2 processes"),
        ("--device cpu --amp O1", 5, "amp"),
        ("--learning_rate 1e30 --optimizer sgd", 6, "epoch 1, step"),
        ("--output taken", 7, "taken: cannot write"),
    ],
)
def test_expected_error_is_one_line_and_an_exit_code(train, tmp_path, args, code, part):
    write_gzip(tmp_path / "bad.json.gz", b"hello")
    (tmp_path / "taken").touch()
    error = train("--epochs", "1", *args.split(), expect=code).stderr
    assert error.startswith("error: ") and part in error and error.count("\n") == 1
    assert not (tmp_path / "run/result.json").exists()


# ------------------------------------------------------------------ evaluation


def test_eval_gives_the_result_of_the_run(tool, run_of_command):
    expected, folder = result(run_of_command), run_of_command.parent
    values = json.loads(tool("eval", "run", "--json", cwd=folder).stdout)
    assert (values["accuracy"], values["loss"]) == (expected["eval_acc"], expected["eval_loss"])
    assert values["count"] == 70 == sum(map(sum, values["confusion_matrix"]))
    assert set(values["per_class"]["3"]) == {"precision", "recall", "f1-score", "support"}
    best = ("eval", "-k", "best", "--output", "run", "--split", "valid", "--json")
    accuracies = [entry["value"] for entry in metrics(run_of_command, "valid/acc")]
    assert json.loads(tool(*best, cwd=folder).stdout)["accuracy"] == max(accuracies)
    text = tool("eval", "run", cwd=folder).stdout
    assert "mnist_epoch2.pdparams on tiny.json.gz, eval: accuracy 1.0000" in text
    assert "class  precision" in text and "confusion matrix" in text
    text = tool("eval", "-k", "pretrained", "--data", "digits").stdout
    assert "digit  precision" in text and "(row: the digit, column: predicted)" in text


def test_eval_never_takes_other_images_than_the_run(tool, tmp_path, tiny):
    """Trained on what the environment named; then that is gone, or names something else."""
    path = write_json(tmp_path / "mine.json.gz", tiny_splits())
    tool("train", *PLAIN, "--epochs", "1", PADDLE_MNIST_DATA=str(path))
    assert json.loads(tool("eval", "--json").stdout)["dataset"] == "mine.json.gz"
    write_json(path, tiny_splits(seed=5))
    assert "not the images that" in tool("eval", expect=3).stderr
    path.unlink()
    assert "mine.json.gz" in tool("eval", expect=3).stderr
    assert json.loads(tool("eval", "--json", "--data", tiny).stdout)["dataset"] == "tiny.json.gz"


# ------------------------------------------------------------------ other data, and parts of them


def test_other_data_of_the_same_form_are_trained_under_their_name(train, tool, tmp_path):
    """Fashion-MNIST and KMNIST are such data: four IDX files in a folder, which gives the name."""
    folder = write_idx(tmp_path / "kimono", tiny_splits({"train": 200, "valid": 40, "eval": 50}))
    output = train("--data", folder, "--epochs", "1").stdout
    assert result(tmp_path / "run")["dataset"] == "kimono"
    assert "MNIST" not in output.split("eval accuracy")[1]
    table = tool("eval", "run").stdout
    assert "digit" not in table
    assert re.search(r"^3 +\d\.\d{4}  \d\.\d{4}", table, re.M)


def test_numbers_of_a_part_of_the_images_say_so(train, tool, tmp_path, tiny):
    """The log and the result do; an evaluation of the run uses all images."""
    limits = ("--train_limit", "150", "--eval_limit", "20", "--epochs", "1")
    first = train(*limits).stdout
    assert "; 150 of 300 / 20 of 60 / 20 of 70 images\n" in first
    for output in (first, train(*limits).stdout):  # trained, and already finished
        assert "the first 20 of 70 images" in re.search(r"eval accuracy .*", output)[0]
    values = result(tmp_path / "run")
    assert values["images_used"] == {"train": 150, "valid": 20, "eval": 20}
    assert values["images_available"] == {"train": 300, "valid": 60, "eval": 70}
    assert json.loads(tool("eval", "run", "--json").stdout)["count"] == 70


@pytest.mark.slow
def test_plain_command_without_mnist_trains_on_digits_and_warns(tool, tmp_path):
    done = tool("train")
    run = tmp_path / "work/output/digits"
    assert result(run)["dataset"] == "digits" and result(run)["eval_acc"] >= 0.975
    for text in (done.stdout, (run / "train.log").read_text()):
        assert "(scikit-learn's digits, not MNIST)" in text
    assert json.loads(tool("eval", "--json").stdout)["accuracy"] == result(run)["eval_acc"]

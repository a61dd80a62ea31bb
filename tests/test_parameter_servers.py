"""Parameter servers: real ones, on Paddle 2.6.2, which are started, killed and resumed."""

import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import paddle
import pytest
from conftest import ROOT
from process_jobs import living, start_job
from synthetic_data import tiny_splits, write_json

from paddle_mnist import MNIST, MnistDataset, evaluate
from paddle_mnist.checkpoint.safe_load import safe_load

SCRIPT = ROOT / "examples/parameter_servers.py"


def are_here():
    """Return whether this environment can run parameter servers."""
    try:
        importlib.import_module("google.protobuf.pyext._message")
        importlib.import_module("paddle.distributed.communicator")
    except (ImportError, TypeError):
        return False
    return True


served = pytest.mark.skipif(not are_here(), reason="no parameter servers here")


@pytest.mark.skipif(are_here(), reason="there are parameter servers here")
def test_without_parameter_servers_names_the_alternative():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "paddle-mnist train --nprocs" in done.stderr


def start(folder, servers, trainers, *args, log="log"):
    """The launcher's process."""
    counts = ["--server_num", servers, "--trainer_num", trainers, "--log_dir", log]
    command = [sys.executable, "-m", "paddle.distributed.launch", *counts]
    return start_job([*command, SCRIPT, *args], folder, subprocess.STDOUT)


def members(process):
    """The living servers and trainers of a job: numbers, by role and rank."""
    numbers = {}
    for number, environment, _ in living(process):
        if role := environment.get("TRAINING_ROLE"):
            numbers[f"{role} {sum(name.startswith(role) for name in numbers)}"] = number
    return numbers


def run(folder, servers, trainers, *args, log="log"):
    """(loss, accuracy) before the first epoch and after each, as trainer 0 tells them."""
    process = start(folder, servers, trainers, *args, log=log)
    try:
        out, _ = process.communicate(timeout=600)
    finally:
        for number in [process.pid, *members(process).values()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
    lines = Path(folder, log, "workerlog.0").read_text()
    assert process.returncode == 0, lines[-3000:] + out[-3000:]
    results = re.findall(r"eval loss ([\d.]+) acc ([\d.]+)", lines)
    return [(float(loss), float(accuracy)) for loss, accuracy in results]


@served
def test_other_servers_and_trainers_continue_from_what_was_saved(tmp_path, tiny):
    """2 servers and 2 trainers, then 1 server and 3 trainers, which begin where those ended.

    Nobody waits for anybody: at a learning rate of 0.02 the loss sometimes goes up for an epoch.
    """
    options = ["--data", tiny, "--batch_size", 32, "--learning_rate", 0.005, "--epochs", 2]
    first = run(tmp_path, 2, 2, *options, "--output", "first")
    further = ["--start_from", "first/persistables", "--output", "further"]
    second = run(tmp_path, 1, 3, *options, *further, log="further.log")
    assert second[0][0] == pytest.approx(first[-1][0], abs=2e-5)  # saved with six digits
    assert second[-1][0] < second[0][0] < first[0][0]
    # what trainer 0 writes is what the servers had
    model = MNIST()
    model.set_state_dict(paddle.load(str(tmp_path / "first/mnist.pdparams")))
    assert evaluate(model, MnistDataset("eval", str(tiny))).loss == pytest.approx(
        first[-1][0], abs=2e-5
    )


@served
@pytest.mark.timeout(600)
def test_synchronous_steps_equal_those_of_one_process(tmp_path):
    """Nine steps, the last with two images for three trainers. They differ as roundings do: each
    may push a unit of the net over zero, and some steps later that is to be seen."""
    data = write_json(tmp_path / "few.json.gz", tiny_splits({"train": 58, "valid": 10, "eval": 10}))
    options = ["--sync", "--data", data, "--batch_size", 7, "--learning_rate", 0.05]
    run(tmp_path, 1, 1, *options, "--epochs", 0, "--output", "begin", log="begin.log")
    begin = weights(tmp_path / "begin")
    expected = trained_alone(begin, data)
    for number, (servers, trainers) in enumerate([(2, 2), (1, 3)]):
        folder = f"run{number}"
        run(tmp_path, servers, trainers, *options, "--output", folder, log=f"{folder}.log")
        trained = weights(tmp_path / folder)
        for name, value in expected.items():
            moved = np.abs(value - begin[name]).max()
            np.testing.assert_allclose(trained[name], value, rtol=0, atol=moved / 200)


def weights(folder):
    values = safe_load(folder / "mnist.pdparams")
    return {name: value for name, value in values.items() if "@" not in name}


def trained_alone(begin, data):
    """The weights after plain steps of one process over the same batches."""
    model = MNIST()
    model.set_state_dict(begin)
    optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
    dataset = MnistDataset("train", str(data))
    order = np.random.RandomState([1, 0]).permutation(len(dataset))
    for start in range(0, len(order), 7):
        images, labels = map(paddle.to_tensor, dataset.batch(order[start : start + 7]))
        paddle.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.clear_grad()
    return {name: value.numpy() for name, value in model.state_dict().items()}


@served
@pytest.mark.parametrize("who", ["TRAINER 1", "launch"])
def test_killed_member_ends_all(tmp_path, tiny, who):
    process = start(tmp_path, 2, 2, "--data", tiny, "--epochs", 500, "--output", "run")
    log = tmp_path / "log/workerlog.0"
    while not log.exists() or "epoch 1: " not in log.read_text():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    processes = members(process)
    assert len(processes) == 4
    os.kill(process.pid if who == "launch" else processes[who], signal.SIGKILL)
    killed = time.monotonic()
    while members(process):
        assert time.monotonic() < killed + 20, "an orphan is left"
        time.sleep(0.1)
    assert process.wait(20) != 0

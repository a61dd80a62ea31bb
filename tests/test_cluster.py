"""The recipes for schedulers in examples/cluster, run as far as this can be done on one machine."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import kubernetes_validate
import psutil
import pytest
import yaml
from conftest import ROOT
from fit_rows import bits, train
from slurm_node import slurm

from paddle_mnist.commands import Parser
from paddle_mnist.commands._train_options import add_train_options, train_config
from paddle_mnist.errors import CheckpointError, NoProgressError, RunLockedError
from paddle_mnist.system.supervisor import FINAL

CLUSTER = ROOT / "examples/cluster"
SMALL = ["--recipe", "default", "--batch_size", "32", "--log_every", "4", "--figures", "false"]
NOT_AGAIN = {*FINAL, NoProgressError.exit_code} - {0}


def job():
    return yaml.safe_load((CLUSTER / "job.yaml").read_text())


def container():
    return job()["spec"]["template"]["spec"]["containers"][0]


def unit():
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(CLUSTER / "paddle-mnist.service")
    return parser["Service"]


def dockerfile(instruction):
    text = (CLUSTER / "Dockerfile").read_text()
    return re.search(rf"^{instruction} (.*)$", text, re.M)[1]


@pytest.mark.parametrize(
    "words",
    [
        container()["args"],
        json.loads(dockerfile("CMD")),
        shlex.split(unit()["ExecStart"])[1:],
    ],
    ids=["Kubernetes", "Docker", "systemd"],
)
def test_recipe_calls_train_with_options_that_it_has(words):
    parser = Parser(prog="train")
    add_train_options(parser)
    assert words[0] == "train" and train_config(parser.parse_args(words[1:])).output


# ------------------------------------------------------------------ Slurm


@pytest.fixture
def batch(tmp_path):
    """Start the batch script as Slurm does; gives the process. program: of `paddle-mnist`."""
    programs = tmp_path / "programs"
    programs.mkdir()

    def start(program, *words):
        for name, text in {
            "paddle-mnist": program,
            "scontrol": f'echo "$@" >> {tmp_path / "requeued"}',
        }.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        return subprocess.Popen(
            ["bash", CLUSTER / "train.sbatch", *words],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.mark.parametrize("code", [0, 2, 75, 93, 137, 138, 143])
def test_job_that_a_signal_ended_is_requeued(batch, tmp_path, code):
    process = batch(f"exit {code}")
    process.communicate(timeout=60)
    assert process.returncode == code
    assert (tmp_path / "requeued").exists() == (code > 128)


def signal_before_the_end():
    """The signal that Slurm is asked to send to the batch script itself."""
    words = re.search(r"--signal=B:(\w+)@\d+", (CLUSTER / "train.sbatch").read_text())
    return getattr(signal, f"SIG{words[1]}")


@pytest.mark.slow
def test_job_whose_time_is_up_goes_on_from_the_queue_to_the_same_bits(batch, tmp_path, tool, tiny):
    tool("train", *SMALL, "--data", tiny, "--epochs", 5, "--output", "unbroken")
    program = f'exec "{sys.executable}" -m paddle_mnist "$@"'
    words = [*SMALL, "--data", str(tiny), "--epochs", "5", "--output", "run"]
    process = batch(program, *words)
    wait_for(tmp_path / "run/checkpoints/mnist_epoch0.json", process)
    process.send_signal(signal_before_the_end())
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal_before_the_end(), out
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    process = batch(program, *words)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "resuming after step" in out
    weights = [(tmp_path / run / "mnist.pdparams").read_bytes() for run in ("run", "unbroken")]
    assert weights[0] == weights[1]


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(600)
def test_slurm_itself_ends_a_job_whose_time_is_up_and_starts_it_again(tmp_path):
    """It sends the signal in the last 35 s of the minute, which leave time to begin and to save."""
    program = tmp_path / "paddle-mnist"
    # `train` with the script's arguments; once it was requeued, it need not last.
    words = f'"{sys.executable}" "{ROOT}/tests/mirror_script.py" "$@" ${{SLURM_RESTART_COUNT:+0}}'
    program.write_text(f"#!/bin/sh\nshift\nexec {words}\n")
    program.chmod(0o755)
    log, epochs = tmp_path / "log", 30  # of 2.5 s each: longer than the job's minute
    with slurm(tmp_path) as node:
        number = node.call(
            *("sbatch", "--parsable", "--time=1", "--cpus-per-task=1", f"--output={log}"),
            f"--signal=B:{signal_before_the_end().name[3:]}@5",
            *(CLUSTER / "train.sbatch", tmp_path / "run", json.dumps({"epochs": epochs})),
            PATH=f"{tmp_path}:{node.environment['PATH']}",
            PYTHONPATH=os.pathsep.join(sys.path),
        ).strip()
        while (job := node.job(number))["JobState"] in ("PENDING", "RUNNING", "COMPLETING"):
            time.sleep(1)
    text = log.read_text()
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1"), text
    assert "resuming after step" in text
    unbroken = train("Adam", tmp_path / "unbroken", epochs=epochs)
    assert json.loads(text.splitlines()[-1]) == bits(unbroken)


# ------------------------------------------------------------------ Kubernetes, Docker, systemd


def test_kubernetes_takes_the_job_and_gives_up_only_where_another_pod_would_fail_too():
    kubernetes_validate.validate(job(), "1.31", strict=True)
    rules = job()["spec"]["podFailurePolicy"]["rules"]
    may_help = {RunLockedError.exit_code, CheckpointError.exit_code}  # the latter with a mirror
    assert {*rules[0]["onExitCodes"]["values"]} == NOT_AGAIN - may_help
    assert rules[0]["onExitCodes"]["containerName"] == container()["name"]


def test_systemd_takes_the_unit_and_restarts_where_it_helps(tmp_path):
    assert {int(code) for code in unit()["RestartPreventExitStatus"].split()} == NOT_AGAIN
    if program := shutil.which("systemd-analyze"):
        text = (CLUSTER / "paddle-mnist.service").read_text()
        path = tmp_path / "paddle-mnist.service"
        path.write_text(text.replace("/usr/local/bin/paddle-mnist", "/bin/true"))
        done = subprocess.run([program, "verify", path], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr


# A root that is read-only, a file system of its own for /tmp, process 1, another user.
CONTAINER = """
mount -t tmpfs none "$TMPDIR" && mount -o remount,bind,ro / && cd "$0" &&
exec unshare --user --map-user=1000 --map-group=1000 "$@"
"""


@pytest.mark.slow
def test_container_trains_as_another_user_on_a_read_only_root(tmp_path, tiny):
    runs, tmp = tmp_path / "runs", tmp_path / "tmp"  # /tmp itself may hold this very Python
    runs.mkdir()
    tmp.mkdir()
    start = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", CONTAINER]
    environment = dict(word.split("=") for word in dockerfile("ENV").split())
    environment = {name: value.replace("/tmp", str(tmp)) for name, value in environment.items()}
    environment = {**os.environ, **environment, "TMPDIR": str(tmp), "PYTHONPATH": str(ROOT)}
    if subprocess.run([*start, runs, "true"], env=environment, capture_output=True).returncode:
        pytest.skip("needs namespaces: Linux, and leave to make them")
    assert json.loads(dockerfile("ENTRYPOINT")) == ["paddle-mnist"]
    words = [word.replace("/runs", str(runs)) for word in json.loads(dockerfile("CMD"))]
    words = [sys.executable, "-m", "paddle_mnist", *words, *SMALL, "--data", str(tiny)]

    def train(*more):
        return subprocess.Popen(
            [*start, runs, *words, *more],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    process = train("--epochs", "3", "--save_every_steps", "1")
    wait_for(runs / "mnist/checkpoints/mnist_epoch0_step1.json", process)
    first = psutil.Process(process.pid).children()[0]
    assert "paddle_mnist" in first.cmdline()
    first.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 143 and "run again to resume" in out, out
    process = train("--epochs", "3", "--save_every_steps", "1")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "resuming after step" in out, out

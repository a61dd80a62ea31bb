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
import pytest
import yaml
from conftest import ROOT

from paddle_mnist.commands import Parser
from paddle_mnist.commands._train_options import add_train_options, train_config
from paddle_mnist.errors import CheckpointError, NoProgressError, RunLockedError
from paddle_mnist.system.children import FINAL_EXIT_CODES

CLUSTER = ROOT / "examples/cluster"
SMALL = ["--recipe", "default", "--batch_size", "32", "--log_every", "4", "--figures", "false"]
NOT_AGAIN = {*FINAL_EXIT_CODES, NoProgressError.exit_code} - {0}


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


def test_recipes_call_train_with_options_that_it_has():
    calls = {
        "Kubernetes": container()["args"],
        "Docker": json.loads(dockerfile("CMD")),
        "systemd": shlex.split(unit()["ExecStart"])[1:],
    }
    for recipe, words in calls.items():
        parser = Parser(prog="train")
        add_train_options(parser)
        assert words[0] == "train", recipe
        assert train_config(parser.parse_args(words[1:])).output, recipe


@pytest.mark.parametrize(
    ("name", "code", "ends_with"), [("job.yaml", 138, 138), ("paddle-mnist.service", 1, 93)]
)
def test_recipe_supervises_a_custom_script(name, code, ends_with, tool, tmp_path):
    """As a comment says, in the form of the line before it. A script that always fails ends."""
    text = (CLUSTER / name).read_text()
    (line,) = re.findall(r"^ *# (?:args: |ExecStart=\S+ )(.*supervise.*)$", text, re.M)
    words = yaml.safe_load(line) if line.startswith("[") else line.split()
    at = next(at for at, word in enumerate(words) if word.endswith("my.py"))
    script = tmp_path / "my.py"
    words[at - 1 : at + 1] = [tmp_path / "run", script]
    script.write_text("import sys; sys.exit(int(sys.argv[-1]))")
    tool(*words, code, expect=ends_with)


@pytest.fixture
def batch(tmp_path):
    """A function that starts the batch script as Slurm does. program: of `paddle-mnist`."""
    programs = tmp_path / "programs"
    programs.mkdir()

    def start(program, *words, **environment):
        requeue = f'echo "$@" >> {tmp_path / "requeued"}'
        for name, text in (("paddle-mnist", program), ("scontrol", requeue)):
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["bash", CLUSTER / "train.sbatch", *words],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "SLURM_JOB_ID": "7", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def wait_for(path, process):
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)
    assert path.exists(), process.communicate()


@pytest.mark.parametrize(
    ("code", "environment", "is_requeued"),
    [
        (0, {}, False),
        (75, {}, False),
        (129, {}, True),
        (137, {}, False),  # the memory was full
        (138, {"SLURM_RESTART_COUNT": "99"}, True),
        (138, {"SLURM_RESTART_COUNT": "100"}, False),
        (138, {"SLURM_RESTART_COUNT": "2", "MAX_REQUEUES": "2"}, False),
    ],
)
def test_batch_script_requeues_only_after_the_signal_before_the_end(
    batch, tmp_path, code, environment, is_requeued
):
    process = batch(f"exit {code}", **environment)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert (tmp_path / "requeued").exists() == is_requeued
    is_over_limit = code == 138 and not is_requeued
    assert ("not requeued: started again" in out) == is_over_limit, out


@pytest.mark.parametrize(
    ("signals", "is_requeued"), [(["USR1"], True), (["TERM"], False), (["USR1", "TERM"], False)]
)
def test_batch_script_requeues_nothing_after_scancel(batch, tmp_path, signals, is_requeued):
    """Like the training, the program notes the first signal and ends a little later."""
    program = f"""
        trap 'code=${{code:-138}}; touch got-USR1' USR1
        trap 'code=${{code:-143}}; touch got-TERM' TERM
        touch ready
        while [ ! -e got-{signals[-1]} ]; do sleep 0.02; done
        exit $code"""
    process = batch(program)
    wait_for(tmp_path / "ready", process)
    for name in signals:
        process.send_signal(getattr(signal, f"SIG{name}"))
        wait_for(tmp_path / f"got-{name}", process)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (143 if signals == ["TERM"] else 138), out
    assert (tmp_path / "requeued").exists() == is_requeued


def test_batch_script_runs_and_requeues_a_custom_program(batch, tmp_path):
    program = 'echo "$0" "$@"; kill -USR1 $$'
    process = batch("exit 1", "--", "sh", "-c", program, "my.py", "--epochs", "two words")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (138, "my.py --epochs two words\n")
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


@pytest.mark.slow
def test_job_whose_time_is_up_resumes_from_the_queue_to_the_same_bits(batch, tmp_path, tool, tiny):
    tool("train", *SMALL, "--data", tiny, "--epochs", 5, "--output", "unbroken")
    program = f'exec "{sys.executable}" -m paddle_mnist "$@"'
    words = [*SMALL, "--data", str(tiny), "--epochs", "5", "--output", "run"]
    process = batch(program, *words)
    wait_for(tmp_path / "run/checkpoints/mnist_epoch0.json", process)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 138, out
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    process = batch(program, *words)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "resuming after step" in out
    weights = [(tmp_path / run / "mnist.pdparams").read_bytes() for run in ("run", "unbroken")]
    assert weights[0] == weights[1]


def test_kubernetes_restarts_except_where_another_pod_would_fail_too():
    kubernetes_validate.validate(job(), "1.31", strict=True)
    rules = job()["spec"]["podFailurePolicy"]["rules"]
    may_help = {RunLockedError.exit_code, CheckpointError.exit_code}  # the latter with a mirror
    assert {*rules[0]["onExitCodes"]["values"]} == NOT_AGAIN - may_help
    assert rules[0]["onExitCodes"]["containerName"] == container()["name"]


def test_systemd_restarts_except_where_it_would_fail_again(tmp_path):
    assert {int(code) for code in unit()["RestartPreventExitStatus"].split()} == NOT_AGAIN
    if program := shutil.which("systemd-analyze"):
        text = (CLUSTER / "paddle-mnist.service").read_text()
        path = tmp_path / "paddle-mnist.service"
        path.write_text(text.replace("/usr/local/bin/paddle-mnist", "/bin/true"))
        done = subprocess.run([program, "verify", path], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr

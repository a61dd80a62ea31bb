"""Paddle's elastic launch, by the command of the documents: machines leave the run and join it."""

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT
from mirror_servers import free_port
from process_jobs import living, start_job
from test_distributed import SHARDED, end_of, ranks_of

pytestmark = [pytest.mark.release, pytest.mark.timeout(900)]


@pytest.fixture
def etcd(tmp_path):
    """The address of an etcd of the test's own."""
    program = shutil.which("etcd")
    if not program:
        pytest.skip("etcd is not installed")
    if not importlib.util.find_spec("etcd3"):  # not imported: that takes the page's export
        pytest.skip("etcd3 is not installed (extra elastic)")
    clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    folder = ["--data-dir", tmp_path / "etcd", "--listen-peer-urls", peers]
    own = ["--listen-client-urls", clients, "--advertise-client-urls", clients]
    with (tmp_path / "etcd.log").open("w") as log:
        server = subprocess.Popen([program, *folder, *own], stdout=log, stderr=log)
    yield clients.replace("http", "etcd")
    server.kill()
    server.wait()


def wait_for(log, *patterns, after=0, seconds=200):
    """The place in a log where the last of the patterns ends, each sought after the one before."""
    for pattern in patterns:
        deadline = time.monotonic() + seconds
        while True:
            text = log.read_text() if log.exists() else ""
            if results := re.compile(pattern).search(text, after):
                break
            assert time.monotonic() < deadline, (
                f"no {pattern!r} after:\n{text[:after]}\nin {text[after:]}"
            )
            time.sleep(0.1)
        after = results.end()
    return after


HOLDING = """
import re, sys, time
from pathlib import Path
from faulty_disk import watched
from paddle_mnist.commands.train import main
from paddle_mnist.system import signals

saved = set()

def hold_the_second_epoch(operation):
    if operation.call == "fsync":
        saved.update(re.findall(r"mnist_epoch\\d+(?=\\.pdparams)", operation.path.name))
    while len(saved) >= 2 and not Path(sys.argv[1], "continue").exists() and not signals.received():
        time.sleep(0.1)

with watched(sys.argv[1], hold_the_second_epoch):
    code = main(sys.argv[2:])
sys.exit(code)
"""


def elastic(etcd, name, program):
    """Return the page's command for a machine, with the test's addresses, folders and training."""
    page = (ROOT / "docs/en/several-processes.md").read_text()
    (script,) = re.findall(r"^export PROTOCOL_BUFFERS.*?^done$", page, re.MULTILINE | re.DOTALL)
    for its, ours in {
        "etcd://10.0.0.1:2379": etcd,
        "python -m": f"{sys.executable} -m",
        "--nnodes": f"--log_dir {name} --nnodes",
        "paddle-mnist train --grad_shards 8 --output /shared/run": shlex.join(map(str, program)),
    }.items():
        assert script.count(its) == 1, its
        script = script.replace(its, ours)
    return ["sh", "-c", script]


def test_elastic_launch_restarts_shrinks_and_grows_to_the_same_bits(tmp_path, tool, tiny, etcd):
    """A rank is killed, then one of the two nodes, then it comes back.

    Each time they may continue with one process before they do with two. A rank that has saved one
    epoch holds the next until then, so that few epochs last long enough.
    """
    arguments = [*SHARDED, "--epochs", 20, "--data", tiny, "--output"]
    tool("train", *arguments, "unbroken")
    log = tmp_path / "run/train.log"
    resumed, both = "resuming after step", "2 processes start from the same"
    script = tmp_path / "train.py"
    script.write_text(HOLDING)

    def node(name):
        command = elastic(etcd, name, [script, tmp_path, *arguments, tmp_path / "run"])
        path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
        return start_job(command, tmp_path, stderr=subprocess.PIPE, env={"PYTHONPATH": path})

    def wait_for_a_save(*patterns, after=0):
        """Wait until the run holds an epoch, after one that is saved."""
        return wait_for(log, *patterns, *[r"step \d+0/200 valid"] * 2, after=after)

    first, second = node("first"), node("second")
    place = wait_for_a_save(both)
    (rank,) = ranks_of(second).values()
    os.kill(rank, signal.SIGKILL)
    place = wait_for_a_save(resumed, both, after=place)
    second.kill()  # the node, with all that it started
    for number, _, _ in living(second):
        os.kill(number, signal.SIGKILL)
    place = wait_for_a_save(resumed, after=place)
    second = node("second")
    place = wait_for(log, resumed, both, after=place)
    (tmp_path / "continue").touch()
    for process in (first, second):
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, out + err
    assert end_of(tmp_path) == end_of(tmp_path, "unbroken")

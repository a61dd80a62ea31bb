"""What the machine offers this process: its CPUs, in containers too."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

from paddle_mnist import TrainConfig
from paddle_mnist.machine import usable_cpus
from paddle_mnist.processes import hint, processes_to_start

AFFINITY = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

# In a mount namespace of its own a process can have another /sys/fs/cgroup, as in a container.
MOUNT = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
SCRIPT = 'mount --bind "$0" /sys/fs/cgroup && exec "$@"'


@pytest.fixture
def cgroup(tmp_path):
    """Run Python under a cgroup that these files describe; gives what it prints."""
    trial = [*MOUNT, SCRIPT, tmp_path, "true"]
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True).returncode:
        pytest.skip("needs mount namespaces: Linux, and leave to make them")

    def run(files, program):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{text}\n")
        command = [*MOUNT, SCRIPT, tmp_path, sys.executable, "-c", program]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def v1(quota):
    return {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": 100_000}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000"}, AFFINITY),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "20000 100000"}, 1),
        ({"cpu.max": "75000 50000"}, 2),
        (v1(-1), AFFINITY),
        (v1(100_000), 1),
        (v1(150_000), 2),
    ],
    ids=str,
)
def test_quota_of_a_container_limits_the_cpus(cgroup, files, quota):
    program = "from paddle_mnist.machine import usable_cpus; print(usable_cpus())"
    assert int(cgroup(files, program)) == min(quota, AFFINITY)


def test_auto_keeps_to_the_quota_of_a_container(cgroup):
    program = (
        "from paddle_mnist import TrainConfig\n"
        "from paddle_mnist.processes import fast_conv_threads, processes_to_start\n"
        "config = TrainConfig(nprocs='auto', threads='auto', device='cpu')\n"
        "print(processes_to_start(config), fast_conv_threads(config))"
    )
    assert cgroup({"cpu.max": "100000 100000"}, program) == "1 1"


def test_auto_keeps_to_the_limit_in_the_environment(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert usable_cpus() == 1
    assert processes_to_start(TrainConfig(nprocs="auto", device="cpu")) == 1
    assert hint(TrainConfig(device="cpu"), 250_000) is None

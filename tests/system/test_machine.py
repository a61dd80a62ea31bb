"""CPUs are counted, in containers too; plugins' devices and systems without POSIX train."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import paddle
import pytest
from conftest import ROOT

from paddle_mnist.parallel.processes import Processes, processes_to_start
from paddle_mnist.system.environment import usable_cpus

AFFINITY = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

# In a mount namespace of its own a process can have another /sys/fs/cgroup, as in a container.
MOUNT = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
SCRIPT = 'mount --bind "$0" /sys/fs/cgroup && exec "$@"'


def test_usable_cpus_keeps_to_the_quota_of_a_container(tmp_path):
    trial = [*MOUNT, SCRIPT, tmp_path, "true"]
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True).returncode:
        pytest.skip("needs mount namespaces: Linux, and leave to make them")
    program = "from paddle_mnist.system.environment import usable_cpus; print(usable_cpus())"
    command = [*MOUNT, SCRIPT, tmp_path, sys.executable, "-c", program]
    for quota, expected in {"max": AFFINITY, "20000": 1, "150000": 2}.items():
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert int(done.stdout) == min(expected, AFFINITY), done.stderr


def test_auto_keeps_to_the_limit_of_the_environment(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert usable_cpus() == 1
    assert processes_to_start(Processes(nprocs=0), "cpu", 64) == 1


# ------------------------------------------------------------------ devices of plugins


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a command, or a script, in a Python that has a plugin.

    Paddle loads one that offers "npu", twice, in the memory of the host.
    """
    if not (compiler := shutil.which("g++")):
        pytest.skip("needs g++")
    headers = Path(paddle.__file__).parent / "include"
    flags = ["-std=c++17", "-shared", "-fPIC", f"-I{headers}", "-o", tmp_path / "libnpu.so"]
    subprocess.run([compiler, *flags, ROOT / "tests/custom_device.cc"], check=True)
    paths = {"CUSTOM_DEVICE_ROOT": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}

    def run_python(arguments, code=0, program=("-m", "paddle_mnist")):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *program, *arguments.split()],
            cwd=tmp_path,
            env={**os.environ, **paths},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run_python


@pytest.mark.slow
def test_device_of_a_plugin_trains_resumes_and_infers(run, tmp_path, tiny):
    train = f"train --data {tiny} --figures false --visualdl false --device npu:1 --output run"
    run(f"{train} --epochs 1")
    assert "resuming after step" in run(f"{train} --epochs 2 --override epochs")
    assert json.loads((tmp_path / "run/result.json").read_text())["device"] == "npu:1"
    run("export run exported")
    read = "infer --example --model exported --device"
    assert "example.jpg" in run(f"{read} npu:1")
    assert "but Paddle sees 2 NPUs" in run(f"{read} npu:2", code=5)
    assert "expected auto, cpu, npu:N: the installed Paddle is built for cpu, npu" in run(
        f"{read} npu:x", code=5
    )


KILLED = """
from fit_rows import ProgramError, StopsAt, stop, train

options = {"metrics": None, "valid": None, "save_on_exception": False, "save_every_epochs": 0}
options |= {"save_every_steps": 4, "device": "npu:0", "log_every": 1}
try:
    train("SGD with clipping", "run", callbacks=[StopsAt(8, stop)], **options)
except ProgramError:
    train("SGD with clipping", "run", **options)
"""


@pytest.mark.slow
def test_device_of_a_plugin_is_not_waited_for_to_compare_repeated_steps(run):
    words = "interrupted once; 3 repeated log lines agree; only log lines are compared"
    assert words in run("", program=("-c", KILLED))


# ------------------------------------------------------------------ without POSIX

# A system without POSIX, as this package sees it: what others have imported before, they keep.
WITHOUT_POSIX = """
import importlib, os, runpy, select, signal, sys, time, types, warnings
for name in {others!r}.split():
    importlib.import_module(name)
for module, names in {gone!r}.items():
    whole = sys.modules[module]
    part = types.ModuleType(module)
    vars(part).update({{k: v for k, v in vars(whole).items() if k not in names.split()}})
    sys.modules[module] = part
sys.modules.update(dict.fromkeys({modules!r}.split()))
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
OTHERS = (
    "subprocess multiprocessing.sharedctypes tempfile shutil sklearn.metrics sklearn.datasets "
    "scipy.ndimage joblib visualdl matplotlib.figure matplotlib.backends.backend_agg filelock "
    "simdjson isal.igzip threadpoolctl msgspec yaml tqdm PIL.Image paddle"
)
GONE = {
    "os": "EX_OK O_CLOEXEC O_DIRECTORY O_DSYNC O_NOFOLLOW O_NONBLOCK O_SYNC PRIO_PROCESS WNOHANG "
    "chown fchmod fchown fork forkpty get_blocking getegid geteuid getgid getgroups getloadavg "
    "getpgid getpgrp getpriority getresuid getsid getuid killpg lchown lockf mkfifo mknod nice "
    "openpty pipe2 posix_fadvise posix_fallocate posix_spawn pread pwrite register_at_fork "
    "sched_getaffinity sched_setaffinity sendfile set_blocking setpgid setpriority setsid setuid "
    "statvfs sync sysconf uname wait3 wait4 waitid",
    "select": "epoll poll",
    "signal": "SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP "
    "SIGUSR1 SIGUSR2 SIG_BLOCK SIG_SETMASK alarm getitimer pause pthread_kill pthread_sigmask "
    "setitimer siginterrupt sigpending sigtimedwait sigwait",
    "time": "tzset",
}
MODULES = "fcntl grp posix pty pwd resource termios tty"


def without_posix(folder, tool, *args, code=0):
    """Run a command of tools/ in a Python that has only what every system has."""
    program = WITHOUT_POSIX.format(others=OTHERS, gone=GONE, modules=MODULES)
    script = ROOT / "tools" / f"{tool}.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, script, *args],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_one_process_trains_resumes_and_infers_without_posix(tmp_path, tiny):
    run = "--output run --figures false --visualdl false".split()
    words = ["--data", tiny, "--nprocs", "auto", *run]
    trained = without_posix(tmp_path, "train", *words, "--epochs", "1")
    assert "eval accuracy" in trained.stdout and "nprocs" not in trained.stdout
    more = "--epochs 2 --override epochs".split()
    assert "resuming after step" in without_posix(tmp_path, "train", *words, *more).stdout
    read = without_posix(tmp_path, "infer", ROOT / "tests/pictures/7-07.jpg")
    assert read.stdout.splitlines()[-1].split()[0] == "7", read.stdout
    for option in ("--max_restarts", "--nprocs"):
        error = without_posix(tmp_path, "train", "--data", tiny, option, "2", code=2).stderr
        assert error.startswith("error: ") and "POSIX" in error and option[2:] in error

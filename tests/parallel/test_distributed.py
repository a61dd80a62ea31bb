"""Several processes that train together: real ones, started in each of the ways, and killed."""

import hashlib
import importlib.util
import json
import math
import os
import random
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import forked
import numpy as np
import paddle
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from process_jobs import living, start_job

from paddle_mnist import MNIST, BatchLoader, MnistDataset, TrainConfig, load_data
from paddle_mnist.data.loader import shards_of
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError, DeviceError, ProcessError
from paddle_mnist.mnist.run_report import hint
from paddle_mnist.nn.cross_entropy import CrossEntropy
from paddle_mnist.parallel import stand_in
from paddle_mnist.parallel.gradients import GradientExchange, SingleProcessGradients
from paddle_mnist.parallel.process_count import most_processes, processes_to_start
from paddle_mnist.parallel.processes import Processes
from paddle_mnist.parallel.world import ALONE, join, spawn, tree_sum
from paddle_mnist.system import heartbeat
from paddle_mnist.system.devices import gpu_count
from paddle_mnist.system.machine import usable_cpus
from paddle_mnist.training import evaluator
from paddle_mnist.training.steps import SupervisedStep, num_correct, run_step

# 300 images: nine batches of 32, and one of 12, which eight parts share unevenly. Images are
# turned, and the weights averaged.
SMALL = ["--recipe", "default", "--batch_size", "32", "--log_every", "4", "--visualdl", "false"]
SMALL += ["--figures", "false", "--ema", "0.9", "--augment", "rotate=10,shift=2"]
# Ten epochs last long enough for a signal to come before their end, on a busy machine too.
SHARDED = [*SMALL, "--epochs", "10", "--grad_shards", "8", "--dropout", "0.1"]
LAUNCH = [sys.executable, "-m", "paddle.distributed.launch"]
LAUNCH_TWO = {"launch": ["--nproc_per_node", 2]}

SLOW = pytest.mark.slow
RELEASE = pytest.mark.release
pytestmark = pytest.mark.skipif(os.name != "posix", reason="gloo and signals as on Linux")


def command(*args, nprocs=1, launch=()):
    """A training's command line, its ranks started by our own spawn or by Paddle's launch."""
    if launch:
        return [*LAUNCH, *map(str, launch), str(ROOT / "tools/train.py"), *map(str, args)]
    return [sys.executable, str(ROOT / "tools/train.py"), "--nprocs", str(nprocs), *map(str, args)]


def start(folder, *args, env=(), **how):
    """A training's first process; the ranks that it starts do all their imports."""
    return start_job(
        command(*args, **how),
        folder,
        stderr=subprocess.PIPE,
        env=env,
        popen=subprocess.Popen if how.get("launch") else forked.Popen,
    )


def run(folder, *args, expect=0, **how):
    """Run it to its end; return what it printed."""
    process = start(folder, *args, **how)
    out, err = process.communicate(timeout=200)
    assert process.returncode == expect, out + err
    assert not ranks_of(process), "an orphan is left"
    return out + err


def ranks_of(process):
    """The living processes that train for a job: their numbers, by rank."""
    results = {}
    for number, environment, line in living(process):
        if "PADDLE_TRAINER_ID" in environment:  # launch says it there
            results[int(environment["PADDLE_TRAINER_ID"])] = number
        elif b"spawn_main" in line:  # our own: in the order in which they were started
            results[len(results)] = number
    return results


def newest_manifest(run):
    manifests = [json.loads(path.read_text()) for path in run.glob("checkpoints/*.json")]
    # at an epoch's last step, before its evaluation and after
    return max(manifests, key=lambda one: (one["state"]["step"], one["state"]["epoch"]))


def end_of(folder, output="run"):
    """Return what two runs that came to the same have in common, to the last bit."""
    run = Path(folder, output)
    newest = newest_manifest(run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    state = {k: v for k, v in newest["state"].items() if k not in ("train_seconds", "running_sums")}
    return {
        "weights": hashlib.sha256((run / "mnist.pdparams").read_bytes()).hexdigest(),
        "files": sorted(entry["sha256"] for entry in newest["files"].values()),
        "state": state,
        "metrics": [(x["step"], x["epoch"], x["tag"], x["value"]) for x in lines],
    }


# ------------------------------------------------------------------ each rank its share


@given(
    samples=st.integers(1, 200),
    own=st.integers(1, 5),
    size=st.integers(1, 6),
)
def test_parts_of_a_batch_are_the_same_for_any_number_of_processes(samples, own, size):
    batch, shards = np.arange(samples) + 1000, own * size
    alone = ShardSpec(shards).split(batch)
    together = [part for rank in range(size) for part in ShardSpec(shards, rank, size).split(batch)]
    assert [number for number, _ in together] == list(range(shards))
    for (_, one), (_, other) in zip(alone, together):
        assert np.array_equal(one, other)
    assert np.array_equal(np.concatenate([part for _, part in together]), batch)
    sizes = [len(part) for _, part in together]
    assert max(sizes) - min(sizes) <= 1


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=8, max_size=8),
    size=st.sampled_from([1, 2, 4, 8]),
)
def test_a_tree_of_sums_has_blocks_of_ranks_for_branches(values, size):
    values, own = [np.float32(value) for value in values], 8 // size
    blocks = [tree_sum(values[rank * own : (rank + 1) * own]) for rank in range(size)]
    assert tree_sum(blocks) == tree_sum(values)


@pytest.mark.parametrize("shards", [1, 3, 8])
@pytest.mark.parametrize("samples", [1, 5, 32])
def test_shards_add_up_to_the_gradient_of_the_whole_batch(tiny, shards, samples):
    """Also where some have no sample, and where a short batch makes their sizes differ."""
    paddle.seed(1)
    model, step = MNIST(), SupervisedStep(CrossEntropy(), {"acc": num_correct})
    first = MnistDataset("train", str(tiny))[0][1].item()
    model.fc.bias.set_value(paddle.to_tensor([9.0 * (digit == first) for digit in range(10)]))

    def gradient(exchange, cut):
        loader = BatchLoader(MnistDataset("train", str(tiny)), samples).sharded(cut)
        for parameter in model.parameters():
            parameter.clear_gradient(False)
        for shard in shards_of(next(loader.epoch(0))):
            exchange.before_pass()
            outputs = run_step(step, model, shard.batch, shard.samples)
            (outputs.loss * shard.weight).backward()
            exchange.add(shard, outputs)
        outcome = exchange.finish()
        assert outcome.samples == samples
        figures = [outcome.loss.item(), *outcome.metrics["acc"].to_numpy()]
        return figures, [parameter.grad.numpy() for parameter in model.parameters()]

    whole = gradient(SingleProcessGradients(), None)
    cut = gradient(GradientExchange(model, ALONE, ordered=True), ShardSpec(shards))
    assert cut[0] == pytest.approx(whole[0], rel=1e-6)
    for one, other in zip(whole[1], cut[1]):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("batch_size", "grad_shards", "places", "expected"),
    [(64, None, 4, 4), (16, None, 4, 2), (4, None, 4, 1), (64, 6, 4, 3), (64, 8, 3, 2)],
)
def test_how_many_processes_make_sense(batch_size, grad_shards, places, expected):
    options = Processes(grad_shards=grad_shards)
    assert most_processes(options, batch_size, places) == expected


def start_of(**options):
    """Return how many processes a training of digits starts."""
    config = TrainConfig(**options)
    return processes_to_start(config.processes, config.device, config.batch_size)


def test_auto_asks_the_machine():
    cores = usable_cpus()
    assert start_of(nprocs="auto") == min(cores, 8)
    assert start_of() == 1


def test_who_has_several_cores_is_told():
    cores = usable_cpus()
    on_cpu = Processes(), "cpu", 64
    output = hint(*on_cpu, 250_000, threads=0)
    assert (output is None) == (cores == 1)
    assert cores == 1 or f"{cores} cores are available: nprocs={min(cores, 8)} trains" in output
    assert hint(*on_cpu, 1000, threads=0) is None
    assert hint(*on_cpu, 250_000, threads=cores) is None  # all are at work
    output = hint(*on_cpu, 250_000, threads=None)
    assert output == "fast_conv is off; a new run with fast_conv='on' trains about 10 times faster"
    output = hint(*on_cpu, 250_000, threads=1)
    assert cores == 1 or f"{cores} cores are available: threads={min(cores, 8)} trains" in output


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"gpus": "0,x"}, DeviceError, "gpus is '0,x', and Paddle sees"),
        (
            {"nprocs": 2, "device": "gpu:0"},
            ConfigError,
            "one for 2 processes; expected auto or cpu",
        ),
        ({"nprocs": 3, "grad_shards": 4}, ConfigError, "grad_shards is 4, for 3 processes"),
        ({"nprocs": -1}, ConfigError, "nprocs is -1; expected a whole number >= 0"),
        ({"nprocs": "many"}, ConfigError, "nprocs is 'many'; expected a whole number"),
        ({"grad_shards": 0}, ConfigError, "grad_shards is 0; expected a whole number >= 1"),
    ],
)
def test_what_does_not_go_together_is_said_before_a_process_starts(options, error, said):
    with pytest.raises(error, match=said):
        start_of(**options)


@pytest.mark.skipif(gpu_count() > 0, reason="of machines without GPUs")
@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"gpus": "4,5"}, DeviceError, "gpus is '4,5', and Paddle sees 0 GPUs; expected numbers"),
        ({"selected_gpus": "4,5", "nprocs": 2}, DeviceError, "gpus is '4,5', and Paddle sees 0 G"),
        ({"gpus": "0", "selected_gpus": "1"}, ConfigError, "gpus is '0', but selected_gpus is '1'"),
        ({"nprocs": 0}, ConfigError, "nprocs is 0; expected at least 1, or -1 for all devices"),
    ],
)
def test_spawn_says_what_cannot_be_started_before_a_process_is(options, error, said, tool, tiny):
    with pytest.raises(error, match=said) as caught:
        spawn(touches, ("nowhere",), **options)
    assert "\n" not in str(caught.value)
    if error is DeviceError:  # as the command says it
        assert str(caught.value) in tool("train", "--gpus", "4,5", "--data", tiny, expect=5).stderr


@pytest.mark.slow
def test_spawn_starts_a_process_on_each_core_this_one_may_use(tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    try:
        spawn(touches, (tmp_path,), device="cpu")
        assert len(list(tmp_path.iterdir())) == usable_cpus()  # which a quota may limit further
    finally:
        os.sched_setaffinity(0, before)


def touches(tmp):
    Path(tmp, str(join(device="cpu").rank)).touch()


def test_processes_within_processes_are_refused(monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    with pytest.raises(ConfigError, match="number is 2, gpus is None, but Paddle's launch started"):
        start_of(nprocs=2)


# ------------------------------------------------------------------ the same result


@pytest.fixture(scope="module")
def alone(tmp_path_factory, tool_in, tiny):
    """The end of a training of one process, with eight shards."""
    folder = tmp_path_factory.mktemp("alone")
    tool_in(folder)("train", *SHARDED, "--data", tiny, "--output", "run")
    return end_of(folder)


def assert_ends_alike(folder, output, alone, nprocs):
    """Check what several processes have trained, and printed at their last start."""
    assert f"{nprocs} processes start from the same: SHA-256 " in output
    assert "Traceback" not in output and "UserWarning" not in output and "free ports" not in output
    assert end_of(folder) == alone
    result = json.loads((folder / "run/result.json").read_text())
    assert result["world_size"] == nprocs
    assert (folder / "run/train.log").read_text().count("epoch 10/10 step 100/100 valid") == 1


def test_same_bits_on_two_processes(tmp_path, tiny, alone):
    output = run(tmp_path, *SHARDED, "--data", tiny, "--output", "run", nprocs=2)
    assert_ends_alike(tmp_path, output, alone, 2)


@pytest.mark.slow
def test_plain_processes_come_close_and_count_alike(tmp_path, tool, tiny):
    """Without --grad_shards: the order of additions is another, and nothing else.

    3 does not divide 32: parts of 11, 11 and 10.
    """
    plain = [*SMALL, "--epochs", 1, "--data", tiny]

    def trained(output):
        result = json.loads((tmp_path / output / "result.json").read_text())
        return paddle.load(str(tmp_path / output / "mnist.pdparams")), result

    tool("train", *plain, "--output", "one")
    one, expected = trained("one")
    run(tmp_path, *plain, "--output", "three", nprocs=3)
    three, result = trained("three")
    for name, value in one.items():
        np.testing.assert_allclose(three[name].numpy(), value.numpy(), rtol=1e-3, atol=2e-5)
    for name in ("eval_acc", "valid_acc", "steps", "epochs"):
        assert result[name] == expected[name]
    assert result["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-4)


def wait_for_step(folder, process, after=0):
    """Until the run's log tells of a step. (What launch prints of it comes seconds later.)

    after: the size of the log, of which only what follows counts.
    """
    file = folder / "run/train.log"
    while not (file.exists() and re.search(r"step \d+/\d+ lr", file.read_text()[after:])):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def size_of_log(folder):
    file = folder / "run/train.log"
    return len(file.read_text()) if file.exists() else 0


def stopped(folder, process, number=signal.SIGTERM, whom=None, after=0):
    """Send a signal when the log tells of a step; gives the exit code and all that was said."""
    wait_for_step(folder, process, after)
    os.kill(whom() if whom else process.pid, number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


@SLOW
def test_run_that_was_stopped_goes_on_with_other_processes_to_the_same_bits(tmp_path, tiny, alone):
    """With one, then two, then four."""
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    for nprocs in (1, 2):
        size = size_of_log(tmp_path)
        process = start(tmp_path, *arguments, nprocs=nprocs)
        code, output = stopped(tmp_path, process, after=size)
        assert code == 143, output
        # a breakpoint, or the epoch's end if the signal came only there
        assert list(tmp_path.glob("run/checkpoints/*.json"))
        assert not (tmp_path / "run/result.json").exists()
    output = run(tmp_path, *arguments, nprocs=4)
    assert "resuming after step" in output
    assert_ends_alike(tmp_path, output, alone, 4)


# ------------------------------------------------------------------ ways to start


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "env", "size"),
    [
        (["--nproc_per_node", 2], {"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        pytest.param(["--log_dir", "mylog"], {}, 1, marks=RELEASE),
    ],
)
def test_paddles_launch_starts_the_same_training(tmp_path, tiny, alone, launch, env, size):
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    output = run(tmp_path, *arguments, launch=launch, env=env)
    assert end_of(tmp_path) == alone
    assert output.count("launch writes the whole environment") == 1
    assert json.loads((tmp_path / "run/result.json").read_text())["world_size"] == size
    if "mylog" in launch:
        logs = {path.name for path in (tmp_path / "mylog").glob("workerlog.*")}
        assert logs == {f"workerlog.{rank}" for rank in range(size)}
    if size == 2:
        others = (tmp_path / "log/workerlog.1").read_text()
        assert "epoch" not in others  # rank 0 has the log


@SLOW
def test_two_nodes_with_one_shared_folder(tmp_path, tiny, alone):
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    port = free_port()
    launch = f"--master 127.0.0.1:{port} --nnodes 2 --nproc_per_node 1".split()
    nodes = [
        start(tmp_path, *arguments, launch=[*launch, "--rank", rank, "--log_dir", f"log{rank}"])
        for rank in range(2)
    ]
    output = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], output
    assert end_of(tmp_path) == alone


@SLOW
def test_second_job_in_a_directory_gets_75(tmp_path, tiny):
    arguments = [*SHARDED, "--epochs", 50, "--data", tiny, "--output", "run"]
    first = start(tmp_path, *arguments, nprocs=2)
    for line in first.stdout:
        if "step 4/" in line:
            break
    output = run(tmp_path, *arguments, nprocs=2, expect=75)
    assert output.count("another process is training there") == 1
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 143


IN_NAMESPACES = {
    "unknown host name": ["--uts", 'hostname no-such-host.invalid && exec "$@"'],
    "no loopback interface": ["--net", 'exec "$@"'],
}


def in_namespace(kind, command):
    """The command with another host name or network; skips where the system permits none."""
    namespace, script = IN_NAMESPACES[kind]
    start = ["unshare", "--map-root-user", namespace, "sh", "-c", script, "sh"]
    if not shutil.which("unshare") or subprocess.run([*start, "true"]).returncode:
        pytest.skip("needs namespaces: Linux, and leave to make them")
    return [*start, *command]


@SLOW
@pytest.mark.parametrize("how", [{"nprocs": 2}, pytest.param(LAUNCH_TWO, marks=RELEASE)], ids=str)
@pytest.mark.parametrize("kind", IN_NAMESPACES)
def test_processes_on_one_machine_need_its_loopback_interface_alone(tmp_path, kind, how):
    arguments = "--data digits --train_limit 64 --epochs 1 --batch_size 32 --output run".split()
    arguments += "--figures false --visualdl false".split()
    process = start_job(
        in_namespace(kind, command(*arguments, **how)), tmp_path, stderr=subprocess.PIPE
    )
    out, err = process.communicate(timeout=100)
    if kind == "unknown host name":
        assert process.returncode == 0, out + err
        assert json.loads((tmp_path / "run/result.json").read_text())["world_size"] == 2
    else:
        assert process.returncode == 5, out + err
        lines = [line for line in (out + err).splitlines() if "error: " in line]
        assert lines and all("127.0.0.1: cannot connect (Network is unr" in x for x in lines), err
        assert "nprocs" not in how or len(lines) == 1


CONNECTS = """
import os, sys, time
from paddle_mnist.parallel.world import join, spawn
from paddle_mnist.system import signals

def connects():
    if os.environ["PADDLE_TRAINER_ID"] == "0":
        while not signals.received():
            time.sleep(0.1)
        return
    print("connecting", flush=True)
    join(device="cpu")

if __name__ == "__main__":
    spawn(connects, nprocs=2, device="cpu")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=RELEASE)])
def test_signal_ends_a_rank_that_waits_to_be_connected(tmp_path, number):
    """In C++, where Python runs no handler, until rank 0 comes."""
    script = tmp_path / "connects.py"
    script.write_text(CONNECTS)
    process = start_job([sys.executable, script], tmp_path, subprocess.PIPE, popen=forked.Popen)
    assert process.stdout.readline() == "connecting\n"
    time.sleep(1)  # it ends as well if the signal comes before it waits
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, out + err
    assert not list(living(process)), "an orphan is left"


FAILS = """
import os, signal, sys, time
from paddle_mnist.errors import ConfigError
from paddle_mnist.parallel.world import spawn
from paddle_mnist.system import signals

def fails():
    if os.environ["PADDLE_TRAINER_ID"] == "1" and "unhandled" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdout.write("ready\\n")  # whole lines, of two processes
    while not signals.received():
        time.sleep(0.1)
    if os.environ["PADDLE_TRAINER_ID"] == "0":
        time.sleep(1)  # the other one ends first
        raise ConfigError("a fault of its own")

if __name__ == "__main__":
    try:
        spawn(fails, nprocs=2, device="cpu")
    except ConfigError as error:
        print("raised:", error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("other", [pytest.param("handled", marks=RELEASE), "unhandled"])
def test_a_signal_does_not_hide_the_error_of_a_rank(tmp_path, other):
    """Also where it ends the other rank, as it does before that one has handlers."""
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    command = [sys.executable, script, other]
    process = start_job(command, tmp_path, subprocess.PIPE, popen=forked.Popen)
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "ready\n"]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert out == "raised: a fault of its own\n", out + err


def test_supervision_of_one_rank_alone_is_refused(tool):
    rank = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "1"}
    done = tool("train", "--data", "digits", "--max_restarts", 2, expect=2, **rank)
    assert "max_restarts is 2, but Paddle's launch has started this process" in done.stderr


# ------------------------------------------------------------------ whoever dies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "killed"),
    [
        pytest.param({"nprocs": 2}, [1], id="rank 1", marks=RELEASE),
        pytest.param({"nprocs": 2}, [0, "parent"], id="rank 0, spawn's parent"),
        pytest.param(LAUNCH_TWO, [1, "parent"], id="launch's rank 1, launch", marks=RELEASE),
    ],
)
def test_whoever_is_killed_leaves_no_orphan_and_costs_no_bit(tmp_path, tiny, alone, how, killed):
    """One after the other."""
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    for who in killed:
        size = size_of_log(tmp_path)
        process = start(tmp_path, *arguments, **how)
        wait_for_step(tmp_path, process, size)
        kill_one(process, how, who)
    run(tmp_path, *arguments, **how)
    assert end_of(tmp_path) == alone


def kill_one(process, how, who):
    """Kill a rank, or the parent of both; the others must end, and say who it was."""
    ranks = ranks_of(process)
    assert set(ranks) == {0, 1}
    os.kill(process.pid if who == "parent" else ranks[who], signal.SIGKILL)
    killed = time.monotonic()
    while ranks_of(process):
        assert time.monotonic() < killed + 15, "an orphan is left"
        time.sleep(0.1)
    out, err = process.communicate(timeout=60)
    output = out + err
    if who == "parent":
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode not in (0, -signal.SIGKILL)
    if "nprocs" in how and who != "parent":
        assert process.returncode == 137
        named = f"rank {who} (process {ranks[who]}) ended with SIGKILL"
        assert named in output and output.count("error: ") == 1 and "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "names", "then"),
    [
        ({"nprocs": 2}, "TERM", {"nprocs": 1}),
        pytest.param({"nprocs": 2}, "INT USR2", {"nprocs": 2}, marks=RELEASE),
        pytest.param(LAUNCH_TWO, "TERM USR1", LAUNCH_TWO, marks=RELEASE),
    ],
)
def test_signal_to_the_parent_is_one_breakpoint(tmp_path, tiny, alone, how, names, then):
    """From which as many processes go on, or fewer; and so at the next."""
    arguments = [*SHARDED, "--data", tiny, "--output", "run", "--stop_signals", "USR2"]
    for name in names.split():
        stop_by_signal(tmp_path, arguments, how, signal.Signals[f"SIG{name}"])
    run(tmp_path, *arguments, **then)
    assert end_of(tmp_path) == alone


def stop_by_signal(folder, arguments, how, number):
    """Train some steps until a signal to the parent stops all, and check what it leaves."""
    size, before = size_of_log(folder), breakpoints(folder)
    shutil.rmtree(folder / "log", ignore_errors=True)  # what launch's ranks said before
    process = start(folder, *arguments, **how)
    code, output = stopped(folder, process, number, after=size)
    if "nprocs" in how:
        assert code == 128 + number and output.count("error: stopped by") == 1
    else:
        while list(living(process)):
            time.sleep(0.1)
        # launch ends with the signal's number, or the ranks' code, if it sees that first; of one
        # that it does not handle it dies, and the ranks save when they notice
        assert code in (number, 143, -number)
        output = (folder / "log/workerlog.0").read_text()
        assert "stopped by" in (folder / "log/workerlog.1").read_text()
    # Ranks that notice later may be at the end of an epoch, which is saved in any case.
    (saved,) = re.findall(r"(breakpoint|newest checkpoint); run again to resume from it", output)
    position = newest_manifest(folder / "run")["state"]["position"]
    assert saved == ("breakpoint" if position else "newest checkpoint")
    assert len(breakpoints(folder) - before) == (saved == "breakpoint")


def breakpoints(folder):
    return {path.name for path in folder.glob("run/checkpoints/*breakpoint.json")}


@SLOW
def test_ctrl_c_in_the_first_seconds_is_one_line(tmp_path, tiny):
    """A terminal sends it to the ranks, too, which import Paddle at that time."""
    process = start(tmp_path, "--data", tiny, "--output", "run", nprocs=2)
    while len(ranks_of(process)) < 2:
        assert process.poll() is None, "it ended before its ranks began"
        time.sleep(0.01)
    time.sleep(0.5)  # Python itself has started
    for number in [process.pid, *ranks_of(process).values()]:
        os.kill(number, signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, out + err
    assert err.count("error: stopped by SIGINT") == 1 and "Traceback" not in out + err, out + err
    assert not ranks_of(process)


@SLOW
def test_rank_that_stalls_is_found(tmp_path, tiny):
    arguments = [*SHARDED, "--data", tiny, "--output", "run", "--hang_timeout", 4]
    process = start(tmp_path, *arguments, nprocs=2)
    code, output = stopped(tmp_path, process, signal.SIGSTOP, whom=lambda: ranks_of(process)[1])
    # stopped within an exchange, it cannot be told from the one that waits for it there
    assert code == 1 and re.search(r"rank (0, )?1 sent no heartbeat for 4 s", output), output
    assert not ranks_of(process)


@SLOW
def test_job_is_restarted_to_the_same_bits(tmp_path, tiny, alone):
    arguments = [*SHARDED, "--data", tiny, "--output", "run", "--max_restarts", 2]
    process = start(tmp_path, *arguments, nprocs=2)
    killed = []
    for line in process.stdout:
        if len(killed) < 2 and re.search(rf"step {4 + 8 * len(killed)}/100 lr", line):
            sessions = [
                int(path.name)
                for path in Path("/proc").glob("[0-9]*")
                if parent_of(path) == process.pid
            ]
            (child,) = sessions
            killed.append(child)
            # first a rank, then the process that started the ranks
            os.kill(ranks_of(process)[1] if len(killed) == 1 else child, signal.SIGKILL)
    assert process.wait(60) == 0, process.stderr.read()
    assert len(killed) == 2
    assert end_of(tmp_path) == alone


def parent_of(path):
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


# ------------------------------------------------------------------ Paddle's elastic launch


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
    while len(saved) >= 2 and not Path(sys.argv[1], "go on").exists() and not signals.received():
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


@SLOW
@pytest.mark.timeout(900)
def test_elastic_launch_restarts_shrinks_and_grows_to_the_same_bits(tmp_path, tool, tiny, etcd):
    """A rank is killed, then one of the two nodes, then it comes back.

    Each time they may go on with one process before they do with two. Whoever has saved one epoch
    holds the next until then, so that few epochs last long enough.
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
        """Until the run holds an epoch, after one that is saved."""
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
    (tmp_path / "go on").touch()
    for process in (first, second):
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, out + err
    assert end_of(tmp_path) == end_of(tmp_path, "unbroken")


# ------------------------------------------------------------------ spawn, for code of your own


def raises_in_rank_one(tmp):
    world = join()
    if world.rank == 1:
        raise ValueError("a fault of rank 1's own")
    world.all_gather_objects(1)


def gives_much(tmp):
    world = join()
    world.all_gather_objects(1)
    return np.zeros(20_000_000)


def disagrees():
    world = join()
    world.require_same("the same", "the data")
    world.require_same(world.rank == 1, "the images")


def evaluates(tmp, data):
    """In batches of 7: ten of them, which three processes take in turns."""
    evaluator.BATCH_SIZE = 7
    world = join()
    paddle.seed(1)
    model, dataset = MNIST(), MnistDataset("eval", data)
    together, alone = evaluator.evaluate(model, dataset, world), evaluator.evaluate(model, dataset)
    for name in ("labels", "predictions", "probabilities"):
        assert np.array_equal(getattr(together, name), getattr(alone, name)), name
    assert together.loss == alone.loss and together.count == 70
    other = paddle.io.Subset(dataset, range(70))
    assert evaluator.evaluate(model, other, world).loss == alone.loss
    Path(tmp, f"evaluated by {world.rank}").touch()


def trains_as_the_tutorial(tmp, data):
    """Its loop over several GPUs, on CPUs; each rank has a generator of its own."""
    os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
    paddle.distributed.init_parallel_env()
    rank = paddle.distributed.get_rank()
    random.seed(rank)
    model = paddle.DataParallel(MNIST())
    optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
    loader = load_data("train", 32, data)
    epochs = []
    for _ in range(2):
        epochs.append([])
        for images, labels in loader():
            logits, _ = model(paddle.to_tensor(images), paddle.to_tensor(labels))
            paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(labels)).backward()
            optimizer.step()
            optimizer.clear_grad()
            epochs[-1].append([hashlib.sha256(image).hexdigest() for image in images])
    whole = [len(labels) for _, labels in load_data("eval", 32, data)()]
    Path(tmp, f"{rank}.json").write_text(json.dumps([epochs, whole]))


@pytest.mark.slow
def test_tutorials_loop_gives_each_rank_its_share(tmp_path, tiny):
    spawn(trains_as_the_tutorial, (tmp_path, str(tiny)), nprocs=2)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    images, _ = MnistDataset("train", tiny).batch(np.arange(300))
    every_image = sorted(hashlib.sha256(image).hexdigest() for image in images)
    orders = []
    for epoch in range(2):
        batches = [epochs[epoch] for epochs, _ in ranks]
        assert [list(map(len, share)) for share in batches] == [[30] * 5] * 2
        orders.append([image for share in batches for batch in share for image in batch])
        assert sorted(orders[-1]) == every_image  # each once
    assert orders[0] != orders[1]
    assert [whole for _, whole in ranks] == [[32, 32, 6]] * 2


def hangs_after_the_others_are_done(tmp):
    if join().rank == 1:
        time.sleep(600)


@pytest.mark.slow
def test_process_that_hangs_when_others_are_done_is_no_success(tmp_path):
    with pytest.raises(ProcessError, match="rank 1 sent no heartbeat for 9 s"):
        spawn(hangs_after_the_others_are_done, (tmp_path,), nprocs=2, hang_timeout=9)


def sleeps(tmp):
    world = join(hang_timeout=40)
    if world.rank == 1:
        time.sleep(100)
    world.all_gather_objects(1)


@RELEASE
def test_process_for_which_the_others_wait_in_vain_is_named(tmp_path):
    """After hang_timeout, which is more than the 30 s that gloo waits."""
    with pytest.raises(ProcessError, match="rank 1 sent no heartbeat for 40 s"):
        spawn(sleeps, (tmp_path,), nprocs=2, hang_timeout=40)


def waits_for_what_has_a_limit_of_its_own(tmp):
    heartbeat.START_SECONDS = 15

    def wait():
        for _ in range(50):
            heartbeat.beat()
            time.sleep(0.5)
        return "done"

    return join(hang_timeout=1).run_on_main(wait, has_time_limit=True)


@RELEASE
def test_others_wait_for_a_mirror_longer_than_for_a_step(tmp_path):
    assert spawn(waits_for_what_has_a_limit_of_its_own, (tmp_path,), nprocs=2) == "done"


SLOW_DISK = """
import sys, time
from faulty_disk import watched
from paddle_mnist.commands.train import main

def sleep_in_the_second_save(operation):  # with rank 0 alone, as the others do not save
    if operation.call == "fsync" and "mnist_epoch1.pdparams" in operation.path.name:
        time.sleep(35)

with watched(sys.argv[1], sleep_in_the_second_save):
    code = main(sys.argv[2:])
sys.exit(code)
"""


@SLOW
@pytest.mark.parametrize("way", ["spawn", pytest.param("launch", marks=RELEASE)])
def test_others_wait_for_a_save_longer_than_gloo_does(tmp_path, tiny, alone, way):
    arguments = [*SHARDED, "--data", str(tiny), "--output", str(tmp_path / "run")]
    script = tmp_path / "train.py"
    script.write_text(SLOW_DISK)
    if way == "spawn":
        spawn(runs_script, (str(script), str(tmp_path), arguments), nprocs=2, device="cpu")
    else:
        command = [*LAUNCH, "--nproc_per_node", 2, script, tmp_path, *arguments]
        path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
        job = start_job(command, tmp_path, stderr=subprocess.PIPE, env={"PYTHONPATH": path})
        out, err = job.communicate(timeout=200)
        assert job.returncode == 0, out + err
    assert end_of(tmp_path) == alone


def runs_script(script, folder, arguments):
    os.chdir(folder)
    sys.argv = [script, folder, *arguments]
    with pytest.raises(SystemExit) as end:
        runpy.run_path(script, run_name="__main__")
    assert end.value.code == 0


def exchanges(tmp):
    world = join()
    assert world.all_gather_objects(10 * world.rank) == [0, 10, 20]
    assert [t.item() for t in world.all_gather(paddle.to_tensor(float(world.rank)))] == [0, 1, 2]
    assert world.all_reduce(paddle.to_tensor(1.0 + world.rank)).item() == 6
    assert world.run_on_main(lambda: f"of rank {world.rank}") == "of rank 0"
    shared = paddle.full([2], float(world.rank))
    world.broadcast([shared])
    assert shared.tolist() == [0, 0]

    def refuse():
        raise ConfigError(f"refused by rank {world.rank}")

    with pytest.raises(ConfigError, match="refused by rank 0"):
        world.run_on_main(refuse)
    Path(tmp, f"exchanged by {world.rank}").touch()


def waits(tmp):
    """Each rank comes late in turn, as seen by threads that have less patience than usual."""
    stand_in.CALL_SECONDS, stand_in.POLL_SECONDS = 0.05, 0.02
    world = join()
    for late in range(3):
        for dtype in ("float32", "float64"):
            if world.rank == late:
                time.sleep(0.25)
            own = paddle.full([2, 3], 10.0**world.rank, dtype)
            total = world.all_reduce(own)
            assert total.dtype == own.dtype and total.tolist() == [[111.0] * 3] * 2
        if world.rank != late:
            time.sleep(0.25)
        gathered = world.all_gather(paddle.full([2], float(world.rank)))
        assert [t.tolist() for t in gathered] == [[0, 0], [1, 1], [2, 2]]
        if world.rank == late:
            time.sleep(0.25)
        assert world.all_gather_objects(world.rank) == [0, 1, 2]
    assert world._exchanges._number > 12, "no thread has stood in"
    before = world._exchanges._number
    assert math.isnan(world.all_reduce(paddle.to_tensor(math.nan)).item())
    assert world._exchanges._number == before + 1  # the training's own, to be seen by it
    Path(tmp, f"waited for by {world.rank}").touch()


def stalls_between_broadcasts():
    stand_in.CALL_SECONDS, stand_in.POLL_SECONDS = 0.05, 0.02
    world = join()

    def slowly(tensors):
        for tensor in tensors:
            yield tensor
            if world.rank == 3:  # others, who are through, wait for it in the next exchange
                time.sleep(0.5)

    shared = [paddle.full([2], float(world.rank + number)) for number in range(3)]
    world.broadcast(slowly(shared))
    assert world.all_reduce(paddle.ones([1])).item() == 4
    assert [tensor[0].item() for tensor in shared] == [0, 1, 2]


@SLOW
def test_no_thread_stands_in_between_two_broadcasts():
    spawn(stalls_between_broadcasts, nprocs=4, device="cpu")


def ends_while_its_thread_asks_the_store():
    stand_in.POLL_SECONDS = 1e-5
    join().all_gather_objects(1)


@SLOW
def test_process_ends_whatever_its_thread_does():
    """One in Paddle's code would crash there: Paddle is unloaded before."""
    spawn(ends_while_its_thread_asks_the_store, nprocs=2, device="cpu")


def works(tmp, data):
    waits(tmp)
    exchanges(tmp)
    evaluates(tmp, data)
    disagrees()


@pytest.fixture(scope="module")
def three(tmp_path_factory, tiny):
    """The names of what three processes have done, one thing after the other, and their error."""
    folder = tmp_path_factory.mktemp("three")
    error = None
    try:
        spawn(works, (folder, str(tiny)), nprocs=3)
    except Exception as raised:
        error = raised
    return {path.name for path in folder.iterdir()}, error


@pytest.mark.slow
def test_processes_exchange_what_they_are_asked_to(three):
    done, error = three
    assert {f"exchanged by {rank}" for rank in range(3)} <= done, error


def test_exchanges_wait_for_a_process_that_works(three):
    done, error = three
    assert {f"waited for by {rank}" for rank in range(3)} <= done, error


def test_evaluation_in_turns_is_that_of_one_process_to_the_last_bit(three):
    done, error = three
    assert {f"evaluated by {rank}" for rank in range(3)} <= done, error


@pytest.mark.slow
def test_error_of_any_rank_reaches_the_user_with_its_own_traceback(tmp_path):
    with pytest.raises(ProcessError) as caught:
        spawn(raises_in_rank_one, (tmp_path,), nprocs=2)
    output = str(caught.value)
    assert output.startswith("rank 1 failed with an unhandled exception:\nTraceback")
    assert "in raises_in_rank_one" in output and output.endswith("a fault of rank 1's own")
    assert "gloo" not in output


@pytest.mark.slow
def test_large_results_do_not_hang(tmp_path):
    spawn(gives_much, (tmp_path,), nprocs=2)


def test_ranks_that_hold_something_else_are_named(three):
    assert re.search("the images of rank 1 differ from those of rank 0", str(three[1]))


@pytest.mark.parametrize(("rests", "code"), [("", 1), ("heartbeat.pause_watchdog()", 0)])
def test_process_without_a_sign_of_life_ends_unless_its_work_is_done(rests, code):
    program = f"""
import time
from paddle_mnist.system import heartbeat
heartbeat.start_watchdog(1)
heartbeat.beat()
{rests}
time.sleep(4)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == code

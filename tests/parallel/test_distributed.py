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

import conftest
import forked
import numpy as np
import paddle
import pytest
import test_gradients
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from process_jobs import living, start_job

from paddle_mnist import MNIST, BatchLoader, MnistDataset, TrainConfig, load_data
from paddle_mnist.data.loader import shards_of
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError, DataError, DeviceError, ProcessError
from paddle_mnist.mnist.run_report import hint
from paddle_mnist.nn.cross_entropy import CrossEntropy
from paddle_mnist.parallel import stand_in
from paddle_mnist.parallel.gradients import GradientExchange, SingleProcessGradients
from paddle_mnist.parallel.process_count import most_processes, processes_to_start
from paddle_mnist.parallel.processes import Processes
from paddle_mnist.parallel.world import ALONE, join, spawn, tree_sum
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
def test_shard_spec_any_number_of_processes_splits_a_batch_alike(samples, own, size):
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
def test_tree_sum_of_ranks_equals_that_of_all_shards(values, size):
    values, own = [np.float32(value) for value in values], 8 // size
    blocks = [tree_sum(values[rank * own : (rank + 1) * own]) for rank in range(size)]
    assert tree_sum(blocks) == tree_sum(values)


@pytest.mark.parametrize(("shards", "samples"), [(1, 32), (8, 1), (3, 5), (8, 12)])
def test_gradient_exchange_of_shards_gives_the_gradient_of_the_batch(tiny, shards, samples):
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
def test_most_processes_gives_each_enough_of_a_batch(batch_size, grad_shards, places, expected):
    options = Processes(grad_shards=grad_shards)
    assert most_processes(options, batch_size, places) == expected


def start_of(**options):
    """Return how many processes a training of digits starts."""
    config = TrainConfig(**options)
    return processes_to_start(config.processes, config.device, config.batch_size)


def test_nprocs_auto_uses_the_cores():
    assert start_of(nprocs="auto") == min(usable_cpus(), 8)
    assert start_of() == 1


def test_hint_names_the_option_that_uses_more_cores():
    cores = usable_cpus()
    on_cpu = Processes(), "cpu", 64
    assert hint(*on_cpu, 1000, threads=0) is None
    assert hint(*on_cpu, 250_000, threads=cores) is None  # all are at work
    assert "fast_conv='on'" in hint(*on_cpu, 250_000, threads=None)
    if cores > 1:
        assert f"nprocs={min(cores, 8)}" in hint(*on_cpu, 250_000, threads=0)
        assert f"threads={min(cores, 8)}" in hint(*on_cpu, 250_000, threads=1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gpus": "0,x"}, DeviceError, "gpus is '0,x'"),
        ({"nprocs": 2, "device": "gpu:0"}, ConfigError, "2 processes; expected auto or cpu"),
        ({"nprocs": 3, "grad_shards": 4}, ConfigError, "grad_shards is 4, for 3 processes"),
        ({"nprocs": -1}, ConfigError, "nprocs is -1"),
        ({"nprocs": "many"}, ConfigError, "nprocs is 'many'"),
        ({"grad_shards": 0}, ConfigError, "grad_shards is 0"),
    ],
)
def test_processes_to_start_wrong_options_raises(options, error, message):
    with pytest.raises(error, match=message):
        start_of(**options)


@pytest.mark.skipif(gpu_count() > 0, reason="of machines without GPUs")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gpus": "4,5"}, DeviceError, "gpus is '4,5'"),
        ({"selected_gpus": "4,5", "nprocs": 2}, DeviceError, "gpus is '4,5'"),
        ({"gpus": "0", "selected_gpus": "1"}, ConfigError, "selected_gpus is '1'"),
        ({"nprocs": 0}, ConfigError, "nprocs is 0"),
    ],
)
def test_spawn_wrong_options_raises_before_a_process_starts(options, error, message):
    with pytest.raises(error, match=message):
        spawn(raises_in_rank_one, **options)


def test_train_unknown_gpus_exits_with_5(tool, tiny):
    assert "gpus is '4,5'" in tool("train", "--gpus", "4,5", "--data", tiny, expect=5).stderr


def test_processes_within_processes_are_refused(monkeypatch, tool):
    rank = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "1"}
    done = tool("train", "--data", "digits", "--max_restarts", 2, expect=2, **rank)
    assert "max_restarts is 2" in done.stderr
    monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    with pytest.raises(ConfigError, match="launch"):
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


def test_train_with_shards_on_one_and_two_processes_ends_with_the_same_bits(
    run_of_processes, tool, tiny, tmp_path
):
    quiet = ["--figures", "false", "--visualdl", "false"]
    tool("train", *conftest.SMALL, *quiet, "--grad_shards", 2, "--data", tiny, "--output", "run")
    assert end_of(tmp_path) == end_of(run_of_processes.parent)
    assert json.loads((run_of_processes / "result.json").read_text())["world_size"] == 2


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
def test_stopped_run_resumes_on_other_processes_to_the_same_bits(tmp_path, tiny, alone):
    """By a signal to one process, then to the parent of two, which four resume."""
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    for nprocs in (1, 2):
        size, before = size_of_log(tmp_path), breakpoints(tmp_path)
        process = start(tmp_path, *arguments, nprocs=nprocs)
        code, output = stopped(tmp_path, process, after=size)
        assert code == 143 and output.count("error: stopped by") == 1, output
        # Ranks that notice later may be at the end of an epoch, which is saved in any case.
        position = newest_manifest(tmp_path / "run")["state"]["position"]
        assert len(breakpoints(tmp_path) - before) == bool(position)
        assert not (tmp_path / "run/result.json").exists()
    output = run(tmp_path, *arguments, nprocs=4)
    assert "resuming after step" in output
    assert_ends_alike(tmp_path, output, alone, 4)


def breakpoints(folder):
    return {path.name for path in folder.glob("run/checkpoints/*breakpoint.json")}


# ------------------------------------------------------------------ ways to start


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@SLOW
def test_paddle_launch_of_two_processes_ends_with_the_same_bits(tmp_path, tiny, alone):
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    output = run(tmp_path, *arguments, launch=["--nproc_per_node", 2], env=env)
    assert end_of(tmp_path) == alone
    assert output.count("launch writes the whole environment") == 1
    assert json.loads((tmp_path / "run/result.json").read_text())["world_size"] == 2
    assert "epoch" not in (tmp_path / "log/workerlog.1").read_text()  # rank 0 has the log


@RELEASE
def test_paddle_launch_on_two_nodes_ends_with_the_same_bits(tmp_path, tiny, alone):
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    launch = f"--master 127.0.0.1:{free_port()} --nnodes 2 --nproc_per_node 1".split()
    nodes = [
        start(tmp_path, *arguments, launch=[*launch, "--rank", rank, "--log_dir", f"log{rank}"])
        for rank in range(2)
    ]
    output = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], output
    assert end_of(tmp_path) == alone


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


@SLOW
def test_signal_to_a_rank_that_waits_to_be_connected_ends_it(tmp_path):
    """In C++, where Python runs no handler, until rank 0 comes."""
    script = tmp_path / "connects.py"
    script.write_text(CONNECTS)
    process = start_job([sys.executable, script], tmp_path, subprocess.PIPE, popen=forked.Popen)
    assert process.stdout.readline() == "connecting\n"
    time.sleep(1)  # it ends as well if the signal comes before it waits
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, out + err
    assert not list(living(process)), "an orphan is left"


# ------------------------------------------------------------------ whoever dies


@SLOW
@pytest.mark.parametrize(
    ("how", "killed"),
    [
        ({"nprocs": 2}, [0, "parent"]),
        pytest.param({"launch": ["--nproc_per_node", 2]}, [1, "parent"], marks=RELEASE),
    ],
)
def test_killed_process_or_parent_leaves_no_orphan_and_costs_no_bit(
    tmp_path, tiny, alone, how, killed
):
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


@SLOW
def test_ctrl_c_in_the_first_seconds_exits_with_130(tmp_path, tiny):
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
def test_stalled_rank_is_reported_and_ends_all(tmp_path, tiny):
    arguments = [*SHARDED, "--data", tiny, "--output", "run", "--hang_timeout", 4]
    process = start(tmp_path, *arguments, nprocs=2)
    code, output = stopped(tmp_path, process, signal.SIGSTOP, whom=lambda: ranks_of(process)[1])
    # stopped within an exchange, it cannot be told from the one that waits for it there
    assert code == 1 and re.search(r"rank (0, )?1 sent no heartbeat for 4 s", output), output
    assert not ranks_of(process)


@SLOW
def test_max_restarts_restarts_two_processes_to_the_same_bits(tmp_path, tiny, alone):
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


@RELEASE
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


def raises_in_rank_one():
    world = join()
    if world.rank == 1:
        raise ValueError("a fault of rank 1's own")
    world.all_gather_objects(1)


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


@SLOW
def test_tutorial_loop_of_two_processes_gives_each_its_share(tmp_path, tiny):
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


def hangs_after_the_others_are_done():
    if join().rank == 1:
        time.sleep(600)


@SLOW
def test_spawn_rank_that_hangs_when_others_are_done_raises():
    with pytest.raises(ProcessError, match="rank 1 sent no heartbeat for 9 s"):
        spawn(hangs_after_the_others_are_done, nprocs=2, hang_timeout=9)


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
def test_save_that_lasts_longer_than_gloo_waits_keeps_the_bits(tmp_path, tiny, alone):
    arguments = [*SHARDED, "--data", str(tiny), "--output", str(tmp_path / "run")]
    script = tmp_path / "train.py"
    script.write_text(SLOW_DISK)
    spawn(runs_script, (str(script), str(tmp_path), arguments), nprocs=2, device="cpu")
    assert end_of(tmp_path) == alone


def runs_script(script, folder, arguments):
    os.chdir(folder)
    sys.argv = [script, folder, *arguments]
    with pytest.raises(SystemExit) as end:
        runpy.run_path(script, run_name="__main__")
    assert end.value.code == 0


def exchanges():
    world = join()
    assert world.all_gather_objects(10 * world.rank) == [0, 10, 20]
    assert [t.item() for t in world.all_gather(paddle.to_tensor(float(world.rank)))] == [0, 1, 2]
    assert world.all_reduce(paddle.to_tensor(1.0 + world.rank)).item() == 6
    assert math.isnan(world.all_reduce(paddle.to_tensor(math.nan)).item())
    assert world.run_on_main(lambda: f"of rank {world.rank}") == "of rank 0"
    shared = paddle.full([2], float(world.rank))
    world.broadcast([shared])
    assert shared.tolist() == [0, 0]

    def refuse():
        raise ConfigError(f"refused by rank {world.rank}")

    with pytest.raises(ConfigError, match="refused by rank 0"):
        world.run_on_main(refuse)


def waits_for_each_rank_in_turn():
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


def sums_gradients():
    world = join()
    for dtypes in ("float32", "float64 unused", "bfloat16 and float64"):
        for is_used in (True, False, "in one shard"):
            test_gradients.check(dtypes, is_used, 2 * world.size, world)
            test_gradients.check(dtypes, is_used, world.size, world, ordered=False)


def evaluates(data):
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


def does_everything(data):
    world = join()
    sums_gradients()
    evaluates(data)
    # less patience than usual: a thread stands in for a rank that is late
    stand_in.CALL_SECONDS, stand_in.POLL_SECONDS = 0.05, 0.02
    exchanges()
    waits_for_each_rank_in_turn()
    stand_in.CALL_SECONDS = 10  # so long a process waits for its thread when it ends
    world.require_same("the same", "the data")
    world.require_same(world.rank == 1, "the images")


def test_three_processes_exchange_sum_evaluate_and_name_the_rank_that_differs(tiny):
    """The last of their exchanges fails; one before it would have raised another error."""
    with pytest.raises(DataError, match="the images of rank 1 differ from those of rank 0"):
        spawn(does_everything, (str(tiny),), nprocs=3)


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
    stand_in.CALL_SECONDS = 10  # so long a process waits for its thread when it ends
    return np.zeros(20_000_000)


@SLOW
def test_spawn_of_four_late_processes_with_large_results_ends():
    spawn(stalls_between_broadcasts, nprocs=4, device="cpu")  # and does not hang


def ends_while_its_thread_asks_the_store():
    stand_in.POLL_SECONDS = 1e-5
    join().all_gather_objects(1)


@SLOW
def test_spawn_processes_whose_threads_ask_the_store_end():
    """One in Paddle's code would crash there: Paddle is unloaded before."""
    spawn(ends_while_its_thread_asks_the_store, nprocs=2, device="cpu")


@SLOW
def test_spawn_error_of_a_rank_raises_its_own_traceback():
    with pytest.raises(ProcessError) as caught:
        spawn(raises_in_rank_one, nprocs=2)
    output = str(caught.value)
    assert output.startswith("rank 1 failed") and "in raises_in_rank_one" in output
    assert output.endswith("a fault of rank 1's own") and "gloo" not in output


@pytest.mark.parametrize(("rests", "code"), [("", 1), ("heartbeat.pause_watchdog()", 0)])
def test_watchdog_without_a_beat_ends_the_process_unless_paused(rests, code):
    program = f"""
import time
from paddle_mnist.system import heartbeat
heartbeat.start_watchdog(1)
heartbeat.beat()
{rests}
time.sleep(3)
"""
    assert forked.run([sys.executable, "-c", program], timeout=60).returncode == code

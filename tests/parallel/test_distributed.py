"""Several processes that train together: real ones, started in each of the ways, and killed."""

import hashlib
import json
import math
import os
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import conftest
import fit_rows
import forked
import numpy as np
import paddle
import psutil
import pytest
import test_gradients
from conftest import ROOT
from mirror_servers import free_port
from process_jobs import living, start_job
from small_nets import Points
from spawned import raises_damaged, returns_much

from paddle_mnist import MNIST, Callback, MnistDataset, TrainConfig, is_rehearsal, load_data
from paddle_mnist.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    ProcessError,
    spelling,
)
from paddle_mnist.mnist import evaluation
from paddle_mnist.parallel import gloo
from paddle_mnist.parallel.processes import Processes, most_processes, processes_to_start
from paddle_mnist.parallel.world import join, spawn
from paddle_mnist.system.devices import gpu_count
from paddle_mnist.system.environment import usable_cpus

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
    """The command line of a run, its ranks started by our own spawn or by Paddle's launch."""
    if launch:
        return [*LAUNCH, *map(str, launch), str(ROOT / "tools/train.py"), *map(str, args)]
    return [sys.executable, str(ROOT / "tools/train.py"), "--nprocs", str(nprocs), *map(str, args)]


def start(folder, *args, env=(), **how):
    """The first process of a run; the ranks that it starts do all their imports."""
    return start_job(
        command(*args, **how),
        folder,
        stderr=subprocess.PIPE,
        env=env,
        popen=subprocess.Popen if how.get("launch") else forked.Popen,
    )


def end(process):
    """Wait for the end of a run; return its exit code and output."""
    out, err = process.communicate(timeout=200)
    assert not ranks_of(process), "an orphan is left"
    return process.returncode, out + err


def run(folder, *args, **how):
    """Train to the end; return the output."""
    code, output = end(start(folder, *args, **how))
    assert code == 0, output
    return output


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
    return max(manifests, key=lambda found: (found["state"]["step"], found["state"]["epoch"]))


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


# ------------------------------------------------------------------ how many


@pytest.mark.parametrize(
    ("batch_size", "grad_shards", "places", "expected"),
    [(64, None, 4, 4), (16, None, 4, 2), (4, None, 4, 1), (64, 6, 4, 3), (64, 8, 3, 2)],
)
def test_most_processes_gives_each_enough_of_a_batch(batch_size, grad_shards, places, expected):
    options = Processes(grad_shards=grad_shards)
    assert most_processes(options, batch_size, places) == expected


def start_of(**options):
    """Return how many processes training on digits starts."""
    config = TrainConfig(**options)
    return processes_to_start(config.processes, config.device, config.batch_size)


def test_nprocs_auto_uses_the_cores():
    assert (start_of(nprocs="auto"), start_of()) == (min(usable_cpus(), 8), 1)


def spawn_of(**options):
    spawn(raises_in_rank_one, **options)


@pytest.mark.skipif(gpu_count() > 0, reason="of machines without GPUs")
@pytest.mark.parametrize(
    ("start", "options", "error", "value"),
    [
        (start_of, {"gpus": "0,x"}, DeviceError, "gpus is '0,x'"),
        (start_of, {"nprocs": 2, "device": "gpu:0"}, ConfigError, "2 processes"),
        (start_of, {"nprocs": 3, "grad_shards": 4}, ConfigError, "grad_shards is 4"),
        (spawn_of, {"selected_gpus": "4,5", "nprocs": 2}, DeviceError, "gpus is '4,5'"),
        (spawn_of, {"gpus": "0", "selected_gpus": "1"}, ConfigError, "selected_gpus is '1'"),
        (spawn_of, {"nprocs": 0}, ConfigError, "nprocs is 0"),
    ],
)
def test_processes_that_cannot_be_started_raise(start, options, error, value):
    with pytest.raises(error, match=value):
        start(**options)


def test_processes_within_processes_are_refused(tool):
    rank = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "1"}
    for option in ("max_restarts", "nprocs"):
        done = tool("train", "--data", "digits", f"--{option}", 2, expect=2, **rank)
        assert f"{option} is 2" in done.stderr


# ------------------------------------------------------------------ the same result


@pytest.fixture(scope="module")
def alone(tmp_path_factory, tool_in, tiny):
    """The end of a run in one process, with eight shards."""
    folder = tmp_path_factory.mktemp("alone")
    tool_in(folder)("train", *SHARDED, "--data", tiny, "--output", "run")
    return end_of(folder)


def assert_ends_alike(folder, output, alone, nprocs):
    """Check what several processes have trained, and printed at their last start."""
    assert f"{nprocs} processes start from the same state: SHA-256 " in output
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
    """Wait until the run's log has a step. (Launch prints it seconds later.)

    after: the size of the log, of which only what follows counts.
    """
    file = folder / "run/train.log"
    while not (file.exists() and re.search(r"step \d+/\d+ lr", file.read_text()[after:])):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def size_of_log(folder):
    file = folder / "run/train.log"
    return len(file.read_text()) if file.exists() else 0


def breakpoints(folder):
    return {path.name for path in folder.glob("run/checkpoints/*breakpoint.json")}


@SLOW
def test_stopped_run_resumes_on_other_processes_to_the_same_bits(tmp_path, tiny, alone):
    """By a signal to one process, then to the parent of two, which four resume."""
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    for nprocs in (1, 2):
        size, before = size_of_log(tmp_path), breakpoints(tmp_path)
        process = start(tmp_path, *arguments, nprocs=nprocs)
        wait_for_step(tmp_path, process, after=size)
        process.terminate()
        code, output = end(process)
        assert code == 143 and output.count("stopped by") == 1, output
        # Ranks that notice later may be at the end of an epoch, which is saved in any case.
        position = newest_manifest(tmp_path / "run")["state"]["position"]
        assert len(breakpoints(tmp_path) - before) == bool(position)
        assert not (tmp_path / "run/result.json").exists()
    output = run(tmp_path, *arguments, nprocs=4)
    assert "resuming after step" in output
    assert_ends_alike(tmp_path, output, alone, 4)


# ------------------------------------------------------------------ ways to start


@SLOW
def test_paddle_launch_of_two_processes_ends_with_the_same_bits(tmp_path, tiny, alone):
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    output = run(tmp_path, *arguments, launch=["--nproc_per_node", 2], env=env)
    assert end_of(tmp_path) == alone
    assert output.count("launch writes all environment variables") == 1
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
    ends = [end(node) for node in nodes]
    assert [code for code, _ in ends] == [0, 0], ends
    assert end_of(tmp_path) == alone


# ------------------------------------------------------------------ processes that die


@SLOW
@pytest.mark.parametrize(
    ("how", "rank"),
    [({"nprocs": 2}, 0), pytest.param({"launch": ["--nproc_per_node", 2]}, 1, marks=RELEASE)],
)
def test_killed_process_or_parent_leaves_no_orphan_and_costs_no_bit(
    tmp_path, tiny, alone, how, rank
):
    """One after the other."""
    arguments = [*SHARDED, "--data", tiny, "--output", "run"]
    for who in (rank, "parent"):
        size = size_of_log(tmp_path)
        process = start(tmp_path, *arguments, **how)
        wait_for_step(tmp_path, process, size)
        ranks = ranks_of(process)
        os.kill(process.pid if who == "parent" else ranks[rank], signal.SIGKILL)
        deadline = time.monotonic() + 15
        while ranks_of(process):
            assert time.monotonic() < deadline, "an orphan is left"
            time.sleep(0.1)
        code, output = end(process)
        assert (code == -signal.SIGKILL) == (who == "parent") and code != 0
        if "nprocs" in how and who != "parent":
            assert code == 137
            assert f"rank {rank} (process {ranks[rank]}) ended with SIGKILL" in output
            assert output.count("error: ") == 1 and "Traceback" not in output
    run(tmp_path, *arguments, **how)
    assert end_of(tmp_path) == alone


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
    code, output = end(process)
    assert code == 130, output
    assert output.count("stopped by SIGINT") == 1 and "Traceback" not in output, output


@SLOW
def test_signal_ends_a_rank_that_waits_for_others(tmp_path, tiny):
    """Paddle waits for them in C++, where Python runs no handlers."""
    endpoints = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    env = {
        "PADDLE_TRAINER_ID": "0",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[0],
    }
    process = start(tmp_path, "--data", tiny, "--output", "run", env=env)
    port = f":{int(endpoints[0].rpartition(':')[2]):04X} "
    while port not in Path("/proc/net/tcp").read_text():  # it listens for rank 1
        assert process.poll() is None, "it ended before it waited"
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=20)
    assert process.returncode in (143, -signal.SIGTERM)


@SLOW
def test_stalled_rank_is_reported_and_ends_all(tmp_path, tiny):
    arguments = [*SHARDED, "--data", tiny, "--output", "run", "--hang_timeout", 4]
    process = start(tmp_path, *arguments, nprocs=2)
    wait_for_step(tmp_path, process)
    os.kill(ranks_of(process)[1], signal.SIGSTOP)
    code, output = end(process)
    # stopped within an exchange, it cannot be told from the one that waits for it there
    assert code == 1 and re.search(r"rank (0, )?1 sent no heartbeat for 4 s", output), output


@SLOW
def test_max_restarts_restarts_two_processes_to_the_same_bits(tmp_path, tiny, alone):
    arguments = [*SHARDED, "--data", tiny, "--output", "run", "--max_restarts", 2]
    process = start(tmp_path, *arguments, nprocs=2)
    wait_for_step(tmp_path, process)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    code, output = end(process)
    assert code == 0 and "resuming after step" in output, output
    assert end_of(tmp_path) == alone


# ------------------------------------------------------------------ spawn, for custom code


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
            epochs[-1] += [hashlib.sha256(image).hexdigest() for image in images]
    evaluated = sum(len(labels) for _, labels in load_data("eval", 32, data)())
    Path(tmp, f"{rank}.json").write_text(json.dumps([epochs, evaluated]))


@SLOW
def test_tutorial_loop_of_two_processes_gives_each_its_share(tmp_path, tiny):
    spawn(trains_as_the_tutorial, (tmp_path, str(tiny)), nprocs=2)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    images, _ = MnistDataset("train", tiny).batch(np.arange(300))
    every_image = sorted(hashlib.sha256(image).hexdigest() for image in images)
    (first, second), (own, others) = zip(*(epochs for epochs, _ in ranks))
    assert len(first) == len(second) == 150 and first != own
    assert sorted(first + second) == sorted(own + others) == every_image  # each once
    assert [evaluated for _, evaluated in ranks] == [70, 70]


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


class WorksForLong(Callback):
    """From the third step on, rank 1 has once to work for 40 s at a place; gloo waits for 30."""

    def __init__(self, place):
        self.place = place

    def after_step(self, view):
        if view.step == 3 and not is_rehearsal() and os.environ["PADDLE_TRAINER_ID"] == "1":
            os.environ["WORKS_IN"] = self.place
        work("a callback")


class SlowPoints(Points):
    def __init__(self, place):
        super().__init__()
        self.place = place

    def __getitem__(self, index):
        work(self.place)
        return super().__getitem__(index)


def work(place):
    if os.environ.get("WORKS_IN") == place:
        os.environ["WORKS_IN"] = ""
        time.sleep(40)


@RELEASE
@pytest.mark.parametrize("place", ["reading", "an evaluation", "a callback"])
def test_rank_that_works_longer_than_gloo_waits_keeps_the_bits(tmp_path, place):
    def train(name, where):
        data = {"train": SlowPoints("reading"), "valid": SlowPoints("an evaluation")}
        options = {"nprocs": 2, "callbacks": [WorksForLong(where)], **data}
        return fit_rows.train("SGD with clipping", tmp_path / name, **options)

    begin = time.monotonic()
    unbroken = fit_rows.bits(train("unbroken", "nowhere"))
    middle = time.monotonic()
    assert fit_rows.bits(train("slow", place)) == unbroken
    assert time.monotonic() - middle > 40 + (middle - begin) / 4


def exchanges():
    """Each rank in turn is late, so that a thread stands in for it."""
    world = join()
    for late in range(3):
        if world.rank == late:
            time.sleep(0.25)
        total = world.all_reduce(paddle.full([2, 3], 10.0**world.rank, "float64"))
        assert total.dtype == paddle.float64 and total.tolist() == [[111.0] * 3] * 2
        if world.rank == late:
            time.sleep(0.25)
        gathered = world.all_gather(paddle.full([2], float(world.rank)))
        assert [t.tolist() for t in gathered] == [[0, 0], [1, 1], [2, 2]]
        assert world.all_gather_objects(10 * world.rank) == [0, 10, 20]
    assert math.isnan(world.all_reduce(paddle.to_tensor(math.nan)).item())
    shared = paddle.full([2], float(world.rank))
    world.broadcast([shared])
    assert shared.tolist() == [0, 0]
    assert world.run_on_main(lambda: f"of rank {world.rank}") == "of rank 0"

    def refuse():
        raise ConfigError(f"refused by rank {world.rank}")

    with pytest.raises(ConfigError, match="refused by rank 0"):
        world.run_on_main(refuse)


def sums_gradients():
    world = join()
    for dtypes in ("float32", "float64 unused", "bfloat16 and float64"):
        for is_used in (True, False, "in one shard"):
            test_gradients.check(dtypes, is_used, 2 * world.size, world)
            test_gradients.check(dtypes, is_used, world.size, world, ordered=False)


def evaluates(data):
    """In batches of 7: ten of them, which three processes take in turns."""
    evaluation.BATCH_SIZE = 7
    world = join()
    paddle.seed(1)
    model, dataset = MNIST(), MnistDataset("eval", data)
    together = evaluation.evaluate(model, dataset, world)
    alone = evaluation.evaluate(model, dataset)
    for name in ("labels", "predictions", "probabilities"):
        assert np.array_equal(getattr(together, name), getattr(alone, name)), name
    assert together.loss == alone.loss and together.count == 70
    other = paddle.io.Subset(dataset, range(70))
    assert evaluation.evaluate(model, other, world).loss == alone.loss


def listening_addresses():
    connections = psutil.Process().net_connections("inet")
    return [c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN]


def does_everything(data):
    with socket.create_server(("0.0.0.0", 0)):  # the caller's own, which stays
        world = join()
        # Paddle's store accepts whatever it is sent, so no other machine may reach it.
        stores = ["127.0.0.1"] if world.is_main_process else []
        assert sorted(listening_addresses()) == ["0.0.0.0", *stores]
    sums_gradients()
    evaluates(data)
    # less patience than usual: a thread stands in for a rank that is late
    gloo.CALL_SECONDS, gloo.POLL_SECONDS = 0.05, 0.02
    exchanges()
    gloo.CALL_SECONDS = 10  # so long a process waits for its thread when it ends
    world.require_same("the same", "the data")
    world.require_same(world.rank == 1, "the images")


def test_three_processes_exchange_sum_evaluate_and_name_the_rank_that_differs(tiny):
    """The last of their exchanges fails; one before it would have raised another error."""
    with pytest.raises(DataError, match="the images of rank 1 differ from those of rank 0"):
        spawn(does_everything, (str(tiny),), nprocs=3)


def test_spawn_returns_plain_data_that_no_pipe_holds_at_once_and_spells_as_its_caller():
    token = spelling.set("--{} {}")  # as commands do
    try:
        assert spawn(returns_much, nprocs=1, device="cpu") == [*range(50_000), "--fresh"]
    finally:
        spelling.reset(token)


@pytest.mark.parametrize(
    ("unknown", "message"),
    [
        ("selelcted_gpus", "did you mean 'selected_gpus'"),
        ("join", "expected function, args, .*gpus$"),
    ],
)
def test_spawn_unknown_argument_raises_with_the_nearest(unknown, message):
    with pytest.raises(TypeError, match=rf"^spawn\(\): unknown name '{unknown}'; {message}"):
        spawn(returns_much, nprocs=1, **{unknown: "4,5"})


def raises_in_rank_one():
    world = join()
    if world.rank == 1:
        raise ValueError("a fault of rank 1's own")
    world.all_gather_objects(1)


def test_spawn_subclass_of_an_error_is_raised_as_the_error():
    with pytest.raises(CheckpointError, match=r"mnist_epoch0.json: damaged"):
        spawn(raises_damaged, nprocs=1, device="cpu")


@SLOW
def test_spawn_error_of_a_rank_raises_its_own_traceback():
    with pytest.raises(ProcessError) as caught:
        spawn(raises_in_rank_one, nprocs=2)
    output = str(caught.value)
    assert output.startswith("rank 1 failed") and "in raises_in_rank_one" in output
    assert output.endswith("a fault of rank 1's own") and "gloo" not in output


@pytest.mark.parametrize(("rests", "code"), [("", 1), ("heartbeat.pause()", 0)])
def test_guard_ends_a_process_without_heartbeats_unless_paused(rests, code):
    program = f"""
import time
from paddle_mnist.system import heartbeat
heartbeat.guard(1)
heartbeat.beat()
{rests}
time.sleep(3)
"""
    assert forked.run([sys.executable, "-c", program], timeout=60).returncode == code


def test_second_guard_sets_another_timeout_and_keeps_time():
    """Each `join` sets one. Two of them must not count the same seconds twice."""
    program = """
import time
from paddle_mnist.system import heartbeat
heartbeat.guard(100)
heartbeat.guard(4)
heartbeat.beat()
time.sleep(3)
print("alive after 3 s", flush=True)
time.sleep(60)
"""
    done = forked.run([sys.executable, "-c", program], timeout=60)
    assert done.returncode == 1 and done.stdout == "alive after 3 s\n"

"""A run whose machine is lost: what its mirror holds, what resumes from it, what is refused."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import forked
import paddle
import psutil
import pytest
from fit_rows import StopsAt, bits, terminate, train
from mirror_servers import CREDENTIALS, PLACES, files

from paddle_mnist import Saving
from paddle_mnist.checkpoint.checkpointer import Checkpointer
from paddle_mnist.checkpoint.manifest import CHECKSUM, checksum
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.commands.checkpoints import main as checkpoints
from paddle_mnist.errors import (
    CheckpointError,
    ConfigError,
    OutputError,
    RunLockedError,
    StoppedError,
)
from paddle_mnist.system.remote import RemoteFolder, failure
from paddle_mnist.system.signals import stop_signals

RELEASE = pytest.mark.release
ROW = "Adam"
SCRIPT = str(Path(__file__).parent.parent / "mirror_script.py")
SMALL_FILES = {"config.yaml", "metrics.jsonl", "train.log"}


@pytest.fixture(scope="module", params=["folder"])
def place(request, tmp_path_factory):
    """A folder; for a test of what each kind of place does in a way of its own, `everywhere`."""
    pytest.importorskip("fsspec", reason="needs the extra mirror")
    folder = tmp_path_factory.mktemp(request.param) / "there"
    folder.mkdir()
    place = PLACES[request.param](folder)
    yield place
    place.close()


everywhere = pytest.mark.parametrize(
    "place",
    [
        "folder",
        pytest.param("s3", marks=pytest.mark.slow),
        pytest.param("sftp", marks=RELEASE),
    ],
    indirect=True,
    scope="module",
)


@pytest.fixture
def url(place, tmp_path):
    return place.url(tmp_path.name)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return bits(train(ROW, tmp_path_factory.mktemp("unbroken")))


def run(output, url, callbacks=(), **options):
    options = {"mirror_timeout": 60.0, "save_every_steps": 2, **options}
    return train(ROW, output, callbacks=callbacks, mirror=url, **options)


def run_until(step, output, url, **options):
    with pytest.raises(StoppedError):
        run(output, url, [StopsAt(step, terminate)], **options)


def manifests(url):
    """Return the steps of a copy's checkpoints by the names of their manifests."""
    names = [name for name in files(url) if name.endswith(".json") and name != "result.json"]
    return {name: state_of(url, name)["state"]["step"] for name in sorted(names)}


def state_of(url, name):
    return json.loads(RemoteFolder(url).read(name, 2**20))


def newest(url):
    steps = manifests(url)
    return max(steps, key=steps.__getitem__)


@everywhere
def test_lost_run_resumes_in_a_new_folder_to_the_same_bits(tmp_path, url, unbroken, lines):
    run_until(7, tmp_path / "one", url)
    assert files(url) > SMALL_FILES
    shutil.rmtree(tmp_path / "one")

    result = run(tmp_path / "two", url)

    assert f"downloaded model_epoch1_step7_breakpoint from {url}" in lines()
    assert not any("not uploaded" in line for line in lines())
    assert bits(result) == unbroken
    assert files(url) > {*SMALL_FILES, "model.pdparams", "result.json"}
    log = Path(tmp_path, "two", "train.log").read_text()
    assert "epoch 1/2 step 3/10" in log, "the log of the first machine"
    assert log.encode().startswith(RemoteFolder(url).read("train.log", 2**20))
    steps = [json.loads(line)["step"] for line in (tmp_path / "two/metrics.jsonl").open()]
    assert steps == sorted(steps) and steps[0] < 7
    assert len(manifests(url)) <= 4, "the newest three, and the best"

    for _ in range(2):  # the second one finds it finished
        assert bits(run(tmp_path / "three", url)) == unbroken
    assert any("choose another output and another mirror to start over;" in x for x in lines())
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode()
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        assert secret not in path.read_bytes(), path


def test_lost_run_gets_its_best_checkpoints_back(tmp_path, url):
    """As many as it keeps, though none of them is the newest."""

    def frozen(parameters):
        return paddle.optimizer.SGD(0.0, parameters=parameters)

    # All are equally good, so that the first are the best.
    options = {"optimizer": frozen, "epochs": 4, "keep_best": 2, "keep_last": 1}
    run(tmp_path / "one", None, **options)
    run(tmp_path / "one", url, **options)
    uploaded = sorted(Path(url, "checkpoints").glob("*.json"), key=os.path.getmtime)
    kept = ["model_epoch0.json", "model_epoch3.json", "model_epoch1.json"]
    assert [path.name for path in uploaded] == kept, "the best, the newest, the others"
    shutil.rmtree(tmp_path / "one")
    run(tmp_path / "two", url, **options)
    assert {path.name for path in Path(tmp_path, "two/checkpoints").glob("*.json")} == {*kept}


@everywhere
def test_truncated_copy_is_reported_and_not_used(tmp_path, url, unbroken, lines):
    run_until(7, tmp_path / "one", url)
    damaged, remote = newest(url), RemoteFolder(url)
    weights = damaged.replace(".json", ".pdparams")
    remote.write(weights, remote.read(weights, 2**20)[:-9])

    result = run(tmp_path / "two", url)

    assert any(f"{weights}: " in line and "damaged copy" in line for line in lines())
    assert bits(result) == unbroken


def test_process_of_the_mirror_that_dies_after_a_truncated_copy_is_replaced(
    tmp_path, url, unbroken, lines
):
    """The next process still accepts that copy as the run's own."""
    run_until(7, tmp_path / "one", url)
    remote = RemoteFolder(url)
    remote.write(newest(url).replace(".json", ".pdparams"), b"x")

    def kill_and_stop():
        [process] = processes_of_mirrors(os.getpid())
        process.kill()
        terminate()

    with pytest.raises(StoppedError):
        run(tmp_path / "two", url, [StopsAt(7, kill_and_stop)])

    assert any("damaged copy" in line for line in lines())
    assert any("the process of the mirror died" in line for line in lines())
    assert bits(run(tmp_path / "three", url)) == unbroken
    assert any("resuming after step 7" in line for line in lines())


def test_copy_that_does_not_fit_the_start_raises(tmp_path, url):
    run_until(4, tmp_path / "one", url)
    before = manifests(url)
    changed = r"(?s)seed: 5 in the run, 6 now\nChoose another mirror to start over, or to ch"
    with pytest.raises(ConfigError, match=changed):
        run(tmp_path / "two", url, seed=6)
    with pytest.raises(ConfigError, match=r"resume is off, but .*choose another mirror"):
        run(tmp_path / "two", url, resume="off")
    here = r"resume is off, but .* holds model_.*; choose another output and another mirror to"
    with pytest.raises(ConfigError, match=here):
        run(tmp_path / "one", tmp_path / "empty", resume="off")
    run_until(3, tmp_path / "other", None)
    with pytest.raises(ConfigError, match=r"holds run .* but .* is run "):
        run(tmp_path / "other", url)
    assert manifests(url) == before and not (tmp_path / "two/checkpoints").exists()

    for name in before:
        RemoteFolder(url).write(name, b"{")
    with pytest.raises(CheckpointError, match="no valid checkpoint there"):
        run(tmp_path / "two", url)
    assert not list((tmp_path / "two/checkpoints").glob("*"))


@pytest.mark.parametrize(("alone", "resumed"), [(4, 7), (6, 7), (8, 8)])
def test_run_that_continued_here_and_elsewhere_resumes_from_the_newer(
    tmp_path, url, unbroken, lines, alone, resumed
):
    run_until(4, tmp_path / "one", url)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    if alone > 4:
        run_until(alone, tmp_path / "one", None)
    run_until(7, tmp_path / "two", url)
    assert bits(run(tmp_path / "one", url)) == unbroken
    assert any(f"resuming after step {resumed}" in line for line in lines())
    assert max(manifests(url).values()) == 10


@everywhere
def test_run_whose_copy_another_machine_continues_raises(tmp_path, url):
    """As if another machine had uploaded a checkpoint meanwhile."""
    run_until(4, tmp_path / "one", url)

    def upload_as_another_machine():
        name = newest(url)
        manifest = state_of(url, name)
        manifest["state"]["step"] += 100
        suffixes = {Path(file).suffix: entry for file, entry in manifest["files"].items()}
        manifest["files"] = {f"model_epoch9{end}": entry for end, entry in suffixes.items()}
        manifest[CHECKSUM] = checksum(manifest)
        RemoteFolder(url).write("checkpoints/model_epoch9.json", json.dumps(manifest).encode())

    with pytest.raises(RunLockedError, match="model_epoch9, which another process uploaded"):
        run(tmp_path / "one", url, [StopsAt(5, upload_as_another_machine)])
    assert max(manifests(url).values()) > 100
    assert not {6, 8, 10} & {*manifests(url).values()}


@everywhere
def test_training_continues_while_the_mirror_is_away(tmp_path, place, url, unbroken, lines):
    callbacks = [StopsAt(3, place.stop), StopsAt(9, place.start)]
    result = run(tmp_path / "one", url, callbacks, mirror_timeout=120.0)
    assert bits(result) == unbroken
    assert "mirror: the copy is complete" in lines()
    assert bits(run(tmp_path / "two", url)) == unbroken


@everywhere
def test_mirror_that_cannot_be_reached_is_uploaded_to_later(tmp_path, place, url, unbroken, lines):
    run_until(4, tmp_path / "one", url)
    place.stop()
    try:
        with pytest.raises(CheckpointError, match="cannot be reached within 2 seconds"):
            run(tmp_path / "two", url, mirror_timeout=2.0)
        assert not (tmp_path / "two/checkpoints").exists()
        run_until(7, tmp_path / "one", url, mirror_timeout=2.0)
        assert any("is not complete after 2 seconds" in line for line in lines())
    finally:
        place.start()
    assert bits(run(tmp_path / "one", url)) == unbroken
    assert max(manifests(url).values()) == 10


def test_fresh_run_with_a_used_mirror_raises_and_moves_nothing(tmp_path, url):
    run_until(4, tmp_path / "one", url, seed=9)
    before = manifests(url)
    for folder in ("one", "in a new folder"):
        with pytest.raises(ConfigError, match=r"holds model_epoch0.*choose another mirror"):
            run(tmp_path / folder, url, fresh=True)
    assert manifests(url) == before
    assert (tmp_path / "one/config.yaml").exists() and not (tmp_path / "one.1").exists()


@everywhere
def test_mirror_with_files_of_others_raises_and_leaves_them_alone(tmp_path, url):
    names = ["config.yaml", "checkpoints/my_best.pdparams", "of others/1"]
    for number, name in enumerate(names):
        there = f"{url}/{number}"
        remote = RemoteFolder(there)
        remote.write(name, b"theirs")
        with pytest.raises(CheckpointError, match="neither empty nor the mirror of a run"):
            run(tmp_path / "one", there, fresh=number == 1)
        folder, _, base = name.rpartition("/")
        assert remote.read(name, 9) == b"theirs" and [*remote.sizes(folder)] == [base]
        assert len(remote.names()) == 1


@everywhere
def test_only_files_of_checkpoints_are_deleted(tmp_path, url, unbroken):
    """Those of uploads that were killed among them."""
    run_until(7, tmp_path / "one", url)
    shutil.rmtree(tmp_path / "one")
    remote, theirs = RemoteFolder(url), {"checkpoints/my_best.pdparams", "notes.txt"}
    for name in theirs:
        remote.write(name, b"theirs")
    killed = newest(url)
    remote.remove(killed)
    assert bits(run(tmp_path / "one", url)) == unbroken
    assert not {killed, killed.replace(".json", ".pdparams")} & files(url)
    assert [remote.read(name, 9) for name in theirs] == [b"theirs"] * 2


REFUSED = [
    *("one", "one/copy", ".", "link/copy", "file://{}/one/copy"),  # inside the run or around it
    "s3://name:what-no-file-may-hold@bucket/x",
    "s3://name:what-no-file/may-hold@bucket/x",
    "sftp://name:what-no-file-may-hold@host/x",
    "simplecache::s3://name:what-no-file-may-hold@bucket/x",
    "https://host/x?key=what-no-file-may-hold",
    *("s3:///", "s3:x", "~who-is-not-here/x"),
]


def test_invalid_mirror_raises_without_showing_a_password(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("one")
    for mirror in REFUSED:
        with pytest.raises(ConfigError, match=r"expected|one would be inside the other") as raised:
            run(tmp_path / "one", mirror.format(tmp_path))
        assert "no-file" not in str(raised.value) and not (tmp_path / "one").exists(), mirror
    with pytest.raises(ConfigError, match="a folder on this machine; mirror keeps") as raised:
        train(ROW, "s3://name:what-no-file-may-hold@bucket/x")
    assert "no-file" not in str(raised.value)
    with pytest.raises(ConfigError, match="which only fit keeps up to date"):
        saving = Saving(mirror=str(tmp_path / "there"))
        Checkpointer(CheckpointStore(tmp_path), None, None, saving)


def test_messages_of_drivers_are_cut_after_credentials_are_masked():
    """Else those at the cut would look like the name of a host."""
    error = OSError("no answer from http://name:a/secret@proxy:8080/x?key=secret&b=1, nor 'y@z'")
    assert str(failure(error)) == "OSError: no answer from http://...@proxy:8080/x?..., nor 'y@z'"
    before = "x" * 285
    error = OSError(f"{before} http://name:secret@proxy:8080/x?key=secret does not answer")
    assert str(failure(error)) == f"OSError: {before} http://...@pro ..."


@everywhere
@pytest.mark.slow
def test_finished_run_whose_copy_is_incomplete_raises_exit_7(tmp_path, place, url, unbroken):
    run_until(4, tmp_path / "one", url)
    place.stop()
    try:
        for _ in range(2):  # also once it has finished
            with pytest.raises(OutputError, match=r"lacks the result .* complete in") as raised:
                run(tmp_path / "one", url, mirror_timeout=2.0)
            assert raised.value.exit_code == 7
            assert (tmp_path / "one/result.json").exists()
    finally:
        place.start()
    assert bits(run(tmp_path / "one", url)) == unbroken
    assert "result.json" in files(url) and max(manifests(url).values()) == 10


def test_mirror_works_where_the_current_folder_holds_another_paddle_mnist(
    tmp_path, url, unbroken, monkeypatch, lines
):
    (tmp_path / "paddle_mnist").mkdir()
    (tmp_path / "paddle_mnist/__init__.py").write_text("raise SystemExit('another one')")
    monkeypatch.chdir(tmp_path)
    assert bits(run(tmp_path / "one", url)) == unbroken
    assert not any("the process of the mirror died" in line for line in lines())


def test_unknown_protocol_raises_at_once(tmp_path):
    with pytest.raises(CheckpointError, match=r"reached \(ValueError: Protocol not known: nothing"):
        run(tmp_path / "one", "nothing://host/x", mirror_timeout=3600.0)


def test_run_that_lost_its_lock_uploads_nothing_more(tmp_path, url, lines):
    def lose():
        (tmp_path / "one/.lock.json").unlink()

    with pytest.raises(RunLockedError, match="has lost its lock"):
        run(tmp_path / "one", url, [StopsAt(7, lose)])
    assert not any("completing the copy" in line for line in lines())
    assert all(step <= 6 for step in manifests(url).values())


def start(output, options, seconds=0.5, **variables):
    """Start a run that takes so many seconds a step. variables: of its environment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, SCRIPT, str(output), json.dumps(options), str(seconds)]
    if not variables:
        return forked.Popen(command, env=environment, stderr=2)
    # The variables of `refusing` are read where a program starts.
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_mirrored_run_on_a_file_system_without_locks_warns_once(tmp_path, url, refusing):
    process = start(tmp_path / "one", {"mirror": url}, 0.0, **refusing("FLOCK", "ENOLCK"))
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert output.count(".lock.json is the lock") == 1, output


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_second_signal_ends_the_wait_for_the_mirror(tmp_path, place, url):
    options = {"save_every_steps": 1, "mirror": url, "epochs": 200}  # it does not end by itself
    process = start(tmp_path / "one", options)
    while not manifests(url):
        assert process.poll() is None
        time.sleep(0.05)
    place.stop()
    try:
        time.sleep(1)  # until there is another checkpoint
        process.send_signal(signal.SIGINT)
        assert any("completing the copy" in line for line in process.stdout)
        time.sleep(3)  # what comes at once may be the first one again, forwarded
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=300)[0]  # not the 600 of the mirror's timeout
    finally:
        process.kill()
        place.start()
    assert process.returncode == 128 + signal.SIGINT
    [line] = re.findall("^mirror: .* is not complete after .*", output, re.M)
    assert line.endswith("run again to complete it")


def processes_of_mirrors(pid):
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "paddle_mnist.checkpoint.mirror_copy" in " ".join(child.cmdline()):
                    found.append(child)
    return found


def is_alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def result_of(process):
    lines = process.communicate()[0].splitlines()
    assert process.returncode == 0
    return json.loads(lines[-1])


def test_main_process_of_several_keeps_the_mirror(tmp_path, url):
    options = {"nprocs": 2, "mirror": url}
    assert result_of(start(tmp_path / "one", options, seconds=0))
    assert "result.json" in files(url)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("place", "kills"),
    [
        ("s3", 2),
        pytest.param("sftp", 2, marks=RELEASE),
        pytest.param("s3", 20, marks=RELEASE),
    ],
    indirect=["place"],
)
def test_machine_lost_at_each_kill_resumes_to_the_same_bits(tmp_path, url, kills):
    """kill -9 at any moment of the trainer, or of its mirror's process and then of the trainer."""
    options = {"nprocs": 2, "save_every_steps": 1}
    unbroken = result_of(start(tmp_path / "unbroken", options, seconds=0))
    output, random = tmp_path / "one", Random(url.partition(":")[0])
    for number in range(kills):
        process = start(output, {**options, "mirror": url})
        while not (output / "train.log").exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(random.uniform(2, 8))
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        for uploader in processes_of_mirrors(process.pid) if number % 2 == 0 else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                uploader.kill()
            time.sleep(2)
        process.kill()
        process.communicate()
        while any(is_alive(child) for child in family):  # nobody outlives the trainer
            time.sleep(0.1)
        shutil.rmtree(output, ignore_errors=True)
    assert result_of(start(output, {**options, "mirror": url})) == unbroken


def test_process_of_the_mirror_ignores_signals_for_the_training(tmp_path, url, lines):
    """Schedulers send them to all processes of a job."""

    def signal_all():
        [process] = processes_of_mirrors(os.getpid())
        for signum in (*stop_signals(), signal.SIGUSR2):
            process.send_signal(signum)

    run(tmp_path / "one", url, [StopsAt(5, signal_all)], stop_signals=["USR2"])
    assert "mirror: the copy is complete" in lines()
    assert not any("the process of the mirror died" in line for line in lines())


@pytest.fixture
def slow_place(place):
    place.delay = 0.1
    yield place
    place.delay = 0.0


on_s3 = pytest.mark.parametrize("place", ["s3"], indirect=True)


@pytest.mark.slow
@on_s3
def test_slow_mirror_gets_whole_checkpoints_of_those_that_are_saved_meanwhile(
    tmp_path, url, slow_place, unbroken, lines
):
    """Each is pruned on the disk while it is uploaded, and the last one is saved meanwhile, too."""
    assert bits(run(tmp_path / "one", url, save_every_steps=1, keep_last=1)) == unbroken
    assert "mirror: the copy is complete" in lines()
    assert not any("trying again" in line for line in lines())
    assert max(manifests(url).values()) == 10
    for name in files(url):
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(RemoteFolder(url).read(name, 2**20))
    assert checkpoints(["verify", str(tmp_path / "copy")]) == 0
    assert bits(run(tmp_path / "two", url, save_every_steps=1, keep_last=1)) == unbroken


@pytest.mark.slow
@pytest.mark.timeout(900)
@on_s3
def test_training_killed_in_an_upload_and_started_at_once_ends_with_the_same_bits(
    tmp_path, url, slow_place
):
    """The process that uploads for the killed one does not write beside that of the next."""
    options = {"save_every_steps": 1}
    unbroken = result_of(start(tmp_path / "unbroken", options, seconds=0))
    for _ in range(2):
        process = start(tmp_path / "one", {**options, "mirror": url}, seconds=0.2)
        assert any("step 3/10" in line for line in process.stdout)
        process.kill()
        process.wait()
    process = start(tmp_path / "one", {**options, "mirror": url}, seconds=0)
    assert result_of(process) == unbroken
    assert max(manifests(url).values()) == 10


@pytest.mark.slow
@pytest.mark.timeout(900)
@on_s3
def test_mirror_that_fails_at_each_third_request_changes_no_bit(tmp_path, place, url, unbroken):
    place.failing = 0.3
    try:
        run_until(7, tmp_path / "one", url, mirror_timeout=600.0)
        shutil.rmtree(tmp_path / "one")
        assert bits(run(tmp_path / "two", url, mirror_timeout=600.0)) == unbroken
    finally:
        place.failing = 0.0
    assert max(manifests(url).values()) == 10


def test_run_that_ended_before_its_first_checkpoint_starts_in_a_new_folder(tmp_path, url, unbroken):
    """The files that were uploaded of it show that the place is a mirror."""
    never = {"save_at_start": False, "save_on_exception": False, "save_every_steps": None}
    run_until(2, tmp_path / "one", url, **never)
    assert bits(run(tmp_path / "two", url)) == unbroken

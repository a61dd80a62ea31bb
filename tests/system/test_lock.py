"""One owner of a folder at a time: with locks and without, on this machine and on others."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest

from paddle_mnist.system import heartbeat
from paddle_mnist.system.lock import RECORD, locked_folder, this_process

# Owns the folder until a line comes, then asks whether it still does.
OWNS = """
import sys
from pathlib import Path
from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.system.lock import locked_folder

try:
    with locked_folder(Path(sys.argv[1]), float(sys.argv[2]) if sys.argv[2:] else None) as owner:
        print("owns", flush=True)
        sys.stdin.readline()
        owner.require()
        print("still", flush=True)
except PaddleMnistError as error:
    print(f"error: {error}", flush=True)
    sys.exit(error.exit_code)
"""


@pytest.fixture(params=[None, "ENOLCK"])
def environment(request, refusing):
    """With locks, and on file systems without."""
    return {**os.environ, **(refusing("FLOCK", request.param) if request.param else {})}


@pytest.fixture
def start(tmp_path, environment):
    """Start a process that owns the folder, or tries to."""
    with contextlib.ExitStack() as stack:

        def run(*words):
            process = subprocess.Popen(
                [sys.executable, "-c", OWNS, tmp_path, *map(str, words)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


@pytest.fixture
def own(start):
    """Start such a process, and wait for its first line; gives both."""

    def run(*words):
        process = start(*words)
        return process, process.stdout.readline()

    return run


def change_record(folder, seconds_ago=0.0, **changes):
    """As if its owner were another process, of another machine perhaps, and quiet for a while."""
    path = folder / RECORD
    values = json.loads(path.read_text())
    values.update(changes)
    path.write_text(json.dumps(values))
    now = path.stat().st_mtime
    os.utime(path, (now - seconds_ago, now - seconds_ago))


def test_second_owner_is_refused_with_host_process_and_age(own, tmp_path):
    owner, line = own()
    assert line == "owns\n"
    change_record(tmp_path, seconds_ago=300)
    second, line = own()
    assert second.wait() == 75
    for part in (str(tmp_path), f"process {owner.pid} on host {os.uname().nodename}", "5 min ago"):
        assert part in line
    assert "break_lock_after" not in line  # it is seen to run
    assert own("0.1")[1].startswith("error: ")
    assert owner.communicate("\n")[0] == "still\n" and owner.returncode == 0
    assert not (tmp_path / RECORD).exists()
    assert own()[1] == "owns\n"


def test_killed_process_of_this_machine_loses_its_lock(own, tmp_path):
    owner, _ = own()
    owner.kill()
    owner.wait()
    assert (tmp_path / RECORD).exists()
    assert own()[1] == "owns\n"


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (None, {"host": "gone-node"}),
        ("ENOLCK", {"host": "gone-node"}),
        ("ENOLCK", {"system": "of-before pid:[4026531836]"}),
        ("ENOLCK", {"system": "of-now pid:[1]"}),
    ],
    indirect=["environment"],
)
def test_lock_of_another_machine_is_broken_only_by_choice(own, tmp_path, place):
    """And its owner, which was only suspended, sees that it has lost it."""
    owner, _ = own()
    change_record(tmp_path, seconds_ago=7200, **place)
    refused, line = own()
    assert refused.wait() == 75 and str(tmp_path / RECORD) in line
    assert f"process {owner.pid} on host {place.get('host', '')}" in line and "2 h ago" in line
    assert "break_lock_after" in line
    assert own(7300)[1].startswith("error: ")
    breaker, line = own(7100)
    assert line == "owns\n"
    out, _ = owner.communicate("\n")
    assert owner.returncode == 75
    assert f"has lost its lock to process {breaker.pid} on host" in out
    assert breaker.communicate("\n")[0] == "still\n"


def test_owner_that_trains_records_its_heartbeats(tmp_path):
    with locked_folder(tmp_path):
        change_record(tmp_path, seconds_ago=7200)
        before = (tmp_path / RECORD).stat().st_mtime
        heartbeat.beat()
        assert (tmp_path / RECORD).stat().st_mtime > before + 7000


# Owns the folder, and is killed ahead of an operation there, if there are so many.
DIES = """
import sys
from pathlib import Path
from faulty_disk import at, kill, watched
from paddle_mnist.system.lock import locked_folder

folder, number = Path(sys.argv[1]), int(sys.argv[2])
with watched(folder, at(number, kill)), locked_folder(folder) as owner:
    owner.require()
"""


@pytest.mark.parametrize("environment", ["ENOLCK"], indirect=True)
def test_owner_killed_at_any_point_leaves_the_folder_free(tmp_path, environment):
    """Also where its record is empty, or the number of the process is in use again."""
    environment = {**environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    code, number = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        folder = tmp_path / str(number)
        folder.mkdir()
        reused = dataclasses.replace(this_process(), started="1")
        (folder / RECORD).write_bytes(reused.encode())
        command = [sys.executable, "-c", DIES, folder, str(number)]
        code = subprocess.run(command, env=environment).returncode
        with locked_folder(folder) as owner:
            owner.require()
        number += 1
    assert code == 0 and number > 5


@pytest.mark.parametrize("environment", ["ENOLCK"], indirect=True)
def test_one_of_many_gets_the_lock_of_a_dead_owner(own, start, tmp_path):
    """A process that replaces the record must not replace that of a quicker process."""
    owner, _ = own()
    owner.kill()
    owner.wait()
    change_record(tmp_path, 7200.0, host="gone-node")
    several = [start(3600) for _ in range(6)]
    first = [process.stdout.readline() for process in several]
    out = [process.communicate("\n")[0] for process in several]
    assert out.count("still\n") == 1, (first, out)

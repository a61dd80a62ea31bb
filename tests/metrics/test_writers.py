"""Metrics are written: lines for people, JSON lines, VisualDL, a progress bar on a terminal."""

import fcntl
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.error
import urllib.request

import forked
import pytest
from conftest import ROOT
from log_lines import LINE

from paddle_mnist.metrics.console import LogWriter
from paddle_mnist.metrics.jsonl import JsonlWriter, cut_jsonl
from paddle_mnist.metrics.writers import ManyWriters
from paddle_mnist.progress import RunningSums, TrainState

VALUES = {
    "train/loss": 0.0412,
    "train/acc": 0.99,
    "train/lr": 0.00731,
    "speed/reader_cost": 0.0003,
    "speed/batch_cost": 0.0281,
    "speed/ips": 2277.4,
}
IN_EPOCH = TrainState(epoch=1, position=1018, step=1800)
AFTER_EPOCH = TrainState(epoch=2, position=0, step=1564)


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr("paddle_mnist.metrics.console.log.info", lines.append)
    return lines


def test_log_line_is_the_documented_one(said):
    LogWriter(epochs=5, total_steps=3910).write(IN_EPOCH, VALUES)
    assert said == [
        "epoch 2/5 step 1800/3910 lr 0.00731 loss 0.0412 acc 0.9900 reader_cost 0.0003s "
        "batch_cost 0.0281s ips 2277 samples/s eta 00:00:59"
    ]
    assert LINE.fullmatch(said[0])


def test_validation_line_belongs_to_the_epoch_that_ended(said):
    LogWriter(5, 3910).write(AFTER_EPOCH, {"valid/loss": 0.05, "valid/acc": 0.9871})
    assert said == ["epoch 2/5 step 1564/3910 valid loss 0.0500 acc 0.9871"]


def test_log_line_without_a_known_length(said):
    LogWriter(5).write(IN_EPOCH, VALUES)
    assert "step 1800 lr" in said[0] and "eta" not in said[0]


def test_jsonl_has_one_object_a_line_and_no_speeds(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path)
    writer.write(IN_EPOCH, VALUES)
    writer.write(AFTER_EPOCH, {"valid/acc": 0.98})
    lines = [json.loads(line) for line in path.read_text().splitlines()]  # before it is closed
    assert [(line["tag"], line["value"], line["step"], line["epoch"]) for line in lines] == [
        ("train/loss", 0.0412, 1800, 1),
        ("train/acc", 0.99, 1800, 1),
        ("train/lr", 0.00731, 1800, 1),
        ("valid/acc", 0.98, 1564, 1),
    ]
    assert all(set(line) == {"step", "epoch", "tag", "value", "time"} for line in lines)
    writer.close()


def test_cutting_drops_lines_that_are_none_of_ours(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'5\n{}\n[1]\n\xff\n{"step": "x"}\n{"step": 1, "tag": "t"}\n')
    cut_jsonl(path, TrainState(step=9), 99)
    assert path.read_bytes() == b'{"step": 1, "tag": "t"}\n'


@pytest.mark.parametrize(("count", "left"), [(0, []), (1, [5]), (2, [5, 9]), (99, [5, 9, 12])])
def test_cutting_keeps_what_lies_before_and_drops_a_torn_line(tmp_path, count, left):
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {n}, "tag": "t"}}\n' for n in (5, 9, 12)]
    path.write_text("".join(lines) + '{"step": 3, "val')
    cut_jsonl(path, TrainState(step=9), count)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == left


SUMS = RunningSums(samples=32, totals={"loss": [9.0, 32]})  # a line is due


@pytest.mark.parametrize(
    ("state", "count", "left"),
    [
        # lines as they come: at step 5 a train line was due; 8 ends the epoch
        (TrainState(step=5, position=5), 1, ["train 5"]),
        (TrainState(step=6, position=6, running_sums=SUMS), 1, ["train 5"]),
        (TrainState(step=8, position=8), 2, ["train 5", "train 8"]),
        (TrainState(step=8, position=0, epoch=1), 3, ["train 5", "train 8", "valid 8"]),
        # stopped while they were written: resumed there, all of them are written again
        (TrainState(step=8, position=8, running_sums=SUMS), 2, ["train 5"]),
        (
            TrainState(step=8, position=8, running_sums=SUMS, metrics={"valid/loss": 1.0}),
            3,
            ["train 5"],
        ),
    ],
)
def test_cutting_knows_what_is_written_again(tmp_path, state, count, left):
    path = tmp_path / "metrics.jsonl"
    lines = [("train", 5), ("train", 8), ("valid", 8), ("train", 10)]
    path.write_text(
        "".join(json.dumps({"step": n, "tag": f"{kind}/loss"}) + "\n" for kind, n in lines)
    )
    cut_jsonl(path, state, count)
    records = map(json.loads, path.read_text().splitlines())
    assert [f"{line['tag'][:5]} {line['step']}" for line in records] == left


def test_cutting_a_last_line_without_its_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    # The last line is whole, but more may have been meant to come.
    path.write_text('{"step": 1, "tag": "t"}\n{"step": 2, "tag": "t"}')
    cut_jsonl(path, TrainState(step=9), 99)
    assert path.read_text() == '{"step": 1, "tag": "t"}\n'


def test_many_writers_are_told_everything_in_order():
    class Recorder:
        def __init__(self):
            self.calls = []

        def write(self, state, values):
            self.calls.append(("write", state.step, values))

        def close(self):
            self.calls.append(("close",))

    recorders = [Recorder(), Recorder()]
    writer = ManyWriters(recorders)
    writer.write(IN_EPOCH, VALUES)
    writer.close()
    expected = [("write", 1800, VALUES), ("close",)]
    assert [recorder.calls for recorder in recorders] == [expected] * 2


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny):
    """A small run, and what it printed to a pipe."""
    folder = tmp_path_factory.mktemp("run")
    printed = forked.run(arguments(tiny), cwd=folder, check=True)
    return folder, printed.stdout


def arguments(tiny):
    program = [sys.executable, ROOT / "tools/train.py", "--data", tiny, "--epochs", "2"]
    options = ["--batch_size", "32", "--log_every", "5", "--figures", "false"]
    return [str(a) for a in [*program, *options]]


def test_plain_lines_where_there_is_no_terminal(run):
    folder, printed = run
    lines = [line for line in printed.splitlines() if line.startswith("epoch") and " lr " in line]
    assert len(lines) == 4 and all(map(LINE.fullmatch, lines))
    assert "%|" not in printed
    log = (folder / "work/output/default/train.log").read_text()
    assert all(line in log for line in lines)


def test_progress_bar_on_a_terminal(tmp_path, tiny):
    """A pseudo-terminal for stdout and stderr; lines still come whole, above the bar."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    process = forked.Popen(arguments(tiny), cwd=tmp_path, stdout=other, stderr=other)
    os.close(other)
    shown = b""
    while True:
        try:
            block = os.read(main, 4096)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        shown += block
    assert process.wait() == 0
    shown = shown.decode()
    assert "20/20" in shown and "step/s" in shown
    assert len(LINE.findall(shown)) == 4


def test_dashboard_command_is_printed_and_serves_the_run(run, free_port):
    folder, printed = run
    command = next(
        line.removeprefix("dashboard: ")
        for line in printed.splitlines()
        if line.startswith("dashboard: ")
    )
    assert command == "paddle-mnist dashboard work/output/default"
    server = subprocess.Popen(
        [sys.executable, "-m", "paddle_mnist", *command.split()[1:], "--port", str(free_port)],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        tags = ask(f"http://127.0.0.1:{free_port}/app/api/scalar/tags", server)
        assert "loss" in str(tags) and "acc" in str(tags)
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(url, server):
    """The JSON at a URL, as soon as the server answers."""
    deadline = time.monotonic() + 60
    while True:
        assert server.poll() is None, "the dashboard ended"
        try:
            return json.load(urllib.request.urlopen(url, timeout=10))
        except urllib.error.HTTPError:
            raise
        except OSError:  # not listening yet
            assert time.monotonic() < deadline
            time.sleep(0.2)

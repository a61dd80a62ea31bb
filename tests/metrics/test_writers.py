"""Log lines, `metrics.jsonl`, and the progress bar on a terminal."""

import contextlib
import errno
import fcntl
import io
import json
import os
import pty
import re
import struct
import sys
import termios

import forked
from conftest import ROOT
from faulty_disk import fail, watched

from paddle_mnist.metrics.console import LogWriter, console_logs, log, log_to_console
from paddle_mnist.metrics.writers import JsonlWriter, cut_jsonl
from paddle_mnist.train_state import RunningSums, TrainState

VALUES = {
    "train/loss": 0.0412,
    "train/acc": 0.99,
    "train/lr": 0.00731,
    "speed/reader_cost": 0.0003,
    "speed/batch_cost": 0.0281,
    "speed/ips": 2277.4,
}
LINE = re.compile(
    r"epoch \d+/\d+ step \d+/\d+ lr \d\.\d{5} loss \d+\.\d{4} acc \d\.\d{4} "
    r"reader_cost \d+\.\d{4}s batch_cost \d+\.\d{4}s ips \d+ samples/s eta \d\d:\d\d:\d\d"
)
IN_EPOCH = TrainState(epoch=1, position=1018, step=1800)
AFTER_EPOCH = TrainState(epoch=2, position=0, step=1564)


def test_log_writer_writes_the_documented_lines(lines):
    writer = LogWriter(epochs=5, total_steps=3910)
    writer.write(IN_EPOCH, VALUES)
    writer.write(AFTER_EPOCH, {"valid/loss": 0.05, "valid/acc": 0.9871})
    first, second = lines()
    assert LINE.fullmatch(first)
    assert first == (
        "epoch 2/5 step 1800/3910 lr 0.00731 loss 0.0412 acc 0.9900 reader_cost 0.0003s "
        "batch_cost 0.0281s ips 2277 samples/s eta 00:00:59"
    )
    assert second == "epoch 2/5 step 1564/3910 valid loss 0.0500 acc 0.9871"
    LogWriter(5).write(IN_EPOCH, VALUES)  # of unknown length
    assert "step 1800 lr" in lines()[2] and "eta" not in lines()[2]
    writer.write(IN_EPOCH, {"train/loss": 0.5})  # of a callback
    assert lines()[3] == "epoch 2/5 step 1800/3910 train loss 0.5000"


def test_console_lines_go_to_the_stdout_of_their_moment(monkeypatch):
    """Also once that of the first line is closed, as after `redirect_stdout`."""
    monkeypatch.setattr(log, "handlers", [])
    log_to_console()
    closed, first, second = io.StringIO(), io.StringIO(), io.StringIO()
    for stream in (closed, first):
        with contextlib.redirect_stdout(stream):
            log_to_console()
            log.info("a line")
            with console_logs(second):
                log.info("another")
            log.info("a third")
        assert stream.getvalue() == "a line\na third\n"
        closed.close()
    assert second.getvalue() == "another\n" * 2


def test_jsonl_writer_writes_one_object_a_line_and_no_speeds(tmp_path):
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


def test_jsonl_writer_counts_the_lines_in_the_file(tmp_path):
    """On a disk that fills up within the third of five lines, and is emptied later."""

    def fill_up(operation):
        taken.append(operation)
        if operation.call == "write" and len(taken) > 2:  # opened, and half of the lines written
            fail(errno.ENOSPC)(operation)

    path, taken = tmp_path / "metrics.jsonl", []
    path.write_text('{"step": 1, "tag": "t", "value": 1}\n')
    with watched(tmp_path, fill_up):
        writer = JsonlWriter(path)
        writer.write(IN_EPOCH, dict.fromkeys("abcde", 0.5))
        assert writer.lines == path.read_bytes().count(b"\n") == 1 + 2
        writer.journal.sync()
        assert writer.lines == 1 + 2
    writer.journal.sync()
    assert writer.lines == path.read_bytes().count(b"\n") == 1 + 5
    writer.close()


def test_cut_jsonl_keeps_whole_lines_up_to_the_count(tmp_path):
    path, line = tmp_path / "metrics.jsonl", b'{"step": %d, "tag": "t", "value": 1}\n'
    for text, count, left in (
        (b'5\n{}\n[1]\n\xff\n{"step": "x"}\n' + line % 1, 99, [1]),
        (line % 1 + (line % 2).rstrip(), 99, [1, 2]),  # whole, but for its end
        (b"[" * 10**5 + b"\n" + line % 1, 99, [1]),
        (line % 5 + line % 12 + b'{"step": 3, "val', 99, [5, 12]),
        (line % 5 + line % 9, 1, [5]),
        (line % 9, 0, []),
        (line % 5 + line % 9, 0, [5]),  # the disk took them after the state was saved
    ):
        path.write_bytes(text)
        cut_jsonl(path, path, TrainState(step=9), count)
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == left


# A line is due, and the evaluation is done.
DUE = {"running_sums": RunningSums(32, 0.0, {"loss": [9.0, 32]}), "metrics": {"valid/loss": 1.0}}


def test_cut_jsonl_drops_what_is_written_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [("train", 5), ("train", 8), ("valid", 8), ("train", 10)]
    text = "".join(
        json.dumps({"step": n, "tag": f"{kind}/loss", "value": 1}) + "\n" for kind, n in lines
    )
    for state, count, left in (
        # lines as they come: at step 5 a train line was due; 8 ends the epoch
        (TrainState(step=5, position=5), 1, ["train 5"]),
        (TrainState(step=8, position=8), 2, ["train 5", "train 8"]),
        (TrainState(step=8, position=0, epoch=1), 3, ["train 5", "train 8", "valid 8"]),
        # version 1.0, stopped while they were written: the line is written again
        (TrainState(step=8, position=8, **DUE), 3, ["train 5", "valid 8"]),
    ):
        path.write_text(text)
        cut_jsonl(path, path, state, count)
        records = map(json.loads, path.read_text().splitlines())
        assert [f"{line['tag'][:5]} {line['step']}" for line in records] == left


def test_train_on_a_terminal_shows_a_progress_bar_below_the_lines(tmp_path, tiny):
    """A pseudo-terminal for stdout and stderr; lines still come whole, above the bar."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    command = [sys.executable, ROOT / "tools/train.py", "--data", tiny, "--epochs", 2]
    command += ["--batch_size", 32, "--log_every", 5, "--figures", "false", "--visualdl", "false"]
    process = forked.Popen(command, cwd=tmp_path, stdout=other, stderr=other)
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

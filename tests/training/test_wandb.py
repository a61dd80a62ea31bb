"""The logger of examples/log_to_wandb.py, with W&B's files on this machine."""

import json
import runpy
import struct
import time

import pytest
from conftest import ROOT
from fit_rows import ProgramError, StopsAt, history, stop, train

ROW = "SGD with clipping"  # five steps an epoch


def logger():
    """Return an instance of the example's class."""
    return runpy.run_path(ROOT / "examples/log_to_wandb.py")["WandB"]()


def records(path):
    """Yield the records of a file of W&B's, which is a log as LevelDB writes it.

    After 7 bytes, each piece has a checksum, its length and its type: 1 is a whole record, 2 to 4
    are the first, middle and last piece. No piece crosses a multiple of 32 KiB.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, start, pieces = path.read_bytes(), 7, b""
    while start + 7 <= len(data):
        if 2**15 - start % 2**15 < 7:
            start += 2**15 - start % 2**15
        size, kind = struct.unpack_from("<HB", data, start + 4)
        pieces += data[start + 7 : start + 7 + size]
        start += 7 + size
        if kind in (1, 4):
            yield Record.FromString(pieces)
            pieces = b""


def logged(run):
    """Return the names and the rows of W&B's files, in order."""
    paths = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    found = [record for path in paths for record in records(path)]
    rows = [record.history.item for record in found if record.HasField("history")]
    names = {path.stem for path in paths}
    return names, [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row}
        for row in rows
    ]


@pytest.mark.slow
def test_wandb_logger_of_a_resumed_training_continues_its_run(tmp_path, monkeypatch):
    """All files are of one run, and have each point of the history once."""
    # Not before this test: it takes half a second, of each worker of pytest.
    wandb = pytest.importorskip("wandb", reason="no wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = tmp_path / "run"
    options = {"epochs": 2, "save_every_steps": 3, "save_on_exception": False}
    for step in (2, 8, 10):
        with pytest.raises(ProgramError):
            train(ROW, run, callbacks=[logger(), StopsAt(step, stop)], **options)
        time.sleep(1)  # W&B names its folders by the second
    train(ROW, run, callbacks=[logger()], **options)
    wandb.teardown()  # wait for W&B's process: it still writes when `finish` has returned
    names, rows = logged(run)
    assert len(names) == 1
    for tag in ("train/loss", "valid/loss"):
        points = [(row["step"], row[tag]) for row in rows if tag in row]
        assert points == [*zip(*history(run, tag))]

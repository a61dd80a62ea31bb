"""Files of VisualDL's records, which a resumed run continues up to its checkpoint.

A file is a sequence of records, each after its length; a record is a value of a tag at a step.
VisualDL's own `LogWriter` cannot continue a file, and writes from a thread, which prints errors and
leaves a torn record.
"""

import contextlib
import functools
import logging
import os
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from paddle_mnist.metrics.writers import MetricRow
from paddle_mnist.system.environment import usable_home
from paddle_mnist.system.files import make_folder, matching, write_atomically
from paddle_mnist.system.regular_files import open_own, read_bytes

log = logging.getLogger("paddle_mnist")

RECORDS, GRAPH = "vdlrecords", "vdlgraph"  # how the names of files begin
STEPPED = ("value", "histogram")  # the kinds of records whose `id` is always a step


class ResumePoint(NamedTuple):
    """Where a run resumes.

    step, saved_at: of the checkpoint; the latter in seconds since 1970.
    kept: the lines of `metrics.jsonl` up to it.
    repeated: the tags of its step that were written after it, and are written again.
    """

    step: int
    saved_at: float
    kept: Sequence[MetricRow]
    repeated: Collection[str]


class RecordFile:
    """Appends records to a new file of a folder. VisualDL reads the one whose name sorts last.

    records: those with which it begins, by `_key`. `add` skips repetitions of those that are
    neither scalars nor histograms, such as the configuration.
    """

    def __init__(self, folder: Path, records: Mapping[Any, Any] = {}):
        first = component().meta_data(walltime=now())
        make_folder(folder)
        self.path = next_path(folder, RECORDS)
        self._known = {key for key in records if key[0] not in STEPPED}
        records = {_key(first): first, **records}
        write_atomically(self.path, b"".join(map(_framed, records.values())))
        self._descriptor = open_own(self.path, os.O_WRONLY | os.O_APPEND)

    def add(self, record: Any) -> None:
        """Append a `Record`. Raises OSError, and then leaves no part of it."""
        if self._known and _key(record) in self._known:
            return
        unwritten, size = memoryview(_framed(record)), os.fstat(self._descriptor).st_size
        try:
            while unwritten:
                unwritten = unwritten[os.write(self._descriptor, unwritten) :]
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to raise
                os.ftruncate(self._descriptor, size)
            raise

    def close(self) -> None:
        os.close(self._descriptor)


@functools.cache  # to look for a usable home takes longer than to make a record
def component() -> Any:
    """Return VisualDL's module that makes records."""
    with usable_home():
        from visualdl.component import base_component  # here: it is slow to import

        return base_component


def next_path(folder: Path, kind: str) -> Path:
    """Return the path of a new file that sorts after all others of its kind."""
    numbers = [path.name.split(".")[1] for path in matching(folder, f"{kind}.*.log")]
    newest = max((int(number) for number in numbers if number.isdigit()), default=0)
    return folder / f"{kind}.{max(newest + 1, int(time.time())):010}.log"


def resumed_records(
    folders: Sequence[Path], point: ResumePoint, names: Mapping[str, str]
) -> dict[Any, Any]:
    """Return the records of some folders up to a checkpoint, each once, in order of their steps.

    Scalars that are missing there, such as on another machine, are taken from `point.kept`.

    folders: from the oldest to the newest. names: those of the scalars that belong there, by tag.
    """
    repeated = {names[tag] for tag in point.repeated if tag in names}

    def is_kept(value: Any) -> bool:
        kind = value.WhichOneof("one_value")
        if kind in STEPPED and value.id != point.step:
            return bool(value.id < point.step)
        if kind == "value" and value.tag in repeated:
            return False
        return bool(value.timestamp <= 1000 * point.saved_at)

    records = {}
    for folder in folders:
        for path in matching(folder, f"{RECORDS}.*.log"):
            for record in _read(path):
                if is_kept(record.values[0]):
                    records[_key(record)] = record
    for row in point.kept:
        if row["value"] is not None and (name := names.get(row["tag"])):
            record = scalar(name, row["value"], row["step"], row.get("time"))
            records.setdefault(_key(record), record)
    return dict(sorted(records.items(), key=lambda item: item[1].values[0].id))


def scalar(name: str, value: float, step: int, seconds: Optional[float] = None) -> Any:
    """Return the record of a scalar. seconds: when it was measured, since 1970; by default now."""
    return component().scalar(name, value, step, now() if seconds is None else round(1e3 * seconds))


def now() -> int:
    """Return the time in milliseconds since 1970."""
    return round(1000 * time.time())


def _framed(record: Any) -> bytes:
    return struct.pack("<Q", record.ByteSize()) + bytes(record.SerializeToString())


def _key(record: Any) -> tuple[Any, ...]:
    """Return what identifies a record: the step of a scalar or histogram, else its content."""
    value = record.values[0]
    kind = value.WhichOneof("one_value")
    if kind in STEPPED:
        return kind, value.tag, value.id
    content = type(value)()
    content.CopyFrom(value)
    content.ClearField("timestamp")
    return kind, content.SerializeToString()


def _read(path: Path) -> Iterator[Any]:
    """Yield the records of a file up to a damaged one, with a warning."""
    from google.protobuf.message import DecodeError
    from visualdl.proto.record_pb2 import Record

    data, start = read_bytes(path), 0
    while start < len(data):
        end = start + 8 + int.from_bytes(data[start : start + 8], "little")
        record = Record()
        try:
            if not start + 8 <= end <= len(data):
                raise DecodeError("torn")
            record.ParseFromString(data[start + 8 : end])
        except DecodeError:
            log.warning("%s: dropping the records from byte %d on, which are damaged", path, start)
            return
        if record.values:
            yield record
        start = end

"""The witness: compare the steps that a resumed run repeats with those of the interrupted run.

A killed run has computed steps after its newest checkpoint, which the resumed run computes again.
A file of the run directory holds the loss and the learning rate of each step, a checksum of its
buffers, and the values of evaluations. It has a line of JSON (`_Header`), then records of `_SIZE`
bytes. They are not forced to the disk: `kill -9` leaves what was written.
"""

import errno
import json
import logging
import math
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from paddle_mnist.checkpoint.run import Difference, Repeats
from paddle_mnist.errors import OutputError, PaddleMnistError, RepeatedStepError, listed
from paddle_mnist.interfaces import Writer
from paddle_mnist.metrics.writers import LEARNING_RATE
from paddle_mnist.options import flattened
from paddle_mnist.system.environment import processor_name
from paddle_mnist.system.files import remedy, write_atomically
from paddle_mnist.system.regular_files import open_own, parse_json, read_bytes
from paddle_mnist.train_state import TrainState

if TYPE_CHECKING:
    from paddle_mnist.nn.layers import KeptBuffers
    from paddle_mnist.training.callbacks import Training

log = logging.getLogger("paddle_mnist")

MOST = 2**16  # records that are kept, the newest; in between, the file grows to twice as many
MOST_LISTED = 10  # differences in a result
ALL_STEPS, LOG_LINES = "all steps", "log lines"  # what is compared

_RECORD = struct.Struct("<QIddI")  # step, name, two numbers, checksum of the buffers
_CHECK = struct.Struct("<I")  # the checksum of the record
_SIZE, _KEY = _RECORD.size + _CHECK.size, 12  # bytes of a record; of its step and name
_STEP = 0  # the name of a step's record; an evaluation's is the checksum of a tag
_STEP_VALUES = ("loss", "learning rate", "checksum of the buffers")
_APPEND = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)


class _Header(Repeats):
    """What earlier starts of the run compared, and what may rightly change a bit, by name."""

    conditions: dict[str, Any]


class Witness(Writer):
    """Base class, which records nothing: for a loop without a run, and in other processes.

    Whole steps, with the tensor of the batch's loss, evaluations and, on devices for which steps do
    not wait, log lines are recorded, and compared if they are repeated. RepeatedStepError is raised
    for a difference where `Saving.stop_on_difference` is set. summary: the entry of `result.json`.
    """

    def after_step(self, step: int, loss: Any, rate: float, buffers: "KeptBuffers") -> None: ...

    def after_evaluation(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def after_error(self, step: int, error: BaseException) -> None: ...

    def write(self, state: TrainState, values: Mapping[str, float]) -> None: ...

    def summary(self) -> dict[str, Any]:
        return {}


class FileWitness(Witness):
    """Keeps the records in a file. Whatever is wrong with it costs a line of the log.

    The first record of a step counts. Once one differs, those after it are not compared.

    about: the entries of the run's manifests that `training.session.run_entries` returns.
    """

    def __init__(self, training: "Training", about: Mapping[str, Any]):
        self._path, checkpoint = training.run.witness, training.resumed_from
        self._resumed_from = checkpoint.name if checkpoint else "the beginning"
        self._reads_steps = training.device == "cpu"
        self._stops = training.arguments.saving.stop_on_difference
        self._tags = _names(training.tags)
        self._earlier: dict[bytes, bytes] = {}  # the first record of each step, by its key
        self._descriptor: Optional[int] = None
        self._header = _Header(
            interruptions=0,
            repeated=0,
            differing=[],
            compared=ALL_STEPS if self._reads_steps else LOG_LINES,
            not_compared=[],
            conditions=_conditions(training, about, self._reads_steps),
        )
        try:
            self._take_over(*_read(self._path), training.state.step)
        except FileNotFoundError:
            # A finished run that trains on has other settings, and was not interrupted; neither
            # was one that is only evaluated again.
            is_own = checkpoint and training.run.owns(checkpoint)
            is_same = checkpoint and checkpoint.manifest["config"] == training.compared
            if is_own and is_same and not training.is_over(training.state):
                self._leave_out("the interrupted run has left no records")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            self._leave_out(f"{self._path} cannot be used ({reason})")
        self._header["conditions"]["run"] = about["run_id"]
        self._kept = deque(self._earlier.values(), MOST)
        self._rewrite()

    def _take_over(self, header: _Header, records: Sequence[bytes], step: int) -> None:
        """Continue what earlier starts of the run recorded; under other conditions, only counts.

        step: where this start resumes. Differences of later steps, which were lost, are dropped.
        """
        before, now = header["conditions"], self._header["conditions"]
        self._header = _Header(
            **{**header, "compared": self._header["compared"], "conditions": now}
        )
        self._header["interruptions"] += 1
        for record in records:
            if (first := self._earlier.setdefault(record[:_KEY], record)) is not record:
                self._count(first, record)
        self._header["differing"] = [d for d in self._header["differing"] if d["step"] <= step]
        known = [name for name in now if None not in (before.get(name), now[name])]
        if changed := [name for name in known if before[name] != now[name]]:
            self._earlier = {}
            self._leave_out(f"{listed(changed)} changed")

    def _leave_out(self, reason: str) -> None:
        """Log, and keep for the result, why earlier steps are not compared."""
        log.info("steps before the interruption are not compared with repeated ones: %s", reason)
        self._header["interruptions"] = max(1, self._header["interruptions"])
        self._header["not_compared"] = [*dict.fromkeys([*self._header["not_compared"], reason])]

    def after_step(self, step: int, loss: Any, rate: float, buffers: "KeptBuffers") -> None:
        if self._reads_steps:
            self._add(step, _STEP, loss.item(), rate, buffers.checksum())

    def after_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        for tag, value in metrics.items():
            self._add(step, zlib.crc32(tag.encode()), value)

    def after_error(self, step: int, error: BaseException) -> None:
        is_known = _RECORD.pack(step, _STEP, 0.0, 0.0, 0)[:_KEY] in self._earlier
        if is_known and isinstance(error, Exception) and not isinstance(error, PaddleMnistError):
            log.warning(
                "step %d fails, but the interrupted run had computed it; unless the error has "
                "another cause, %s does not restore all that the step depends on, and the result "
                "may differ from an unbroken run's (docs/en/resume.md)",
                step,
                self._resumed_from,
            )

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        if not self._reads_steps and LEARNING_RATE in values:
            self._add(state.step, _STEP, values["train/loss"], values[LEARNING_RATE])

    def _add(self, step: int, name: int, value: float, rate: float = 0.0, sums: int = 0) -> None:
        body = _RECORD.pack(step, name, value, rate, sums)
        record = body + _CHECK.pack(zlib.crc32(body))
        first = self._earlier.get(body[:_KEY]) if self._earlier else None
        self._append(record, is_first=first is None)
        if first and (difference := self._count(first, record)):
            self._earlier = {}  # what follows from it is no other difference
            text = (
                "step {step}: the {name} is {now!r}, but was {before!r} before the interruption; "
                "{place} does not restore all that the step depends on, so the result may differ "
                "from an unbroken run's; paddle-mnist prove finds out what differs "
                "(docs/en/resume.md)"
            ).format(**difference, place=self._resumed_from)
            if self._stops:
                raise RepeatedStepError(f"{text}; stop_on_difference is set")
            log.warning("%s", text)

    def _count(self, first: bytes, record: bytes) -> Optional[Difference]:
        """Count a repeated record; return its difference from the first one, if there is any."""
        self._header["repeated"] += _RECORD.unpack_from(record)[1] == _STEP
        if difference := _difference(first, record, self._tags):
            self._header["differing"] = [*self._header["differing"], difference][:MOST_LISTED]
        return difference

    def _append(self, record: bytes, is_first: bool) -> None:
        if self._descriptor is None:
            return
        if is_first:
            self._kept.append(record)
        try:
            if os.write(self._descriptor, record) < _SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:  # a part of a record may be there: no other can follow it
            self._give_up(f"{self._path}: cannot write ({error.strerror}); {remedy(error)}")
        self._length += 1
        if self._length == 2 * MOST:
            self._rewrite()

    def _rewrite(self) -> None:
        """Write the file anew, with the newest records, and open it to append others."""
        self.close()
        self._length = len(self._kept)
        try:
            header = json.dumps(self._header).encode()
            write_atomically(self._path, b"\n".join([header, b"".join(self._kept)]))
            self._descriptor = open_own(self._path, _APPEND)
        except (OSError, OutputError) as error:
            self._give_up(str(error))

    def _give_up(self, reason: str) -> None:
        log.warning("steps are no longer recorded, to be compared with repeated ones: %s", reason)
        self._header["not_compared"] = [*self._header["not_compared"], reason]
        self.close()

    def summary(self) -> dict[str, Any]:
        return {name: value for name, value in self._header.items() if name != "conditions"}

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def describe_witness(witness: Mapping[str, Any]) -> Optional[str]:
    """Describe the entry of a result in one line; None for a run that was never interrupted."""
    if not witness.get("interruptions"):
        return None
    count, repeated = witness["interruptions"], witness["repeated"]
    unit = "step" if witness["compared"] == ALL_STEPS else "log line"
    found = f"{repeated:,} repeated {unit}{'s agree' if repeated != 1 else ' agrees'}"
    if witness["differing"]:
        step = witness["differing"][0]["step"]
        found = f"repeated step {step} differs: the result may differ from an unbroken run's"
    elif not repeated:
        found, reasons = f"no {unit} was repeated", witness["not_compared"]
        found = f"no repeated {unit} was compared ({listed(reasons)})" if reasons else found
    if unit != "step":
        found += "; only log lines are compared, so that no step waits for its device"
    return f"interrupted {'once' if count == 1 else f'{count} times'}; {found}"


def first_differing_record(
    path: Path, other: Path, tags: Iterable[str]
) -> Optional[tuple[Difference, bool]]:
    """Return the first difference of a run's steps from those of another; None if all agree.

    With it comes whether it is in the first record of its step: the start that computed the step
    first has written that one, and a later start a repeated one.

    path, other: their files. `before` is the value of the other run. tags: of evaluations. Raises
    OSError, ValueError.
    """
    names = _names(tags)
    known = {record[:_KEY]: record for record in _read(other)[1]}
    header, records = _read(path)
    first = {record[:_KEY]: record for record in reversed(records)}
    found = list[tuple[Difference, bool]]()
    for record in records:
        key = record[:_KEY]
        if difference := _difference(known.get(key, record), record, names):
            found.append((difference, record is first[key]))
    # The header has those of repeated records that are no longer in the file.
    found += [(difference, False) for difference in header["differing"]]
    return min(found, key=lambda pair: pair[0]["step"], default=None)


def _names(tags: Iterable[str]) -> dict[int, str]:
    """Return the tags of evaluations by the names of their records."""
    return {zlib.crc32(tag.encode()): tag for tag in tags}


def _difference(first: bytes, record: bytes, tags: Mapping[int, str]) -> Optional[Difference]:
    """Return the first value of a record that differs from that of the first one, if there is any.

    tags: see `_names`.
    """
    step, name, *before = _RECORD.unpack_from(first)
    names = _STEP_VALUES if name == _STEP else (tags.get(name, "evaluation"),)
    for what, old, new in zip(names, before, _RECORD.unpack_from(record)[2:]):
        if repr(old) != repr(new):  # of NaN it is the same
            old, new = (value if math.isfinite(value) else None for value in (old, new))
            return Difference(step=step, name=what, before=old, now=new)
    return None


def _conditions(training: "Training", about: Mapping[str, Any], reads_steps: bool) -> Any:
    """Return what may rightly change the bits of a step, by name; None if that is unknown."""
    names = ("device", "versions", "computed_by", "seeding")
    is_own = training.resumed_from is not None and training.run.owns(training.resumed_from)
    conditions = {
        **training.compared,
        **flattened({name: about[name] for name in names}),
        "processor": processor_name(),
        "OMP_NUM_THREADS": about["threads"] or "not set",
        "processes": None if training.arguments.processes.grad_shards else about["world_size"],
        "log_every": None if reads_steps else training.log_every,
        "run": about["run_id"] if is_own else None,  # without a checkpoint, it is a new one
        "parent": about["parent"] or "none",
    }
    return json.loads(json.dumps(conditions))


def _read(path: Path) -> tuple[_Header, list[bytes]]:
    """Return the header of a file, and its intact records. Raises OSError, ValueError."""
    line, _, rest = read_bytes(path, 2 * MOST * _SIZE + 2**24).partition(b"\n")
    records = [rest[i : i + _SIZE] for i in range(0, len(rest) - _SIZE + 1, _SIZE)]
    intact = [r for r in records if zlib.crc32(r[:-4]) == _CHECK.unpack(r[-4:])[0]]
    if damaged := len(records) - len(intact):
        log.warning("%s: leaving out damaged records (%d of %d)", path, damaged, len(records))
    return parse_json(line, _Header), intact

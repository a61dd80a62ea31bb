"""The witness: compare what a resumed run computes again with what the interrupted run computed.

A killed run has computed the steps between its newest checkpoint and the kill, and a resumed run
repeats them. A file of the run directory holds the loss and the learning rate of each step, a
checksum of its buffers, and the values of evaluations, so that the first repeated step that differs
is known. The file begins with a line of JSON (`_Header`); records of `_SIZE` bytes follow. They are
not forced to the disk: `kill -9` leaves what was written.
"""

import errno
import json
import logging
import math
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypedDict

from paddle_mnist.errors import OutputError, RepeatedStepError, listed
from paddle_mnist.interfaces import Writer
from paddle_mnist.metrics.sums import as_float
from paddle_mnist.metrics.writers import LEARNING_RATE
from paddle_mnist.options import CountOrZero
from paddle_mnist.system.environment import processor_name
from paddle_mnist.system.files import remedy, write_atomically
from paddle_mnist.system.regular_files import open_own, parse_json, read_bytes
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.description import flattened

if TYPE_CHECKING:
    import paddle

    from paddle_mnist.nn.layers import KeptBuffers
    from paddle_mnist.training.callbacks import Training

log = logging.getLogger("paddle_mnist")

MOST = 2**16  # records that are kept, the newest; in between, the file grows to twice as many
MOST_LISTED = 10  # differences in a result
ALL_STEPS, LOG_LINES = "all steps", "log lines"  # what is compared
LOSS = "train/loss"

_RECORD = struct.Struct("<QIddI")  # step, name, two numbers, checksum of the buffers
_CHECK = struct.Struct("<I")  # the checksum of the record
_KEY = 12  # bytes of the step and the name
_SIZE = _RECORD.size + _CHECK.size
_STEP = 0  # the name of a step's record; an evaluation's is the checksum of a tag
_VALUES = ("loss", "learning rate", "checksum of the buffers")  # of a step's record
_MOST_BYTES = 2 * MOST * _SIZE + 2**24  # of the file
_APPEND = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)


class _Difference(TypedDict):
    """A value of a repeated step, None if it was not finite, and the one before it."""

    step: int
    name: str
    before: Optional[float]
    now: Optional[float]


class _Header(TypedDict):
    """The first line of the file.

    conditions: what may rightly change a bit, by name. The other entries are those of `summary`
    before this start of the run.
    """

    run_id: Optional[str]
    conditions: dict[str, Any]
    interruptions: CountOrZero
    repeated: CountOrZero
    differing: list[_Difference]
    not_compared: list[str]


class Witness(Writer):
    """Base class, which records nothing: for a loop without a run, and in further processes."""

    def after_step(
        self, step: int, loss: "paddle.Tensor", learning_rate: float, buffers: "KeptBuffers"
    ) -> None:
        """Record a whole step, and compare it if it is repeated. loss: of the whole batch.

        Raises RepeatedStepError if it differs and `Saving.stop_on_difference` is set.
        """

    def after_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the values of an evaluation, and compare them. Raises as `after_step` does."""

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        """Record a log line, where steps are not. Raises as `after_step` does."""

    def summary(self) -> dict[str, Any]:
        """Return the entry `witness` of `result.json`, as plain values; {} if there is none."""
        return {}


class FileWitness(Witness):
    """Keeps the records in a file, and compares with those that earlier starts of the run left.

    The first record of a step counts. Whatever is wrong with the file costs a line of the log.

    about: the entries of the run's manifests that `training.session.resume_or_initialize` returns.
    """

    def __init__(self, training: "Training", about: Mapping[str, Any]):
        checkpoint = training.resumed_from
        self._path = training.run.witness
        self._resumed_from = checkpoint.name if checkpoint else "the beginning"
        self._reads_steps = training.device == "cpu"  # elsewhere, a step would wait for its device
        self._stops = training.arguments.saving.stop_on_difference
        self._tags = {zlib.crc32(tag.encode()): tag for tag in training.tags}
        self._earlier: dict[bytes, bytes] = {}  # the first record of each step, by its key
        self._descriptor: Optional[int] = None
        self._has_warned = False
        self._header = _Header(
            run_id=about["run_id"],
            conditions=json.loads(json.dumps(_conditions(training, about, self._reads_steps))),
            interruptions=0,
            repeated=0,
            differing=[],
            not_compared=[],
        )
        is_own = checkpoint is not None and training.run.owns(checkpoint)
        try:
            header, records = _read(self._path)
            if is_own and header["run_id"] != about["run_id"]:
                raise ValueError("of another run")
            self._take_over(header, records)
        except FileNotFoundError:
            # A finished run that trains on has other settings, and was not interrupted.
            if is_own and checkpoint and checkpoint.manifest["config"] == training.compared:
                self._header["interruptions"] = 1
                self._leave_out("the interrupted run has left no records")
        except (OSError, ValueError) as error:
            self._header["interruptions"] = 1
            reason = getattr(error, "strerror", None) or error
            self._leave_out(f"{self._path} cannot be used ({reason})")
        self._rewrite(self._earlier.values())

    def _take_over(self, header: _Header, records: Iterable[bytes]) -> None:
        """Continue what earlier starts of the run recorded; under other conditions, only counts."""
        conditions = self._header["conditions"]
        self._header.update({**header, "run_id": self._header["run_id"], "conditions": conditions})
        self._header["interruptions"] += 1
        for record in records:
            if (first := self._earlier.setdefault(record[:_KEY], record)) is not record:
                self._count(first, record)
        before = header["conditions"]
        changed = [
            name for name in conditions if before.get(name, conditions[name]) != conditions[name]
        ]
        if changed:
            self._earlier = {}
            self._leave_out(f"{listed(changed)} changed")

    def _leave_out(self, reason: str) -> None:
        """Log, and keep for the result, why earlier steps are not compared."""
        log.info("steps before the interruption are not compared with repeated ones: %s", reason)
        if reason not in self._header["not_compared"]:
            self._header["not_compared"].append(reason)

    def after_step(
        self, step: int, loss: "paddle.Tensor", learning_rate: float, buffers: "KeptBuffers"
    ) -> None:
        if self._reads_steps:
            self._add(step, _STEP, as_float(loss), learning_rate, buffers.checksum())

    def after_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        for tag, value in metrics.items():
            self._add(step, zlib.crc32(tag.encode()), value)

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        if not self._reads_steps and LEARNING_RATE in values:
            self._add(state.step, _STEP, values.get(LOSS, math.nan), values[LEARNING_RATE])

    def _add(
        self, step: int, name: int, value: float, rate: float = 0.0, checksum: int = 0
    ) -> None:
        body = _RECORD.pack(step, name, value, rate, checksum)
        record = body + _CHECK.pack(zlib.crc32(body))
        self._append(record)
        first = self._earlier.pop(body[:_KEY], None) if self._earlier else None
        if first and (difference := self._count(first, record)) and not self._has_warned:
            self._has_warned = True
            text = (
                "step {step}: the {name} is {now!r}, but was {before!r} before the interruption; "
                "{place} does not restore all that the step depends on, so the result may differ "
                "from an unbroken run's; paddle-mnist prove finds out what differs "
                "(docs/en/resume.md)"
            ).format(**difference, place=self._resumed_from)
            if self._stops:
                raise RepeatedStepError(f"{text}; stop_on_difference is set")
            log.warning("%s", text)

    def _count(self, first: bytes, record: bytes) -> Optional[_Difference]:
        """Count a repeated record; return the difference from the first one, if there is any."""
        step, name, *before = _RECORD.unpack_from(first)
        self._header["repeated"] += name == _STEP
        if first == record:
            return None
        names = _VALUES if name == _STEP else (self._tags.get(name, "evaluation"),)
        for what, old, new in zip(names, before, _RECORD.unpack_from(record)[2:]):
            if repr(old) != repr(new):  # of NaN it is the same
                difference = _Difference(step=step, name=what, before=_plain(old), now=_plain(new))
                self._header["differing"] = [*self._header["differing"], difference][:MOST_LISTED]
                return difference
        return None

    def _append(self, record: bytes) -> None:
        if self._descriptor is None:
            return
        try:
            if os.write(self._descriptor, record) < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:  # a part of a record may be there: no other can follow it
            self._give_up(f"{self._path}: cannot write ({error.strerror}); {remedy(error)}")
            return
        self._length += 1
        if self._length == 2 * MOST:
            try:
                records = {each[:_KEY]: each for each in reversed(_read(self._path)[1])}
            except (OSError, ValueError):  # somebody has removed it
                records = {}
            self._rewrite(reversed(records.values()))

    def _rewrite(self, records: Iterable[bytes]) -> None:
        """Write the file anew, with the newest of some records, and open it to append others."""
        self.close()
        newest = [*records][-MOST:]
        header = json.dumps(self._header).encode()
        try:
            write_atomically(self._path, b"\n".join([header, b"".join(newest)]))
            self._descriptor = open_own(self._path, _APPEND)
        except (OSError, OutputError) as error:
            self._give_up(str(error))
        self._length = len(newest)

    def _give_up(self, reason: str) -> None:
        log.warning("steps are no longer recorded, to be compared with repeated ones: %s", reason)
        self._header["not_compared"].append(reason)
        self.close()

    def summary(self) -> dict[str, Any]:
        header = self._header
        return {
            "interruptions": header["interruptions"],
            "repeated": header["repeated"],
            "differing": header["differing"],
            "compared": ALL_STEPS if self._reads_steps else LOG_LINES,
            "not_compared": header["not_compared"],
        }

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def describe_witness(witness: Mapping[str, Any]) -> Optional[str]:
    """Describe the entry of a result in one line; None for a run that was never interrupted."""
    count, repeated = witness.get("interruptions", 0), witness.get("repeated", 0)
    if not count:
        return None
    unit = "step" if witness["compared"] == ALL_STEPS else "log line"
    units = f"{repeated:,} repeated {unit}{'s' if repeated != 1 else ''}"
    if witness["differing"]:
        found = (
            f"{units}, of which step {witness['differing'][0]['step']} is the first to differ: the "
            "result may differ from an unbroken run's"
        )
    elif repeated:
        found = f"{units} agree{'s' if repeated == 1 else ''}"
    elif witness["not_compared"]:
        found = f"no repeated {unit} was compared ({listed(witness['not_compared'])})"
    else:
        found = f"no {unit} was repeated"
    if unit != "step":
        found += "; only log lines are compared, so that no step waits for its device"
    return f"interrupted {'once' if count == 1 else f'{count} times'}; {found}"


def _conditions(
    training: "Training", about: Mapping[str, Any], reads_steps: bool
) -> dict[str, Any]:
    """Return what may rightly change the bits of a step, by name, as plain values."""
    are_bits_shared = training.arguments.processes.grad_shards is not None
    other = {
        "device": about["device"],
        "processor": processor_name(),
        "OMP_NUM_THREADS": about["threads"],
        "processes": None if are_bits_shared else about["world_size"],
        "versions": about["versions"],
        "computed_by": about["computed_by"],
        "seeding": about["seeding"],
        "parent": about["parent"],
        "log_every": None if reads_steps else training.log_every,
    }
    return {**training.compared, **flattened(other)}


def _read(path: Path) -> tuple[_Header, list[bytes]]:
    """Return the header of a file, and its intact records. Raises OSError, ValueError."""
    line, _, rest = read_bytes(path, _MOST_BYTES).partition(b"\n")
    header = parse_json(line, _Header)
    records = [rest[i : i + _SIZE] for i in range(0, len(rest) - _SIZE + 1, _SIZE)]
    intact = [r for r in records if _CHECK.pack(zlib.crc32(r[: _RECORD.size])) == r[-_CHECK.size :]]
    if len(intact) < len(records):
        damaged = len(records) - len(intact)
        log.warning("%s: leaving out damaged records (%d of %d)", path, damaged, len(records))
    return header, intact


def _plain(value: float) -> Optional[float]:
    """Return a number, or None for one that JSON lacks."""
    return value if math.isfinite(value) else None

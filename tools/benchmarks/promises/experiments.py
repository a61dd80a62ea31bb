"""What becomes of a training that is stopped, with `fit`, with paddle.Model and with Lightning.

Each framework trains the same small net, in a script that stands beside this module.
"""

import ast
import functools
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Optional

from benchmarks.promises.digits import BATCH, DISK_LIMIT, EPOCHS, TRAIN_SAMPLES
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session
from paddle_mnist.checkpoint.manifest import CHECKSUM, checksum

FOLDER = Path(__file__).parent
STEPS = EPOCHS * TRAIN_SAMPLES // BATCH
STOPPED_AT = TRAIN_SAMPLES * 5 // 2  # samples read: in the middle of the third epoch
ANOTHER_BATCH_SIZE = 30
ROUNDING = 1e-5  # of a metric in float32
NOT_COUNTED = ("Digits", "trained")  # of a script's lines: what only the comparison needs


@dataclass(frozen=True)
class Framework:
    """A script that trains with a framework.

    needs: the distribution that must be installed. launcher: arguments of Python that start it in
    two processes, if it does not do so itself. commit: makes a changed file of a checkpoint pass as
    unchanged.
    """

    script: str
    needs: str
    launcher: tuple[str, ...] = ()
    commit: Callable[[Path], None] = lambda path: None

    @property
    def path(self) -> Path:
        return FOLDER / self.script


def _commit_checkpoint(path: Path) -> None:
    """Give a checkpoint of `fit` the checksums of its present files."""
    manifest_path = path.with_suffix(".json")
    manifest = json.loads(manifest_path.read_text())
    data = path.read_bytes()
    manifest["files"][path.name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest[CHECKSUM] = checksum(manifest)
    manifest_path.write_text(json.dumps(manifest))


FRAMEWORKS = {
    "`fit`": Framework("with_fit.py", "paddlepaddle", commit=_commit_checkpoint),
    "`paddle.Model`": Framework(
        "with_hapi.py",
        "paddlepaddle",
        launcher=("-m", "paddle.distributed.launch", "--nproc_per_node", "2"),
    ),
    "Lightning": Framework("with_lightning.py", "lightning"),
}


class _Call(NamedTuple):
    """A call of a script. report: what it printed at its end, if it came to it."""

    code: int
    output: str
    report: Optional[dict[str, Any]]


Resumed = Callable[[_Call], str]  # says what became of a call that goes on
FAILED = "the second call fails"


class Trainings:
    """The trainings with one framework, each in a folder of its own."""

    def __init__(self, framework: Framework, folder: Path):
        self.framework, self.folder = framework, folder
        folder.mkdir()

    def call(self, name: str, *options: str, processes: int = 1, **environment: str) -> _Call:
        """Run the script on the run of this name, once more perhaps."""
        command = [self.framework.path, self.folder / name, "--processes", processes, *options]
        if processes > 1 and self.framework.launcher:
            command = [*self.framework.launcher, "--log_dir", self.folder / "log", *command]
            environment["PADDLE_DISTRI_BACKEND"] = "gloo"
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        report = re.search(r'^\{"read".*\}$', done.stdout, re.MULTILINE)
        return _Call(done.returncode, done.stdout, json.loads(report[0]) if report else None)

    def outcomes(self, kills: int, promises: Collection[str] = ()) -> dict[str, str]:
        """Return what became of each promise, or of some of them.

        kills: how many are killed, at different places.
        """
        whole = self._succeed("whole")
        finished = self.call("whole")
        resumed = partial(_resumed, whole=whole, finished=finished)
        self._stop("killed", "SIGKILL")
        two = functools.cache(lambda: self._succeed("two", processes=2))
        outcomes = {
            "lines of code": lambda: str(code_lines(self.framework.path)),
            "trained twice": lambda: _bits(self._succeed("repeated"), whole),
            "SIGKILL inside an epoch, called again": lambda: self._killed(kills, resumed),
            "the same without dropout": lambda: self._killed_without_dropout(kills, resumed),
            "SIGTERM, called again": lambda: self._stopped("SIGTERM", resumed),
            "disk full in a save, called again": lambda: self._stopped("DISK_FULL", resumed),
            "a byte of the newest checkpoint changed": lambda: self._damaged(resumed),
            "called again with another `batch_size`": self._changed,
            "called again when finished": lambda: resumed(finished),
            "metrics, over a short last batch": lambda: _metrics(whole),
            "metrics of two processes": lambda: _metrics(two()),
            "weights of two processes": lambda: _bits(two(), whole),
            "code in a checkpoint's file": self._with_code,
        }
        return {promise: outcomes[promise]() for promise in promises or outcomes}

    def _succeed(self, name: str, **options: Any) -> _Call:
        done = self.call(name, **options)
        if done.code or not done.report:
            raise RuntimeError(f"{self.framework.script}: {done.output[-2000:]}")
        return done

    def _stop(self, name: str, event: str, samples: int = STOPPED_AT, **environment: str) -> _Call:
        """Start a training that is stopped after so many samples."""
        done = self.call(name, PROMISES_EVENT=f"{event}:{samples}", **environment)
        if done.report:
            raise RuntimeError(f"{self.framework.script}: {event} did not stop it")
        return done

    def _stopped(self, event: str, resumed: Resumed) -> str:
        code = self._stop(event, event).code
        return f"exit code {128 - code if code < 0 else code}; {resumed(self.call(event))}"

    def _killed(self, count: int, resumed: Resumed, **environment: str) -> str:
        """Kill inside an epoch, and go on."""
        outcomes = []
        for number in range(count):
            name = "-".join(["killed", str(number), *environment])
            samples = STOPPED_AT + number * (TRAIN_SAMPLES // 5)
            self._stop(name, "SIGKILL", samples, **environment)
            outcomes.append(resumed(self.call(name, **environment)))
        return "<br>".join(dict.fromkeys(outcomes))

    def _killed_without_dropout(self, count: int, resumed: Resumed) -> str:
        plain = {"PROMISES_DROPOUT": "0"}
        whole = self._succeed("plain", **plain)
        return self._killed(count, partial(resumed, whole=whole), **plain)

    def _changed(self) -> str:
        """Go on with another batch size."""
        name = self._copy("killed", "changed")
        again = self.call(name, "--batch_size", str(ANOTHER_BATCH_SIZE))
        return "refused" if again.code else "trains on with it"

    def _copy(self, name: str, copy: str) -> str:
        shutil.copytree(self.folder / name, self.folder / copy)
        return copy

    def _newest_file(self, name: str) -> Path:
        """Return the newest file of a run that holds weights."""
        files = [path for path in (self.folder / name).rglob("*") if path.is_file()]
        large = [path for path in files if path.stat().st_size > DISK_LIMIT]
        return max(large, key=lambda path: path.stat().st_mtime_ns)

    def _damaged(self, resumed: Resumed) -> str:
        """Change a byte of the newest checkpoint."""
        path = self._newest_file(self._copy("killed", "one byte"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        again = self.call("one byte")
        if again.code:
            return FAILED
        is_said = re.search("damaged|corrupt|checksum|SHA-256|CRC", again.output)
        return f"{'says so' if is_said else 'says nothing'}, {resumed(again)}"

    def _with_code(self) -> str:
        """Put code into the newest checkpoint's file."""
        mark = self.folder / "run by a checkpoint"

        class Payload:
            def __reduce__(self):
                return os.mkdir, (str(mark),)

        path = self._newest_file(self._copy("killed", "infected"))
        path.write_bytes(pickle.dumps({"state": Payload()}, protocol=2))
        self.framework.commit(path)
        self.call("infected")
        return "is run" if mark.exists() else "is not run"


def _resumed(call: _Call, whole: _Call, finished: _Call) -> str:
    """Say from which step a call went on, and what it came to.

    whole: the unbroken training. finished: the call that followed, which reads only samples that
    any call reads without training on them.
    """
    if call.code or not call.report:
        return FAILED
    overhead = finished.report["read"] if finished.report else 0
    step = STEPS - (call.report["read"] - overhead) // BATCH
    return "trains nothing" if step == STEPS else f"resumed from step {step}, {_bits(call, whole)}"


def _bits(call: _Call, whole: _Call) -> str:
    return "same bits" if call.report["sha256"] == whole.report["sha256"] else "different bits"


def _metrics(call: _Call) -> str:
    """Say how far the metrics are from those that NumPy computes of the final weights."""
    report = call.report
    errors = {name: abs(report[name] - report[f"exact_{name}"]) for name in ("loss", "accuracy")}
    wrong = [f"{name} by {error:.2g}" for name, error in errors.items() if error > ROUNDING]
    return f"off: {', '.join(wrong)}" if wrong else "exact"


def code_lines(path: Path) -> int:
    """Return the lines of code of a script's functions and classes, without comments."""
    source = path.read_text(encoding="utf-8")
    lines = [line.strip() for line in source.splitlines()]
    return sum(
        line != "" and not line.startswith("#")
        for node in ast.parse(source).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name not in NOT_COUNTED
        for line in lines[node.lineno - 1 : node.end_lineno]
    )


def _facts(session: Session) -> dict[str, Any]:
    return {"kills": 1 if session.is_quick else session.rounds}


def _outcomes(framework: Framework, session: Session) -> Figures:
    try:
        metadata.version(framework.needs)
    except metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(framework.needs) from error
    trainings = Trainings(framework, session.folder / framework.path.stem)
    return trainings.outcomes(**_facts(session))


def _rows(report: Report) -> Rows:
    """Return what became of each promise, by framework."""
    promises = next(filter(None, report.medians.values()))
    return {
        promise: {
            name: outcomes.get(promise, "not installed")
            for name, outcomes in report.medians.items()
        }
        for promise in promises
    }


def _note(report: Report) -> str:
    return (
        f"A net of two layers with dropout on 1,500 digits of scikit-learn, shuffled, {STEPS} "
        "steps in 6 epochs; saved every 10 steps, with `paddle.Model` every epoch; stopped after "
        f"about 75, and killed at {report.facts['kills']} places. Lightning reads through "
        "torchdata's `StatefulDataLoader`. Bits are those of the final weights."
    )


BENCHMARK = Benchmark(
    __doc__.splitlines()[0],
    code=("benchmarks.promises", "paddle_mnist.checkpoint", "paddle_mnist.training"),
    kinds=lambda session: {
        name: partial(_outcomes, framework, session) for name, framework in FRAMEWORKS.items()
    },
    columns={name: ("", name) for name in FRAMEWORKS},
    rows=_rows,
    note=_note,
    facts=_facts,
    rounds=1,
)

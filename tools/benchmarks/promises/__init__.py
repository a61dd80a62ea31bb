"""Trainings that are stopped and called again, with `fit`, with paddle.Model and with Lightning.

Each framework trains the same small net, in a script in this folder.
"""

import ast
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Optional

from benchmarks.promises.digits import BATCH, DISK_LIMIT, EPOCHS, TRAIN_SAMPLES
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session
from paddle_mnist.checkpoint.manifest import CHECKSUM, checksum

FOLDER = Path(__file__).parent
STEPS = EPOCHS * TRAIN_SAMPLES // BATCH
KILLS = 3  # at different steps
STOPPED_AT = TRAIN_SAMPLES * 5 // 2  # samples read: in the middle of the third epoch
LAUNCH = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2")
# By title: the script, and the distributions that it needs.
FRAMEWORKS = {
    "`fit`": ("with_fit.py", "paddlepaddle"),
    "`paddle.Model`": ("with_hapi.py", "paddlepaddle"),
    "Lightning": ("with_lightning.py", "lightning", "torchdata"),
}


class Call(NamedTuple):
    """A call of a script. report: what it prints at its end, None if it does not get there."""

    code: int
    output: str
    report: Optional[dict[str, Any]]


class Trainings:
    """The trainings with one framework, each in a folder of its own."""

    def __init__(self, script: str, folder: Path):
        self.script, self.folder = FOLDER / script, folder
        folder.mkdir()
        self.whole = self._succeed("whole")
        self.finished = self.call("whole")

    def call(self, name: str, *options: Any, processes: int = 1, **environment: str) -> Call:
        """Run the script on the run of this name, which may have been stopped before."""
        command = [self.script, self.folder / name, "--processes", processes, *options]
        if processes > 1 and self.script.name == "with_hapi.py":  # the others start them
            command = [*LAUNCH, "--log_dir", self.folder / "log", *command]
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
        return Call(done.returncode, done.stdout, json.loads(report[0]) if report else None)

    def outcomes(self, kills: int) -> dict[str, str]:
        """Return the outcome of each promise. kills: their number, at different places."""
        killed = self._killed(kills, self.whole)
        plain = {"PROMISES_DROPOUT": "0"}
        two = self._succeed("two", processes=2)
        return {
            "lines of code": str(code_lines(self.script)),
            "trained twice": _bits(self._succeed("repeated"), self.whole),
            "SIGKILL inside an epoch, called again": killed,
            "the same without dropout": self._killed(
                kills, self._succeed("plain", **plain), **plain
            ),
            "SIGTERM, called again": self._stopped("SIGTERM"),
            "disk full in a save, called again": self._stopped("DISK_FULL"),
            "a byte of the newest checkpoint changed": self._damaged(),
            "called again with another `batch_size`": self._changed(),
            "called again when finished": self._resumed(self.finished, self.whole),
            "metrics, over a short last batch": _metrics(self.whole),
            "metrics of two processes": _metrics(two),
            "weights of two processes": _bits(two, self.whole),
            "code in a checkpoint's file": self._with_code(),
        }

    def _succeed(self, name: str, **options: Any) -> Call:
        done = self.call(name, **options)
        if done.code or not done.report:
            raise RuntimeError(f"{self.script}: {done.output[-2000:]}")
        return done

    def _stop(self, name: str, event: str, samples: int = STOPPED_AT, **environment: str) -> Call:
        """Start a run that is stopped after so many samples."""
        done = self.call(name, PROMISES_EVENT=f"{event}:{samples}", **environment)
        if done.report:
            raise RuntimeError(f"{self.script}: {event} did not stop it")
        return done

    def _stopped(self, event: str) -> str:
        code = self._stop(event, event).code
        resumed = self._resumed(self.call(event), self.whole)
        return f"exit code {128 - code if code < 0 else code}; {resumed}"

    def _killed(self, count: int, whole: Call, **environment: str) -> str:
        """Kill trainings at different places inside an epoch, and resume them."""
        outcomes = []
        for number in range(count):
            name = "-".join(["killed", str(number), *environment])
            samples = STOPPED_AT + number * (TRAIN_SAMPLES // 5)
            self._stop(name, "SIGKILL", samples, **environment)
            shutil.copytree(self.folder / name, self.folder / f"{name} copy")
            outcomes.append(self._resumed(self.call(name, **environment), whole))
        return "<br>".join(dict.fromkeys(outcomes))

    def _resumed(self, call: Call, whole: Call) -> str:
        """Return the step from which a call resumed, and whether its bits are those of `whole`.

        `finished` has read only samples that any call reads without training on them.
        """
        if call.code or not call.report:
            return "the second call fails"
        overhead = self.finished.report["read"] if self.finished.report else 0
        step = STEPS - (call.report["read"] - overhead) // BATCH
        return (
            "trains nothing" if step == STEPS else f"resumed from step {step}, {_bits(call, whole)}"
        )

    def _killed_run(self, name: str) -> str:
        """Copy a run as its kill left it; return the copy's name."""
        shutil.copytree(self.folder / "killed-0 copy", self.folder / name)
        return name

    def _changed(self) -> str:
        again = self.call(self._killed_run("changed"), "--batch_size", 30)
        return "refused" if again.code else "trains on with it"

    def _newest_file(self, name: str) -> Path:
        """Return the newest file of a run that holds weights."""
        files = [path for path in (self.folder / name).rglob("*") if path.is_file()]
        large = [path for path in files if path.stat().st_size > DISK_LIMIT]
        return max(large, key=lambda path: path.stat().st_mtime_ns)

    def _damaged(self) -> str:
        path = self._newest_file(self._killed_run("damaged"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        again = self.call("damaged")
        outcome = self._resumed(again, self.whole)
        if again.code:
            return outcome
        is_said = re.search("damaged|corrupt|checksum|SHA-256|CRC", again.output)
        return f"{'says so' if is_said else 'says nothing'}, {outcome}"

    def _with_code(self) -> str:
        """Put code into the newest checkpoint's file, which passes as unchanged."""
        mark = self.folder / "run by a checkpoint"

        class Payload:
            def __reduce__(self):
                return os.mkdir, (str(mark),)

        path = self._newest_file(self._killed_run("infected"))
        data = pickle.dumps({"state": Payload()}, protocol=2)
        path.write_bytes(data)
        manifest_path = path.with_suffix(".json")
        if manifest_path.exists():  # of `fit`, with checksums
            manifest = json.loads(manifest_path.read_text())
            digest = hashlib.sha256(data).hexdigest()
            manifest["files"][path.name] = {"size": len(data), "sha256": digest}
            manifest[CHECKSUM] = checksum(manifest)
            manifest_path.write_text(json.dumps(manifest))
        self.call("infected")
        return "is run" if mark.exists() else "is not run"


def _bits(call: Call, whole: Call) -> str:
    return "same bits" if call.report["sha256"] == whole.report["sha256"] else "different bits"


def _metrics(call: Call) -> str:
    """Return how far the metrics are from those that NumPy computes of the final weights."""
    report = call.report
    errors = {name: abs(report[name] - report[f"exact_{name}"]) for name in ("loss", "accuracy")}
    wrong = [f"{name} by {error:.2g}" for name, error in errors.items() if error > 1e-5]  # float32
    return f"off: {', '.join(wrong)}" if wrong else "exact"


def code_lines(path: Path) -> int:
    """Return the number of code lines of a script, without those that only the comparison needs."""
    source = path.read_text(encoding="utf-8")
    lines = [line.strip() for line in source.splitlines()]
    return sum(
        line != "" and not line.startswith("#")
        for node in ast.parse(source).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and node.name not in ("Digits", "trained")
        for line in lines[node.lineno - 1 : node.end_lineno]
    )


def _outcomes(session: Session, script: str, *needed: str) -> Figures:
    try:
        for distribution in needed:
            metadata.version(distribution)
    except metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(distribution) from error
    kills = 1 if session.is_quick else KILLS
    return Trainings(script, session.folder / Path(script).stem).outcomes(kills)


def _rows(report: Report) -> Rows:
    """Return the outcomes of each promise, by framework."""
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
        f"about 75, and killed at {KILLS} places. Lightning reads through "
        "torchdata's `StatefulDataLoader`. Bits are those of the final weights."
    )


BENCHMARKS = {
    "promises": Benchmark(
        __doc__.splitlines()[0],
        kinds=lambda session: {
            name: partial(_outcomes, session, *framework) for name, framework in FRAMEWORKS.items()
        },
        columns={name: ("", name) for name in FRAMEWORKS},
        rows=_rows,
        note=_note,
        rounds=1,
    )
}

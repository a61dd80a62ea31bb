"""Train, stop and damage the same small training with each framework, and note what comes of it."""

import ast
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Optional

from benchmarks.promises.digits import BATCH, DISK_LIMIT, EPOCHS, TRAIN_SAMPLES
from paddle_mnist.checkpoint.manifest import CHECKSUM, checksum

FOLDER = Path(__file__).parent
STEPS_PER_EPOCH = TRAIN_SAMPLES // BATCH
STEPS = EPOCHS * STEPS_PER_EPOCH
STOPPED_AT = TRAIN_SAMPLES * 5 // 2  # samples read: in the middle of the third epoch
ANOTHER_BATCH_SIZE = 30
# Of a script, what only the comparison needs.
NOT_COUNTED = ("Digits", "trained")


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


def measure(source: str, rounds: int) -> dict:
    """What each framework keeps; None where it is not installed. `rounds` kills of each."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "kills": rounds,
            "frameworks": {
                name: Trainings(framework, Path(folder, framework.path.stem)).outcomes(rounds)
                if _is_installed(framework.needs)
                else None
                for name, framework in FRAMEWORKS.items()
            },
        }


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


class _Call(NamedTuple):
    """A call of a script. report: what it printed at its end. read: samples of training."""

    code: int
    output: str
    report: Optional[dict[str, Any]]
    read: int

    @property
    def reason(self) -> str:
        """The line that says why it failed."""
        lines = [line for line in self.output.splitlines() if re.match(r"[\w.]*Error", line)]
        return lines[-1][:300] if lines else ""


Resumed = Callable[[_Call], dict[str, Any]]  # says what became of a call that goes on


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
        reports = re.findall(r'^\{"loss".*\}$', done.stdout, re.MULTILINE)
        read = re.findall(r"samples read: (\d+)", done.stdout)
        return _Call(
            done.returncode,
            done.stdout,
            json.loads(reports[0]) if reports else None,
            int(read[0]) if read else 0,
        )

    def outcomes(self, kills: int, names: Collection[str] = ()) -> dict[str, Any]:
        """Return what became of each, or of those with these names.

        kills: how many are killed, at different places.
        """
        whole = self._succeed("whole")
        finished = self.call("whole")
        resumed = partial(_resumed, whole=whole, overhead=finished.read)
        self._stop("killed", "SIGKILL")
        outcomes = {
            "lines": lambda: code_lines(self.framework.path),
            "repeats": lambda: self._succeed("repeated").report == whole.report,
            "finished": lambda: resumed(finished),
            "killed": lambda: self._killed(kills, resumed),
            "killed without dropout": lambda: self._killed_without_dropout(kills, resumed),
            "terminated": lambda: self._stopped_again("terminated", "SIGTERM", resumed),
            "disk full": lambda: self._stopped_again("full", "DISK_FULL", resumed),
            "damaged": lambda: self._damaged(resumed),
            "with code": self._with_code,
            "another batch size": lambda: self._changed(resumed),
            "two processes": lambda: self._two_processes(whole),
            "metric errors": lambda: _metric_errors(whole),
        }
        return {
            name: outcome() for name, outcome in outcomes.items() if name in (names or outcomes)
        }

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

    def _stopped_again(self, name: str, event: str, resumed: Resumed) -> dict[str, Any]:
        stopped = self._stop(name, event)
        return {"exit code": stopped.code, **resumed(self.call(name))}

    def _killed(self, count: int, resumed: Resumed, **environment: str) -> list[dict[str, Any]]:
        """Kill inside an epoch, and go on."""
        outcomes = []
        for number in range(count):
            name = "-".join(["killed", str(number), *environment])
            samples = STOPPED_AT + number * (TRAIN_SAMPLES // 5)
            self._stop(name, "SIGKILL", samples, **environment)
            outcomes.append(resumed(self.call(name, **environment)))
        return outcomes

    def _killed_without_dropout(self, count: int, resumed: Resumed) -> list[dict[str, Any]]:
        plain = {"PROMISES_DROPOUT": "0"}
        whole = self._succeed("plain", **plain)
        return self._killed(count, partial(resumed, whole=whole), **plain)

    def _changed(self, resumed: Resumed) -> dict[str, Any]:
        """Go on with another batch size."""
        name = self._copy("killed", "changed")
        return resumed(self.call(name, "--batch_size", str(ANOTHER_BATCH_SIZE)))

    def _copy(self, name: str, copy: str) -> str:
        shutil.copytree(self.folder / name, self.folder / copy)
        return copy

    def _newest_file(self, name: str) -> Path:
        """Return the newest file of a run that holds weights."""
        files = [path for path in (self.folder / name).rglob("*") if path.is_file()]
        large = [path for path in files if path.stat().st_size > DISK_LIMIT]
        return max(large, key=lambda path: path.stat().st_mtime_ns)

    def _damaged(self, resumed: Resumed) -> dict[str, Any]:
        """Change a byte of the newest checkpoint."""
        path = self._newest_file(self._copy("killed", "one byte"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        again = self.call("one byte")
        is_said = re.search("damaged|corrupt|checksum|SHA-256|CRC", again.output) is not None
        return {**resumed(again), "is said": is_said}

    def _with_code(self) -> dict[str, Any]:
        """Put code into the newest checkpoint's file."""
        mark = self.folder / "run by a checkpoint"

        class Payload:
            def __reduce__(self):
                return os.mkdir, (str(mark),)

        path = self._newest_file(self._copy("killed", "infected"))
        path.write_bytes(pickle.dumps({"state": Payload()}, protocol=2))
        self.framework.commit(path)
        again = self.call("infected")
        return {"code": again.code, "reason": again.reason, "is run": mark.exists()}

    def _two_processes(self, whole: _Call) -> dict[str, Any]:
        done = self._succeed("two", processes=2)
        return {
            "same bits": done.report["sha256"] == whole.report["sha256"],
            "metric errors": _metric_errors(done),
        }


def _resumed(call: _Call, whole: _Call, overhead: int) -> dict[str, Any]:
    """Return a call's exit code and, if it succeeded, from which step it went on.

    whole: the unbroken training. overhead: samples that a call reads without training on them.
    """
    if call.code or not call.report:
        return {"code": call.code, "reason": call.reason}
    return {
        "code": 0,
        "step": STEPS - (call.read - overhead) // BATCH,
        "same bits": call.report["sha256"] == whole.report["sha256"],
    }


def _metric_errors(call: _Call) -> dict[str, float]:
    """Return how far the metrics are from those that NumPy computes of the final weights."""
    report = call.report
    return {name: abs(report[name] - report[f"exact_{name}"]) for name in ("loss", "accuracy")}


def code_lines(path: Path) -> int:
    """Return the lines of code of a script's functions and classes, without comments."""
    source = path.read_text(encoding="utf-8")
    counted = set()
    for node in ast.parse(source).body:
        is_definition = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        if is_definition and node.name not in NOT_COUNTED:
            counted.update(range(node.lineno, node.end_lineno + 1))
    no_code = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in no_code:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(counted & lines)

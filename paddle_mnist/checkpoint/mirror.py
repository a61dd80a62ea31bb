"""`Mirror`: the training's end of the pipe to the uploader, which keeps a copy elsewhere.

The training imports no driver, since not all of them survive the fork of its workers, and does not
wait for an upload before it ends.
"""

import contextlib
import json
import logging
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from paddle_mnist import errors
from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    PaddleMnistError,
    RunLockedError,
    StoppedError,
)
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.remote import local_path
from paddle_mnist.system.surroundings import for_another_python

if TYPE_CHECKING:
    from paddle_mnist.checkpoint.run import RunDirectory

log = logging.getLogger("paddle_mnist")

POLL_SECONDS = 0.1
LONGEST_SILENCE = 60.0  # seconds in which a download that works makes some progress
LONGEST_PAUSE = 10.0  # seconds between attempts to reach the mirror before a training starts
SHORT_WAIT = 30.0  # at most, for a mirror without which the training can start
MODULE = "paddle_mnist.checkpoint.uploader"


@dataclass(frozen=True)
class Copy:
    """The contents of a mirror. checkpoints: by step. damaged: why some manifests cannot be read.

    uploaded: identities of the newest that this run directory has uploaded.
    """

    mirror: "Mirror"
    checkpoints: list[Checkpoint]
    damaged: list[str]
    uploaded: list[str]


class Mirror:
    """The copy of a run, which a process of its own uploads.

    where: a URL or a folder. saving: which checkpoints the copy keeps, and how many seconds to wait
    for it before and after a training. url: (attribute) of the copy.
    """

    def __init__(self, where: str, run: "RunDirectory", saving: Saving):
        self.url = where if "://" in where else str(Path(where).absolute())
        self._timeout = saving.mirror_timeout
        keep = {name: value for name, value in vars(saving).items() if name.startswith("keep_")}
        self._settings = {
            "url": self.url,
            "run": str(run.path.absolute()),
            "name": run.weights.stem,
            "parent": os.getpid(),
            "saving": keep,
        }
        self._has_begun = False  # else the copy may be another run's
        self._lost: Optional[str] = None
        self._waiting: list[str] = []
        self._last_progress = -math.inf
        self._folder = run.checkpoints.folder
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *(str(int(one)) for one in signals.stop_signals())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=for_another_python(),
            start_new_session=True,  # Ctrl-C is for the training, which then ends the uploader
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        arguments = [self._process.stdout, self._answers]
        self._reader = threading.Thread(target=self._read, args=arguments, daemon=True)
        self._reader.start()
        self._send(self._settings)

    def _read(self, lines: Iterable[bytes], answers: "queue.Queue[dict[str, Any]]") -> None:
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:  # it was killed half way
                return
            if "log" in message:
                log.log(message["log"], "%s", message["text"])
            elif "alive" in message:
                self._last_progress = time.monotonic()
            elif "waiting" in message:
                self._waiting = message["waiting"]
            elif "lost" in message:
                self._lost = message["lost"]
            else:
                answers.put(message)

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it has died, which is noticed elsewhere
            return

    # Before a training

    def look(self, needed: bool) -> Optional[Copy]:
        """Return what the copy holds; None if it cannot be reached, which is logged.

        needed: then CheckpointError is raised instead, since a training must not start at step 0
        where there may be a copy.
        """
        seconds = self._timeout if needed else min(self._timeout, SHORT_WAIT)
        answer, failure = self._ask_until(seconds, do="look")
        if answer:
            manifests = answer["manifests"].items()
            copies = [Checkpoint(self._folder / name, manifest) for name, manifest in manifests]
            return Copy(self, copies, answer["damaged"], answer["uploaded"])
        if needed:
            raise CheckpointError(
                f"{self.url}: cannot be reached{failure}, and the run is not on this machine; "
                "expected to see what is there before a training starts at step 0; try again, or "
                "train without the mirror"
            )
        log.warning(
            "mirror: %s cannot be reached%s; resuming from this machine's checkpoints",
            self.url,
            failure,
        )
        return None

    def download(self, checkpoint: Checkpoint, with_log: bool) -> Optional[str]:
        """Download a checkpoint; return why it is damaged, if it is.

        Raises CheckpointError if the mirror cannot be reached.
        """
        request = {"do": "download", "name": checkpoint.path.name, "with_log": with_log}
        try:
            answer, failure = self._ask_until(self._timeout, **request)
        except CheckpointError as error:
            return str(error)
        if answer is None:
            raise CheckpointError(f"{self.url}: cannot be downloaded{failure}; try again")
        return None

    def move_aside(self) -> None:
        """Move the copy of a former run aside. Raises CheckpointError if that is not possible."""
        answer, failure = self._ask_until(self._timeout, do="move_aside")
        if answer is None:
            raise CheckpointError(
                f"{self.url}: the copy there cannot be moved aside{failure}; try again"
            )
        if target := answer["target"]:
            log.info("mirror: moved the copy of the former run to %s/%s", self.url, target)

    def _ask_until(self, seconds: float, **request: Any) -> tuple[Optional[dict[str, Any]], str]:
        """Ask until there is an answer; return it, or None and the last failure.

        A failure that no further attempt mends is the last.
        """
        deadline, pause, failure = time.monotonic() + seconds, 1.0, ""
        while True:
            answer = self._ask(request, deadline)
            if answer and "answer" in answer:
                return answer["answer"] or {}, ""
            if answer and "refused" in answer:
                kind: type[PaddleMnistError] = getattr(errors, answer["error"])
                raise kind(answer["refused"])
            if answer and answer.get("is_permanent"):
                return None, f" ({answer['failed']})"
            if answer and "missing" in answer:
                raise DeviceError(
                    f"mirror is {self.url}: {answer['missing']}; expected fsspec and its driver: "
                    "pip install 'paddle_mnist[mirror]' has that of s3://"
                )
            if answer and not failure:
                again = "mirror: %s: %s; trying again for %g seconds"
                log.warning(again, self.url, answer["failed"], seconds)
            failure = answer["failed"] if answer else failure
            if time.monotonic() + pause > deadline:
                return None, f" within {seconds:g} seconds ({failure or 'no answer'})"
            with signals.interruptible():
                time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _ask(self, request: Mapping[str, Any], deadline: float) -> Optional[dict[str, Any]]:
        """Send a request; return the answer, or None if none came before the deadline.

        A large download may take longer, as long as it makes progress.
        """
        if self._process.poll() is not None:
            self._restart()
        self._send(request)
        with signals.interruptible():
            while time.monotonic() < max(deadline, self._last_progress + LONGEST_SILENCE):
                heartbeat.beat()
                try:
                    return self._answers.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    if self._process.poll() is not None and self._answers.empty():
                        return {
                            "failed": f"the uploader died, exit code {self._process.returncode}"
                        }
        self.close()  # it hangs, and would answer later; the next request starts another
        return None

    # During and after a training

    def changed(self) -> None:
        """Tell the uploader that checkpoints were saved or deleted."""
        self.check()
        self._has_begun = True
        if self._process.poll() is not None:
            log.warning(
                "mirror: the uploader died, exit code %d; starting it again",
                self._process.returncode,
            )
            self._restart()
        self._send({"do": "upload"})

    def check(self) -> None:
        """Raise RunLockedError if the copy has become another process's."""
        if self._lost:
            raise RunLockedError(self._lost)

    def finish(self) -> bool:
        """Wait until the copy is complete, but no longer than the mirror's timeout.

        Returns whether it is; what it lacks is logged. Raises RunLockedError as `check` does;
        StoppedError for a signal that came meanwhile. If it was not the first that this process has
        received, the wait ends at once.
        """
        if not self._has_begun:
            return True
        self.check()
        log.info("mirror: completing the copy at %s; a second signal ends this", self.url)
        stopped, begin = signals.received(), time.monotonic()
        self._send({"do": "finish"})
        is_complete = self._wait_for_completion(begin)
        self.check()
        if is_complete:
            log.info("mirror: the copy is complete")
        else:
            log.warning(
                "mirror: %s is not complete after %g seconds, and lacks %s; run again to complete "
                "it",
                self.url,
                round(min(self._timeout, time.monotonic() - begin), 1),
                errors.listed(self._waiting) or "the newest files",
            )
        came = signals.repeated(begin) or (None if stopped else signals.received())
        if came:
            raise StoppedError(came)
        return is_complete

    def _wait_for_completion(self, begin: float) -> bool:
        """Return whether the copy is complete, at the latest at the timeout or a second signal."""
        deadline = begin + self._timeout
        while time.monotonic() < deadline and not (self._lost or signals.repeated(begin)):
            heartbeat.beat()
            try:
                if "done" in self._answers.get(timeout=POLL_SECONDS):
                    return True
            except queue.Empty:
                if self._process.poll() is not None and self._answers.empty() and not self._lost:
                    self._restart()
                    self._send({"do": "finish"})
                    time.sleep(POLL_SECONDS)
        return False

    def close(self) -> None:
        """End the uploader."""
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):  # of what was still to be written
                assert pipe
                pipe.close()

    def _restart(self) -> None:
        self.close()
        self._start()


def check_apart(saving: Saving, output: str) -> None:
    """Raise ConfigError if the mirror is the run directory, or one of both is inside the other."""
    if saving.mirror and (mirror := local_path(saving.mirror)):
        folder, run = Path(os.path.realpath(mirror)), Path(os.path.realpath(output))
        if folder.is_relative_to(run) or run.is_relative_to(folder):
            raise ConfigError(
                f"mirror is {saving.mirror}, but the run is in {output}: one would be inside the "
                f"other; expected a folder on another disk, or a URL; choose another mirror"
            )

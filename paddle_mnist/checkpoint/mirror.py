"""`Mirror`: upload a run to another place while it trains, and download it if it is lost.

A process of its own reads and writes the copy (`mirror_copy.main`), because not all drivers of
object stores survive the fork of workers, and because training must not wait for an upload. It
calls one method of `MirrorCopy` at a time, as `Mirror` requests, and sends messages:

    PROGRESS            whenever it has read something
    a LogRecord         to be logged by the training process
    an Answer           with the value that the method returned
    a Failure           after which the same is requested again, after growing pauses
    a PaddleMnistError  to be raised by the training process

After a save, training requests an upload; after each step it looks for the answer.

One process does all uploads, since importing fsspec and a driver takes 0.6 s of processor time,
many times as long as an upload.
"""

import contextlib
import enum
import logging
import math
import multiprocessing
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.errors import CheckpointError, ConfigError, PaddleMnistError, StoppedError
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.environment import (
    another_python,
    for_another_python,
    require_posix_processes,
)
from paddle_mnist.system.remote import Failure, local_path

if TYPE_CHECKING:
    from paddle_mnist.checkpoint.run import RunDirectory

log = logging.getLogger("paddle_mnist")

PROGRAM = "from paddle_mnist.checkpoint.mirror_copy import main; main()"
PROGRESS = "progress"
POLL_SECONDS = 0.05
MAX_SILENCE = 60.0  # seconds in which a working download makes some progress
SHORT_WAIT = 30.0  # seconds to wait for a mirror without which training can start
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0  # seconds between attempts


@dataclass(frozen=True)
class Answer:
    """The value that a method of `MirrorCopy` has returned."""

    value: Any


Message = Union[Answer, Failure, PaddleMnistError]  # how a request went


class UnreachableError(CheckpointError):
    """The mirror did not answer in time, or cannot be reached at all."""


class _CopyProcess:
    """The process that reads and writes the copy; if it dies, another takes its place.

    arguments: of `MirrorCopy`. last_progress: when it last sent something (`time.monotonic`).
    """

    def __init__(self, *arguments: Any):
        self._arguments = arguments
        self.last_progress = -math.inf
        self.start()

    def start(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                another_python(PROGRAM, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=2,  # drivers print; stdout belongs to the training
                env=for_another_python(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the training, which then ends this process
            )
        stopping = [int(signum) for signum in signals.stop_signals()]
        self.send((os.getpid(), stopping, self._arguments))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def send(self, message: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # the process has died, which `receive` notices
            self._connection.send(message)

    def receive(self, seconds: float) -> Optional[Message]:
        """Return how the request went, or None if that does not come within some seconds."""
        try:
            while self._connection.poll(seconds):
                message: Union[Message, logging.LogRecord, str] = self._connection.recv()
                self.last_progress = time.monotonic()
                if isinstance(message, logging.LogRecord):
                    if log.isEnabledFor(message.levelno):
                        log.handle(message)
                elif not isinstance(message, str):  # PROGRESS
                    return message
            return None
        except (EOFError, OSError):
            code = self._process.wait()
            self.close()
            self.start()
            return Failure(f"the process of the mirror died, exit code {code}")


class _RequestState(enum.Enum):
    """What `Mirror` does next. These change it, and a timeout of `_call`:

               _request     _attempt
    IDLE       DUE
    DUE        DUE          SENT, once the pause after a failure is over
    SENT       OUTDATED     IDLE after an answer or an error, DUE after a failure
    OUTDATED   OUTDATED     DUE after any of the three
    """

    IDLE = enum.auto()  # nothing: each request is answered
    DUE = enum.auto()  # send the newest request
    SENT = enum.auto()  # wait for the answer to it
    OUTDATED = enum.auto()  # wait for the answer to an earlier one, then send the newest


class Mirror:
    """The training side of a mirror: asks another process to upload, and waits for its answers.

    where: a URL or a folder. saving: decides which checkpoints the copy keeps, and how many seconds
        to wait for it before and after training.
    url: (attribute) the URL of the copy.
    """

    def __init__(self, where: str, run: "RunDirectory", saving: Saving):
        self.url = where if "://" in where else str(Path(where).absolute())
        self._timeout = saving.mirror_timeout
        self._state = _RequestState.IDLE
        self._newest_request: tuple[Any, ...] = ()  # a method of `MirrorCopy` and its arguments
        self._failure: Optional[Failure] = None  # of the last attempt, if it failed
        self._pause = FIRST_PAUSE  # after the next failure
        self._next_attempt = -math.inf  # the end of the pause
        self._has_begun = False  # uploads are allowed: before, the copy may be another run's
        self._newest_at_start: Optional[str] = None  # the checksum of the copy's newest checkpoint
        self._process = _CopyProcess(self.url, run.path.absolute(), run.name, saving)

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _request(self, *request: Any) -> None:
        """Have a method of `MirrorCopy` called; replace a request that is not sent yet."""
        self._newest_request = request
        is_process_busy = self._state in (_RequestState.SENT, _RequestState.OUTDATED)
        self._state = _RequestState.OUTDATED if is_process_busy else _RequestState.DUE

    def _attempt(self, seconds: float = 0) -> Optional[Answer]:
        """Send the request if it is due; return the answer if it comes within some seconds.

        Return None if it does not come, or if the attempt fails. Raises the errors of this package
        that the other process has raised.
        """
        if self._state is _RequestState.DUE:
            if time.monotonic() < self._next_attempt:
                time.sleep(seconds)
                return None
            self._process.send(self._newest_request)
            self._state = _RequestState.SENT
        if (message := self._process.receive(seconds)) is None:
            return None
        is_done = self._state is _RequestState.SENT and not isinstance(message, Failure)
        self._state = _RequestState.IDLE if is_done else _RequestState.DUE
        if isinstance(message, PaddleMnistError):
            raise message
        if isinstance(message, Failure):
            self._process.last_progress = -math.inf
            if not self._failure:
                log.warning("mirror: %s: %s; trying again", self.url, message)
            self._failure, self._next_attempt = message, time.monotonic() + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE)
            return None
        if self._failure:
            log.info("mirror: %s answers again", self.url)
            self._failure, self._pause = None, FIRST_PAUSE
        return message

    # Before training

    def list_copies(self, is_needed: bool) -> list[Checkpoint]:
        """Return the checkpoints of the copy, by step. is_needed: to start the training."""
        seconds = self._timeout if is_needed else min(self._timeout, SHORT_WAIT)
        copies: list[Checkpoint] = self._call(seconds, "list_copies")
        self._newest_at_start = copies[-1].manifest["checksum"] if copies else None
        return copies

    def pull(self, newer_than: Optional[Checkpoint]) -> None:
        """Download the newest checkpoint that is intact and newer than another, and the best ones.

        newer_than: the newest checkpoint on the disk, if there is any; without one, raises
            CheckpointError if all are damaged.
        """
        self._call(self._timeout, "pull", newer_than.sort_key if newer_than else None)

    def require_empty(self) -> None:
        """Raise ConfigError if the copy has checkpoints."""
        self._call(self._timeout, "require_empty")

    def _call(self, seconds: float, *request: Any) -> Any:
        """Call a method of `MirrorCopy` until it succeeds, and return its value.

        A large download may take longer than these seconds, as long as it makes progress.
        Raises UnreachableError if there is no answer, and the errors of this package that the
        method raises.
        """
        self._next_attempt = -math.inf
        self._request(*request)
        deadline = time.monotonic() + seconds
        with signals.interruptible():
            while (answer := self._attempt(POLL_SECONDS)) is None:
                heartbeat.beat()
                if time.monotonic() > max(deadline, self._process.last_progress + MAX_SILENCE):
                    self._state = _RequestState.IDLE
                    self._process.close()  # else its answer might come to the next call
                    self._process.start()
                    raise UnreachableError(
                        f"{self.url}: cannot be reached within {seconds:g} seconds "
                        f"({self._failure or 'no answer'}); try again"
                    )
        return answer.value

    # During and after training

    def request_upload(self) -> None:
        """Upload what was saved, and delete what was pruned, after the upload that is under way."""
        self._has_begun = True
        self._request("push", False, self._newest_at_start)
        self.poll()

    def poll(self, seconds: float = 0) -> None:
        """Take the answer to the last upload, if it is there, and start the next one if it is due.

        Raises RunLockedError if another process has taken the copy over.
        """
        if self._state is not _RequestState.IDLE:
            answer = self._attempt(seconds)
            if answer and not answer.value:  # the copy is not complete yet
                self._request(*self._newest_request)

    def finish(self) -> bool:
        """Wait until the copy is complete, but no longer than the mirror's timeout.

        Returns whether it is, and logs it. Raises RunLockedError as `poll` does, and StoppedError
        for a signal that came meanwhile. A second signal to this process ends the wait at once.
        """
        if not self._has_begun:
            return True
        log.info("mirror: completing the copy at %s; a second signal ends this", self.url)
        was_stopped, started = signals.received() is not None, time.monotonic()
        self._next_attempt = started
        self._request("push", True, self._newest_at_start)
        while self._state is not _RequestState.IDLE:
            waited = time.monotonic() - started
            if waited > self._timeout or signals.repeated(started):
                log.warning(
                    "mirror: %s is not complete after %g seconds; run again to complete it",
                    self.url,
                    round(min(self._timeout, waited), 1),
                )
                break
            heartbeat.beat()
            self.poll(POLL_SECONDS)
        else:
            log.info("mirror: the copy is complete")
        if came := signals.repeated(started) or (None if was_stopped else signals.received()):
            raise StoppedError(came)
        return self._state is _RequestState.IDLE


def check_mirror(saving: Saving, output: str) -> None:
    """Raise ConfigError for a mirror inside the run directory or around it, or without POSIX."""
    if saving.mirror:
        require_posix_processes("a mirror is given", "no mirror")
    if saving.mirror and (mirror := local_path(saving.mirror)):
        folder, run = Path(os.path.realpath(mirror)), Path(os.path.realpath(output))
        if folder.is_relative_to(run) or run.is_relative_to(folder):
            raise ConfigError(
                f"mirror is {saving.mirror}, but the run is in {output}: one would be inside the "
                "other; expected a folder on another disk, or a URL; choose another mirror"
            )

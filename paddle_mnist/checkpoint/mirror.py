"""`Mirror`: upload a run to another place while it trains, and download it if it is lost.

A process of its own reads and writes the copy (`mirror_copy.main`), because not all drivers of
object stores survive the fork of workers, and because training must not wait for an upload. That
process answers one request at a time. After a save, training requests an upload; after each step
it looks for an answer. A request that fails is repeated after growing pauses.

One process does all uploads, since importing fsspec and a driver takes 0.6 s of processor time,
many times as long as an upload.
"""

import contextlib
import logging
import math
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.errors import CheckpointError, ConfigError, PaddleMnistError, StoppedError
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.environment import for_another_python, require_posix_processes
from paddle_mnist.system.remote import Failure, local_path

if TYPE_CHECKING:
    from paddle_mnist.checkpoint.run import RunDirectory

log = logging.getLogger("paddle_mnist")

# Python would put the current folder first, where another `paddle_mnist` may be.
PROGRAM = (
    "import sys; sys.path = [path for path in sys.path if path]; "
    "from paddle_mnist.checkpoint.mirror_copy import main; main()"
)
PROGRESS = "progress"  # sent before an answer, whenever something was read
POLL_SECONDS = 0.05
LONGEST_SILENCE = 60.0  # seconds in which a working download makes some progress
SHORT_WAIT = 30.0  # seconds to wait for a mirror without which training can start
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts

Request = tuple[Any, ...]  # a method of `MirrorCopy` and its arguments


class UnreachableError(CheckpointError):
    """The mirror did not answer in time, or cannot be reached at all."""


class Mirror:
    """The training side of a mirror: asks another process to upload, and waits for its answers.

    where: a URL or a folder. saving: decides which checkpoints the copy keeps, and how many seconds
        to wait for it before and after training.
    url: (attribute) the URL of the copy.
    """

    def __init__(self, where: str, run: "RunDirectory", saving: Saving):
        self.url = where if "://" in where else str(Path(where).absolute())
        self._run = run
        self._saving = saving
        self._next: Optional[Request] = None
        self._sent: Optional[Request] = None  # not answered yet
        self._failure: object = "no answer"  # of the last attempt that failed
        self._pause = 0.0  # after the last attempt; 0 unless it failed
        self._next_attempt = -math.inf
        self._last_progress = -math.inf
        self._has_begun = False  # uploads are allowed: before, the copy may be another run's
        self._is_last = False  # training has ended, so upload the result, too
        self._newest_at_start: Optional[str] = None  # the checksum of the copy's newest one
        self._start()

    def _start(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # drivers print; stdout belongs to the training
                env=for_another_python(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the training, which then ends this process
            )
        run, stopping = self._run, [int(signum) for signum in signals.stop_signals()]
        self._send((os.getpid(), stopping, (self.url, run.path.absolute(), run.name, self._saving)))

    def _send(self, message: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # the process has died, which `_receive` notices
            self._connection.send(message)

    def _receive(self, seconds: float) -> Any:
        """Return the next answer, or None if it does not come within some seconds."""
        try:
            while self._connection.poll(seconds):
                message = self._connection.recv()
                self._last_progress = time.monotonic()
                if isinstance(message, logging.LogRecord):
                    if log.isEnabledFor(message.levelno):
                        log.handle(message)
                elif message != PROGRESS:
                    return message
            return None
        except (EOFError, OSError):
            code = self._process.wait()
            self._restart()
            return Failure(f"the process of the mirror died, exit code {code}")

    def _restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _attempt(self, seconds: float = 0) -> Any:
        """Send the next request once it is due; return the answer if it comes within some seconds.

        Return None if it does not come, or is a failure, after which the request is repeated.
        Raises the errors of this package that the other process has raised.
        """
        if self._next and not self._sent and time.monotonic() >= self._next_attempt:
            self._sent, self._next = self._next, None
            self._send(self._sent)
        if not self._sent:
            time.sleep(seconds)
            return None
        answer = self._receive(seconds)
        if answer is None:
            return None
        request, self._sent = self._sent, None
        if isinstance(answer, Failure):
            if not self._pause:
                log.warning("mirror: %s: %s; trying again", self.url, answer)
            self._failure = answer
            self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
            self._next_attempt = time.monotonic() + self._pause
            self._next = self._next or request
            self._last_progress = -math.inf
            return None
        if isinstance(answer, PaddleMnistError):
            raise answer
        if self._pause:
            log.info("mirror: %s answers again", self.url)
            self._pause = 0.0
        return answer

    # Before training

    def list_copies(self, is_needed: bool) -> list[Checkpoint]:
        """Return the checkpoints of the copy, by step.

        is_needed: whether training cannot start without it.
        """
        longest = math.inf if is_needed else SHORT_WAIT
        copies = list(self._call(min(self._saving.mirror_timeout, longest), "list_copies"))
        self._newest_at_start = copies[-1].manifest["checksum"] if copies else None
        return copies

    def pull(self, newer_than: Optional[Checkpoint]) -> None:
        """Download the newest checkpoint that is intact and newer than another, and the best ones.

        newer_than: the newest checkpoint on the disk, if there is any; without one, raises
            CheckpointError if all are damaged.
        """
        key = newer_than.sort_key if newer_than else None
        self._call(self._saving.mirror_timeout, "pull", key)

    def require_empty(self) -> None:
        """Raise ConfigError if the copy has checkpoints."""
        self._call(self._saving.mirror_timeout, "require_empty")

    def _call(self, seconds: float, *request: Any) -> Any:
        """Call a method of `MirrorCopy` until it succeeds, and return its value.

        A large download may take longer than these seconds, as long as it makes progress.
        Raises UnreachableError if there is no answer, and the errors of this package that the
        method raises.
        """
        self._next, self._next_attempt = request, -math.inf
        deadline = time.monotonic() + seconds
        with signals.interruptible():
            while (answer := self._attempt(POLL_SECONDS)) is None:
                heartbeat.beat()
                if time.monotonic() > max(deadline, self._last_progress + LONGEST_SILENCE):
                    self._next = self._sent = None
                    self._restart()  # else it might answer the next call with this one's answer
                    raise UnreachableError(
                        f"{self.url}: cannot be reached within {seconds:g} seconds "
                        f"({self._failure}); try again"
                    )
        return answer

    # During and after training

    def request_upload(self) -> None:
        """Upload what was saved, and delete what was pruned, after the upload that is under way."""
        self._has_begun = True
        self._request_push()
        self.poll()

    def _request_push(self) -> None:
        self._next = ("push", self._is_last, self._newest_at_start)

    def poll(self, seconds: float = 0) -> None:
        """Take the answer to the last upload, if it is there, and start the next one if it is due.

        Raises RunLockedError if another process has taken the copy over.
        """
        if self._next or self._sent:
            is_complete = self._attempt(seconds)  # None: not answered yet
            if is_complete is False:
                self._request_push()

    def finish(self) -> bool:
        """Wait until the copy is complete, but no longer than the mirror's timeout.

        Returns whether it is, and logs it. Raises RunLockedError as `poll` does, and
        StoppedError for a signal that came meanwhile. If that was not the first signal that this
        process has received, the wait ends at once.
        """
        if not self._has_begun:
            return True
        log.info("mirror: completing the copy at %s; a second signal ends this", self.url)
        stopped, begin = signals.received(), time.monotonic()
        self._is_last, self._next_attempt = True, begin
        self._request_push()
        while self._next or self._sent:
            waited = time.monotonic() - begin
            if waited > self._saving.mirror_timeout or signals.repeated(begin):
                log.warning(
                    "mirror: %s is not complete after %g seconds; run again to complete it",
                    self.url,
                    round(min(self._saving.mirror_timeout, waited), 1),
                )
                break
            heartbeat.beat()
            self.poll(POLL_SECONDS)
        else:
            log.info("mirror: the copy is complete")
        if came := signals.repeated(begin) or (None if stopped else signals.received()):
            raise StoppedError(came)
        return not (self._next or self._sent)


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

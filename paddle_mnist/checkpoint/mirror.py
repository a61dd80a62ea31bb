"""`Mirror`: a training's side of its mirror, the copy of a run in another place.

A process of its own reads and writes the copy (`mirror_copy.main`): the drivers of object stores do
not all survive the fork of a training's workers, and the training must not wait for an upload. That
process answers one call at a time. After a save, the training asks for an upload; after each step
it looks whether there is an answer, and asks again after a failure.

It is one process for all uploads, since importing fsspec and a driver takes 0.6 s of processor
time, many times what an upload takes.
"""

import contextlib
import logging
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from paddle_mnist.checkpoint.manifest import CHECKSUM, Checkpoint
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.errors import (
    CheckpointError,
    ConfigError,
    PaddleMnistError,
    RunLockedError,
    StoppedError,
    listed,
)
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.environment import for_another_python, require_posix_processes
from paddle_mnist.system.files import warn_once
from paddle_mnist.system.remote import Failure, local_path

if TYPE_CHECKING:
    from paddle_mnist.checkpoint.run import RunDirectory

log = logging.getLogger("paddle_mnist")

MODULE = "paddle_mnist.checkpoint.mirror_copy"
PROGRESS = "progress"  # comes before an answer, whenever something was read or copied
POLL_SECONDS = 0.05
LONGEST_SILENCE = 60.0  # seconds in which a download that works makes some progress
SHORT_WAIT = 30.0  # at most, for a mirror without which the training can start
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts


@dataclass(frozen=True)
class Contents:
    """The contents of a mirror. checkpoints: by step. damaged: why some manifests cannot be read.

    uploaded: the checksums of the manifests that this run directory has uploaded last.
    """

    checkpoints: list[Checkpoint]
    damaged: list[str]
    uploaded: list[str]


class UnreachableError(CheckpointError):
    """The mirror has not answered in time, or never will."""


class Mirror:
    """The copy of a run, and the process that reads and writes it.

    where: a URL or a folder. saving: which checkpoints the copy keeps, and how many seconds to wait
    for it before and after a training. url: (attribute) of the copy.
    """

    def __init__(self, where: str, run: "RunDirectory", saving: Saving):
        self.url = where if "://" in where else str(Path(where).absolute())
        self._run = run
        self._saving = saving
        self._last_progress = -math.inf
        self._has_begun = False  # to upload: before, the copy may be another run's
        self._is_uploading = False
        self._is_behind = False  # something is to be uploaded next
        self._is_last = False  # the training has ended, so that the result is uploaded, too
        self._pause = 0.0  # after the last attempt; 0 unless it failed
        self._next_attempt = -math.inf
        self._uploaded: Sequence[Checkpoint] = []  # what the copy has held last
        self._start()

    def _start(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            stopping = [str(int(signum)) for signum in signals.stop_signals()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), *stopping],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what drivers print is none of the training's output
                env=for_another_python(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the training, which then ends this process
            )
        run = self._run
        self._send(os.getpid(), self.url, run.path.absolute(), run.weights.stem, self._saving)

    def _send(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the process has died, which `_receive` notices
            self._connection.send(message)

    def _receive(self, seconds: float = 0) -> Any:
        """Return the next answer, or None if there is none within some seconds."""
        try:
            while self._connection.poll(seconds):
                answer = self._connection.recv()
                if answer != PROGRESS:
                    return answer
                self._last_progress = time.monotonic()
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

    # Before a training

    def look(self, is_needed: bool) -> Contents:
        """Return what the copy holds. is_needed: whether the training cannot start without it."""
        longest = math.inf if is_needed else SHORT_WAIT
        contents: Contents = self._call("look", min(self._saving.mirror_timeout, longest))
        return contents

    def pull(self, newer_than: Optional[Checkpoint], ends_with_best: bool) -> None:
        """Download the newest checkpoint that is intact and newer than another, and the best ones.

        Damaged ones are logged.
        """
        key = newer_than.sort_key if newer_than else None
        downloaded, damaged = self._call("pull", self._saving.mirror_timeout, key, ends_with_best)
        for name in downloaded:
            log.info("downloaded %s from %s", name, self.url)
        for reason in damaged:
            log.warning("damaged copy: %s", reason)

    def move_aside(self) -> None:
        """Move the copy of a former run aside."""
        if target := self._call("move_aside", self._saving.mirror_timeout):
            log.info("mirror: moved the copy of the former run to %s/%s", self.url, target)

    def _call(self, method: str, seconds: float, *arguments: Any) -> Any:
        """Call a method of `MirrorCopy` until it succeeds, and return its value.

        Raises UnreachableError if it does not within some seconds, or never will; and the errors of
        this package that the method raises.
        """
        deadline, pause = time.monotonic() + seconds, FIRST_PAUSE
        while True:
            self._send(method, *arguments)
            answer = self._wait(deadline)
            if isinstance(answer, PaddleMnistError):
                raise answer
            if not isinstance(answer, Failure):
                return answer
            is_over = time.monotonic() + pause > deadline
            if is_over or answer.is_permanent:
                within = f" within {seconds:g} seconds" if is_over else ""
                raise UnreachableError(
                    f"{self.url}: cannot be reached{within} ({answer}); try again"
                )
            if pause == FIRST_PAUSE:
                again = "mirror: %s: %s; trying again for %g seconds"
                log.warning(again, self.url, answer, seconds)
            with signals.interruptible():
                time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _wait(self, deadline: float) -> Any:
        """Return the answer, or a failure if none came before the deadline.

        A large download may take longer, as long as it makes progress.
        """
        with signals.interruptible():
            while time.monotonic() < max(deadline, self._last_progress + LONGEST_SILENCE):
                heartbeat.beat()
                answer = self._receive(POLL_SECONDS)
                if answer is not None:
                    return answer
        self._restart()  # it hangs, and might answer the next call with this one's answer
        return Failure("no answer")

    # During and after a training

    def changed(self) -> None:
        """Upload what was saved, and delete what was pruned, after the upload that is under way."""
        self._has_begun = self._is_behind = True
        self.poll()

    def poll(self) -> None:
        """Take the answer to the last upload, if it is there, and start the next, if one is due.

        Raises RunLockedError if the copy has become another process's.
        """
        if self._is_uploading and (answer := self._receive()) is not None:
            self._is_uploading = False
            self._take(answer)
        if self._is_behind and not self._is_uploading and time.monotonic() >= self._next_attempt:
            self._is_behind, self._is_uploading = False, True
            self._send("push", self._is_last)

    def _take(self, answer: Any) -> None:
        """Note how an upload ended: with a failure, an error, or what the copy holds now."""
        if isinstance(answer, RunLockedError):
            raise answer
        if isinstance(answer, PaddleMnistError):  # such as a full disk
            answer = Failure(str(answer))
        if isinstance(answer, Failure):
            self._is_behind = True
            if not self._pause:
                log.warning(
                    "mirror: %s; training continues, uploads are tried again, and %s waits on the "
                    "disk",
                    answer,
                    listed(self._waiting()) or "nothing",
                )
            self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
            self._next_attempt = time.monotonic() + self._pause
            return
        self._uploaded, is_complete, damaged = answer
        for path in damaged:
            warn_once(path, "not uploaded, because it is damaged: %s", path)
        if not is_complete:
            self._is_behind = True
        elif self._pause:
            self._pause = 0.0
            log.info("mirror: %s answers again; nothing waits now", self.url)

    def _waiting(self) -> list[str]:
        """Return the names of the checkpoints that are still to be uploaded."""
        local = self._run.checkpoints.all()
        return [one.name for one in checkpoints_to_upload(local, self._uploaded, self._saving)]

    def finish(self) -> bool:
        """Wait until the copy is complete, but no longer than the mirror's timeout.

        Returns whether it is; what it lacks is logged. Raises RunLockedError as `poll` does;
        StoppedError for a signal that came meanwhile. If it was not the first that this process has
        received, the wait ends at once.
        """
        if not self._has_begun:
            return True
        log.info("mirror: completing the copy at %s; a second signal ends this", self.url)
        stopped, begin = signals.received(), time.monotonic()
        self._is_last = self._is_behind = True
        self._next_attempt = begin
        while self._is_behind or self._is_uploading:
            if time.monotonic() > begin + self._saving.mirror_timeout or signals.repeated(begin):
                log.warning(
                    "mirror: %s is not complete after %g seconds, and lacks %s; run again to "
                    "complete it",
                    self.url,
                    round(min(self._saving.mirror_timeout, time.monotonic() - begin), 1),
                    listed(self._waiting()) or "the newest files",
                )
                break
            heartbeat.beat()
            self.poll()
            time.sleep(POLL_SECONDS)
        else:
            log.info("mirror: the copy is complete")
        if came := signals.repeated(begin) or (None if stopped else signals.received()):
            raise StoppedError(came)
        return not (self._is_behind or self._is_uploading)


def checkpoints_to_upload(
    local: Sequence[Checkpoint], copies: Sequence[Checkpoint], saving: Saving
) -> list[Checkpoint]:
    """Return the checkpoints on the disk that the copy lacks, oldest first.

    Those are kept on the disk too; of those inside epochs, only the newest, unless a rule other
    than `keep_last` keeps it.
    """
    there = {one.manifest[CHECKSUM] for one in copies}
    known = {one.name: one for one in [*copies, *local]}.values()
    kept, at_once = saving.kept(known), replace(saving, keep_last=1).kept(known)
    return [
        one
        for one in local
        if one.manifest[CHECKSUM] not in there
        and one.name in kept
        and (one.ends_epoch or one.name in at_once)
    ]


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

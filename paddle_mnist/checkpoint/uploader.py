"""The uploader's process: `python -m paddle_mnist.checkpoint.uploader`, which `Mirror` starts.

Its arguments are the numbers of the signals that stop the training. It reads requests from its
standard input and writes answers to its standard output, one JSON object a line. It ends when its
parent does.
"""

import contextlib
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, Optional

from paddle_mnist.checkpoint.mirror_copy import MirrorCopy
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.errors import PaddleMnistError, RunLockedError, listed
from paddle_mnist.system.remote import failure, is_permanent

log = logging.getLogger("paddle_mnist")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between attempts


class _Answers(logging.Handler):
    """Writes to the parent: answers to requests, and lines for its log."""

    def __init__(self, descriptor: int):
        super().__init__()
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._sending = threading.Lock()

    def send(self, **answer: Any) -> None:
        with self._sending:
            self._file.write(json.dumps(answer) + "\n")
            self._file.flush()

    def is_alive(self) -> None:
        """Tell the training that what it waits for makes progress."""
        self.send(alive=True)

    def emit(self, record: logging.LogRecord) -> None:
        self.send(log=record.levelno, text=record.getMessage())


class Uploader:
    """Serves the requests of a training, and uploads its checkpoints meanwhile."""

    def __init__(self, copy: MirrorCopy, answers: _Answers):
        self._copy = copy
        self._answers = answers
        copy.remote.progress = answers.is_alive
        self._is_uploading = False  # once the training has begun
        self._is_last = False  # once it has ended
        self._pause = 0.0  # after the last attempt; 0 unless it failed
        self._next_attempt = 0.0

    def serve(self, requests: "queue.Queue[dict[str, Any]]") -> None:
        """Serve requests until everything is uploaded after the last."""
        while True:
            request: Optional[dict[str, Any]] = None
            with contextlib.suppress(queue.Empty):
                request = requests.get(timeout=self._seconds_to_wait())
            if request:
                self._answer(**request)
            if self._is_uploading and time.monotonic() >= self._next_attempt and self._upload():
                return

    def _seconds_to_wait(self) -> Optional[float]:
        if not self._is_uploading or not self._pause:
            return None
        return max(0.0, self._next_attempt - time.monotonic())

    def _answer(self, do: str, **arguments: Any) -> None:
        if do == "upload":
            self._is_uploading = True
            return
        if do == "finish":
            self._is_uploading = self._is_last = True
            self._next_attempt = 0.0
            return
        try:
            self._answers.send(answer=getattr(self._copy, do)(**arguments))
        except PaddleMnistError as error:
            self._answers.send(refused=str(error), error=type(error).__name__)
        except ImportError as error:
            self._answers.send(missing=str(error))
        except Exception as error:  # whatever the driver raises
            self._copy.remote.reconnect()
            # A bucket that is not there looks empty until something is written.
            gone = do == "look" and isinstance(error, FileNotFoundError)
            self._answers.send(failed=failure(error), is_permanent=gone or is_permanent(error))

    def _upload(self) -> bool:
        """Upload what waits; return whether nothing is left to do for this process."""
        try:
            while self._copy.upload_next():
                self._tell_what_waits()
            self._succeeded()
            if self._is_last:
                self._copy.upload_result()
                self._answers.send(done=True)
        except RunLockedError as error:
            self._answers.send(lost=str(error))
            return True
        except Exception as error:  # whatever the driver raises
            self._failed(error)
            return False
        return self._is_last

    def _tell_what_waits(self) -> list[str]:
        waiting = self._copy.names_waiting()
        self._answers.send(waiting=waiting)
        return waiting

    def _succeeded(self) -> None:
        if self._pause:
            log.info("mirror: %s answers again; nothing waits now", self._copy.remote.url)
        self._pause = self._next_attempt = 0.0

    def _failed(self, error: Exception) -> None:
        self._copy.remote.reconnect()
        waiting = self._tell_what_waits()
        if not self._pause:
            log.warning(
                "mirror: %s; training continues, uploads are tried again, and %s waits on the disk",
                failure(error),
                listed(waiting) or "nothing",
            )
        self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
        self._next_attempt = time.monotonic() + self._pause


def _read_requests(
    requests: "queue.Queue[dict[str, Any]]", copy: MirrorCopy, answers: _Answers
) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "finish":  # now: where the mirror hangs, nothing else is answered
            answers.send(waiting=copy.names_waiting())
        requests.put(request)
    os._exit(0)  # the training has ended


def _exit_with(parent: int) -> None:
    """End with the parent: its forked workers may hold the pipe longer."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


def main() -> None:
    """Serve the process that started this one."""
    answers = _Answers(os.dup(1))
    os.dup2(2, 1)  # for what drivers print
    for signum in map(int, sys.argv[1:]):  # the training says when to end
        signal.signal(signum, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    log.addHandler(answers)
    log.setLevel(logging.INFO)
    log.propagate = False
    threading.Thread(target=_exit_with, args=[settings["parent"]], daemon=True).start()
    run = RunDirectory(settings["run"], settings["name"])
    copy = MirrorCopy(settings["url"], run, Saving(**settings["saving"]))
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_requests, args=[requests, copy, answers], daemon=True).start()
    Uploader(copy, answers).serve(requests)
    os._exit(0)  # without waiting for threads of drivers


if __name__ == "__main__":
    main()

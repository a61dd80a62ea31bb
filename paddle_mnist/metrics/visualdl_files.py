"""The files that VisualDL's dashboard reads, with their errors raised instead of printed.

Each comment says which version of VisualDL makes its workaround needless; the newest is 2.5.3.
"""

import threading
from pathlib import Path
from typing import Any

from paddle_mnist.errors import OutputError
from paddle_mnist.system.files import remedy, writing
from paddle_mnist.system.surroundings import encodable, usable_home


class VisualDLFiles:
    """The log files of one run, one for each sub-folder, opened when they are first used."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []  # they write what the files have taken
        self._errors: list[OSError] = []  # of those threads

    def open(self, name: str) -> Any:
        """Return the `visualdl.LogWriter` of a sub-folder. Raises OutputError."""
        if name not in self._files:
            with usable_home():
                from visualdl import LogWriter  # here, for it is slow to import

            before = set(threading.enumerate())
            folder = self.folder / name
            with writing(folder):
                # No display name: VisualDL mixes up runs that have the same one. One that keeps
                # runs apart by their folders retires this.
                file = self._files[name] = LogWriter(logdir=str(folder), flush_secs=5)
                self._keep_errors(file)
                # The page of settings names a run after a hash of this path, as UTF-8. A VisualDL
                # that hashes the bytes of any path retires this.
                writer = file._get_file_writer()
                writer._file_name = encodable(writer._file_name)
            self._threads += [thread for thread in threading.enumerate() if thread not in before]
        return self._files[name]

    def check(self) -> None:
        """Raise OutputError if what was given to the files could not be written, or cannot be."""
        if self._errors or not all(thread.is_alive() for thread in self._threads):
            raise self._error()

    def close(self) -> None:
        """Write the rest and close the files. Raises OutputError if that failed."""
        self.check()
        with writing(self.folder):
            for file in self._files.values():
                file.close()
        if self._errors:
            raise self._error()

    def _error(self) -> OutputError:
        reason = f" ({self._errors[0].strerror}); {remedy(self._errors[0])}" if self._errors else ""
        return OutputError(
            f"{self.folder}: VisualDL can no longer write there{reason}; or switch it off: "
            "--visualdl false, or callbacks=[VisualDL(False)] in code"
        )

    def _keep_errors(self, file: Any) -> None:
        """Keep the errors of a file's thread, which prints them and goes on with a torn file.

        A VisualDL that raises them retires this.
        """
        records = file._get_file_writer()._async_writer._record_writer
        write = records.write

        def write_and_keep_error(data: bytes) -> None:
            try:
                write(data)
            except OSError as error:
                self._errors.append(error)
                raise

        records.write = write_and_keep_error

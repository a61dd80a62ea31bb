"""`RemoteFolder`: a folder in an object store, on a server or on another disk, through fsspec.

Only the processes that talk to it import fsspec and its drivers. A process that trains must not,
since not all of them survive a fork.
"""

import contextlib
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlsplit

from paddle_mnist.errors import summary
from paddle_mnist.system.files import PART

# Systems where a file appears once it is complete; elsewhere it gets a temporary name first.
OBJECT_STORES = {"s3", "s3a", "oss", "gs", "gcs", "abfs", "abfss", "az"}
BLOCK_BYTES = 2**22
# Names of drivers' errors after which a retry would fail, too; the drivers are not imported here.
PERMANENT = set(
    "PermissionError NoCredentialsError PartialCredentialsError ProfileNotFound "
    "ParamValidationError AuthenticationException ClientAuthenticationError".split()
)


def check_url(url: str) -> None:
    """Raise ValueError unless a URL names one folder, and holds nothing that logs must not show."""
    if "::" in url:
        raise ValueError("contains '::', which chains file systems; expected the URL of only one")
    if url.startswith("~"):  # else the declaration of the option has expanded it
        raise ValueError(f"{url!r} names the home of an unknown user; expected a URL or a folder")
    if urlsplit(url).scheme:
        place = url.partition("://")[2]
        if ":" in place.rpartition("@")[0] or "?" in place or "#" in place:
            raise ValueError(
                f"{url.partition(':')[0]}:// URL contains credentials or parameters, which logs "
                "would show; expected a URL without them: drivers take credentials from the "
                "environment or from their own files"
            )
        if not place.strip("/"):
            raise ValueError(f"{url!r} names no folder; expected one such as s3://bucket/runs/1")


def local_path(url: str) -> Optional[Path]:
    """Return the folder of this machine that a URL names; None for a folder of another place."""
    scheme, separator, path = url.rpartition("://")
    return Path(path).expanduser() if not separator or scheme in ("file", "local") else None


@dataclass(frozen=True)
class Failure:
    """The error of a driver in one line. is_permanent: whether a retry would fail, too."""

    text: str
    is_permanent: bool = False

    def __str__(self) -> str:
        return self.text


def failure(error: Exception) -> Failure:
    """Describe the error of a driver, without possible credentials in URLs."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    is_permanent = type(error) is ValueError or bool(PERMANENT & kinds)  # no such protocol
    return Failure(summary(error, without_credentials), is_permanent)


def without_credentials(text: str) -> str:
    """Remove possible credentials from the URLs in a text."""
    text = re.sub(r"://[^\s'\"]*@", "://...@", text)
    return re.sub(r"(://[^\s'\"?]*\?)[^\s'\",]*", r"\1...", text)


class RemoteFolder:
    """The files below a URL, by paths relative to it. Nothing is kept open.

    progress: (attribute) called after each block that is read.

    Its methods raise the driver's errors: OSError, and its own classes.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self.progress: Callable[[], object] = lambda: None
        self._connection: Any = None

    @property
    def _system(self) -> Any:
        """The driver. Raises ImportError without it."""
        if self._connection is None:
            import fsspec

            self._connection, self._root = fsspec.core.url_to_fs(self.url, skip_instance_cache=True)
        return self._connection

    def _path(self, name: str) -> str:
        system = self._system  # which sets the root
        return posixpath.join(self._root, name) if system and name else str(self._root)

    @property
    def _is_object_store(self) -> bool:
        protocols = self._system.protocol
        return bool(OBJECT_STORES & {*([protocols] if isinstance(protocols, str) else protocols)})

    def reconnect(self) -> None:
        """Drop the connection after an error, since it may be unusable."""
        self._connection = None

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the files in a folder, by name; {} if it does not exist.

        A key with a slash at its end is a folder that the console of an object store has made.
        Anything but a folder, such as a link to nothing, counts as a file.
        """
        return {
            posixpath.basename(entry["name"]): int(entry["size"] or 0)
            for entry in self._entries(folder)
            if entry["type"] != "directory" and not entry["name"].endswith("/")
        }

    def names(self) -> set[str]:
        """Return the names of the files and folders in this one."""
        return {
            posixpath.basename(entry["name"].rstrip("/"))
            for entry in self._entries("")
            if entry["type"] == "directory" or not entry["name"].endswith("/")
        }

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        system, path = self._system, self._path(folder)
        system.invalidate_cache()
        try:
            return list(system.ls(path, detail=True))
        except FileNotFoundError:
            return []

    def read(self, name: str, most: int) -> bytes:
        """Return the contents of a file. Raises ValueError for more than `most` bytes."""
        data = bytearray()
        with self._system.open(self._path(name), "rb", block_size=BLOCK_BYTES) as file:
            while block := file.read(BLOCK_BYTES):
                data += block
                self.progress()
                if len(data) > most:
                    raise ValueError(f"{name}: more than {most} bytes")
        return bytes(data)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, completely or not at all, and read it back.

        Raises OSError if the contents differ.
        """
        system, path = self._system, self._path(name)
        if self._is_object_store:
            system.pipe_file(path, data)
        else:
            folder, base = posixpath.split(path)
            part = posixpath.join(folder, f".{base}{PART}")
            system.makedirs(folder, exist_ok=True)
            system.pipe_file(part, data)
            with contextlib.suppress(FileNotFoundError):  # another process has moved it there
                system.mv(part, path)
        system.invalidate_cache()
        if self.read(name, len(data)) != data:
            raise OSError(f"{self.url}/{name}: what was written cannot be read back")

    def remove(self, name: str) -> None:
        """Delete a file if it is there."""
        try:
            self._system.rm_file(self._path(name))
        except FileNotFoundError:
            return

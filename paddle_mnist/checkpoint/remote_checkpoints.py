"""`RemoteCheckpoints`: the checkpoints below a URL, by their manifests."""

import fnmatch
from pathlib import Path

from paddle_mnist.checkpoint.manifest import DATA_SUFFIXES, Checkpoint, parse_manifest
from paddle_mnist.checkpoint.store import ANY_NAME
from paddle_mnist.errors import CheckpointError
from paddle_mnist.system.remote import RemoteFolder

CHECKPOINTS = "checkpoints"
MOST_BYTES = 2**26  # of a manifest


class RemoteCheckpoints:
    """The checkpoints of a copy, and those manifests that are damaged.

    folder: where they are, or would be, on this machine.
    """

    def __init__(self, remote: RemoteFolder, folder: Path):
        self._remote = remote
        self._folder = folder
        self._read: dict[tuple[str, int], Checkpoint] = {}  # by name and size
        self.names: list[str] = []  # of all files
        self.damaged: dict[str, str] = {}  # by name, the reason

    def read(self) -> list[Checkpoint]:
        """Return the checkpoints, by step. Of manifests read before, only the newest is read again.

        Raises what the driver raises.
        """
        found = self._remote.sizes(CHECKPOINTS)
        self.names = [*found]
        sizes = {
            name: size
            for name, size in found.items()
            if fnmatch.fnmatch(name, f"{ANY_NAME}.json") and not name.startswith(".")
        }
        self.damaged = {}
        known = {key: value for key, value in self._read.items() if key in sizes.items()}
        self._read = known.copy()
        for name, size in sizes.items():
            if (name, size) not in known:
                self._read_manifest(name, size)
        for newest in self.last_read()[-1:]:
            key = newest.path.name, sizes[newest.path.name]
            if key in known:
                self._read_manifest(*key)
        return self.last_read()

    def last_read(self) -> list[Checkpoint]:
        """Return the checkpoints as they were when they were last read."""
        return sorted(self._read.values(), key=lambda checkpoint: checkpoint.sort_key)

    def named(self) -> set[str]:
        """Return the manifests, and the files that they name, as they were when last read."""
        suffixes = (".json", *DATA_SUFFIXES)
        named = {Path(name).stem + suffix for name in self.damaged for suffix in suffixes}
        for checkpoint in self._read.values():
            named |= {checkpoint.path.name, *checkpoint.manifest["files"]}
        return named

    def _read_manifest(self, name: str, size: int) -> None:
        self._read.pop((name, size), None)
        try:
            data = self._remote.read(f"{CHECKPOINTS}/{name}", MOST_BYTES)
            self._read[name, size] = parse_manifest(self._folder / name, data)
        except (CheckpointError, ValueError) as error:
            self.damaged[name] = f"{self._remote.url}/{CHECKPOINTS}/{name}: {error}"
        except FileNotFoundError:  # another process has deleted it
            return

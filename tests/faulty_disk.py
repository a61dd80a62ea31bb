"""A disk to be watched, to be broken at any point, and to be cut from its power.

`watched` stands under the functions of `os` by which a save changes the disk. `Disk` is the model
of what a power failure leaves of what they did.
"""

import contextlib
import itertools
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, Optional, Union

import pytest

CALLS = ("open", "write", "fsync", "close", "replace", "unlink", "mkdir")
REAL = SimpleNamespace(**{name: getattr(os, name) for name in CALLS})


class Operation(NamedTuple):
    """One call of a function of `os`; paths are relative to the folder that is watched.

    path: what it is called for, or what its descriptor was opened for. flags: of `open`.
    data: what `write` takes. target: where `replace` puts it.
    """

    call: str
    path: Path
    flags: int = 0
    data: bytes = b""
    target: Optional[Path] = None


Before = Callable[[Operation], None]


@contextlib.contextmanager
def watched(folder: Path, before: Before = lambda operation: None) -> Iterator[list[Operation]]:
    """Gives the list of the operations on `folder` and what is in it, which grows with each.

    before: called ahead of each. It may kill the process, or raise what the call is to raise;
    then the operation is not done, and not listed.
    """
    watch = _Watch(folder, before)
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, getattr(watch, name))
        yield watch.done


class _Watch:
    """Functions with the names and the meaning of those of `os`."""

    def __init__(self, folder: Path, before: Before):
        self.folder = folder
        self.before = before
        self.done: list[Operation] = []
        self.opened: dict[int, Path] = {}  # by descriptor
        self.halved: set[int] = set()

    def _do(self, call: str, path: Path, target: Optional[Path] = None, **more) -> None:
        target = target and Path(target).relative_to(self.folder)
        operation = Operation(call, Path(path).relative_to(self.folder), target=target, **more)
        self.before(operation)
        self.done.append(operation)

    def _inside(self, path: Union[str, bytes, int, os.PathLike]) -> bool:
        return isinstance(path, (str, os.PathLike)) and Path(path).is_relative_to(self.folder)

    def open(self, path, flags, mode=0o777, **more) -> int:
        is_read = not flags & (os.O_WRONLY | os.O_RDWR) and not os.path.isdir(path)
        if is_read or not self._inside(path):
            return REAL.open(path, flags, mode, **more)
        self._do("open", path, flags=flags)
        descriptor = REAL.open(path, flags, mode, **more)
        self.opened[descriptor] = Path(path)
        self.halved.discard(descriptor)
        return descriptor

    def write(self, descriptor, data) -> int:
        """The first takes only a half, as a disk may: so there is a point in the middle."""
        if descriptor not in self.opened:
            return REAL.write(descriptor, data)
        if descriptor not in self.halved:
            self.halved.add(descriptor)
            data = data[: (len(data) + 1) // 2]
        self._do("write", self.opened[descriptor], data=bytes(data))
        return REAL.write(descriptor, data)

    def fsync(self, descriptor) -> None:
        """Listed, and not done: no power fails here but that of `Disk`."""
        if descriptor in self.opened:
            self._do("fsync", self.opened[descriptor])
        else:
            REAL.fsync(descriptor)

    def close(self, descriptor) -> None:
        """One that fails has closed the file nevertheless, as on Linux."""
        path = self.opened.pop(descriptor, None)
        try:
            if path is not None:
                self._do("close", path)
        finally:
            REAL.close(descriptor)

    def replace(self, path, target, **more) -> None:
        if self._inside(path):
            self._do("replace", path, target)
        REAL.replace(path, target, **more)

    def unlink(self, path, **more) -> None:
        if self._inside(path):
            self._do("unlink", path)
        REAL.unlink(path, **more)

    def mkdir(self, path, mode=0o777, **more) -> None:
        if self._inside(path):
            self._do("mkdir", path)
        REAL.mkdir(path, mode, **more)


# ------------------------------------------------------------------ what to do before an operation


def at(number: int, act: Before) -> Before:
    """`act` before the operation of this number, counted from 0, and before no other."""
    numbers = itertools.count()
    return lambda operation: act(operation) if next(numbers) == number else None


def from_on(number: int, act: Before) -> Before:
    """`act` before the operation of this number and all later ones."""
    numbers = itertools.count()
    return lambda operation: act(operation) if next(numbers) >= number else None


def tried(numbers: range, stride: int, pytestconfig) -> range:
    """The numbers to try: all with `--thorough`, else one of `stride`, by the number of the commit.

    So that with the commits all have their turn.
    """
    if pytestconfig.getoption("thorough"):
        return numbers
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return numbers[int(done.stdout or "0", 16) % stride :: stride]  # 0 outside a repository


def kill(operation: Operation) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def takes_space(operation: Operation) -> bool:
    """Return whether a full disk refuses an operation; it refuses no deletion and no renaming."""
    return operation.call in ("mkdir", "write", "fsync") or bool(operation.flags & os.O_CREAT)


def fail(code: int) -> Before:
    def act(operation: Operation) -> None:
        raise OSError(code, os.strerror(code))

    return act


# ------------------------------------------------------------------ power failures

FOLDER = "a folder"  # what a name stands for, where that is no File
GONE = "nothing"

# What is found in a folder: the contents of files, or FOLDER, by path relative to it.
Tree = dict[Path, Union[bytes, str]]


class File:
    """The contents of a file: as a program reads them, and as they are forced to the disk."""

    def __init__(self, contents: bytes = b""):
        self.written = self.forced = contents

    def left(self) -> set[bytes]:
        """Return the contents that a power failure may leave after the last fsync: see `Disk`."""
        if self.written == self.forced:
            return {self.forced}
        size = len(self.written)
        return {self.forced, self.written[: size // 2], self.written, bytes(size)}


class Disk:
    """A folder on a disk that keeps no more than POSIX promises.

    What is written to a file is certain after an fsync of that file; until then nothing of it may
    have come, half, all, or only its size, filled with zeros.
    What is done to names (create, rename, delete, make a folder) is certain after an fsync of the
    folder they are in; until then each change may have come to the disk or not, whatever became
    of the others, earlier and later. A rename comes as a whole or not at all.
    """

    def __init__(self, folder: Path):
        """Start with what is there now, all of it certain."""
        self.names = {  # path -> File or FOLDER, as a program sees them
            path: File(contents) if isinstance(contents, bytes) else contents
            for path, contents in tree_of(folder).items()
        }
        self.forced = dict(self.names)
        self.pending: list[dict] = []  # changes of names; each {path: what it now stands for}
        self.opened: dict[Path, Union[File, str]] = {}  # by the path at that time

    def apply(self, operation: Operation) -> None:
        path = operation.path
        if operation.call == "open":
            if operation.flags & os.O_CREAT and path not in self.names:
                self._change({path: File()})
            self.opened[path] = self.names[path]
            if operation.flags & os.O_TRUNC:
                self.opened[path].written = b""
        elif operation.call == "write":
            self.opened[path].written += operation.data
        elif operation.call == "fsync" and self.opened[path] is FOLDER:
            self._force(path)
        elif operation.call == "fsync":
            self.opened[path].forced = self.opened[path].written
        elif operation.call == "replace":
            self._change({path: GONE, operation.target: self.names[path]})
        elif operation.call == "unlink" and path in self.names:
            self._change({path: GONE})
        elif operation.call == "mkdir":
            self._change({path: FOLDER})

    def _change(self, change: dict) -> None:
        self.pending.append(change)
        self.names = _changed(self.names, [change])

    def _force(self, folder: Path) -> None:
        certain = [c for c in self.pending if any(path.parent == folder for path in c)]
        self.forced = _changed(self.forced, certain)
        self.pending = [change for change in self.pending if change not in certain]

    def seen(self) -> Tree:
        """Return the files that a program finds, as long as the power is on."""
        return {p: w.written if isinstance(w, File) else w for p, w in self.names.items()}

    def crashes(self) -> Iterator[Tree]:
        """All that may be found if the power fails now.

        Each subset of the pending changes, times what is left of each file. From more than ten
        pending changes 1,000 subsets are drawn, always the same; no history here has so many.
        """
        subsets: Iterable = itertools.product((False, True), repeat=len(self.pending))
        if len(self.pending) > 10:
            draw = random.Random(0)
            subsets = [draw.choices((False, True), k=len(self.pending)) for _ in range(1000)]
        for came in subsets:
            names = _changed(self.forced, itertools.compress(self.pending, came))
            names = {p: w for p, w in names.items() if _has_its_folders(p, names)}
            choices = [w.left() if isinstance(w, File) else {w} for w in names.values()]
            for contents in itertools.product(*choices):
                yield dict(zip(names, contents))


def _changed(names: dict, changes: Iterable[dict]) -> dict:
    names = dict(names)
    for change in changes:
        names.update(change)
    return {path: what for path, what in names.items() if what is not GONE}


def _has_its_folders(path: Path, names: dict) -> bool:
    return all(names.get(folder) is FOLDER for folder in path.parents)


def tree_of(folder: Path) -> Tree:
    return {
        path.relative_to(folder): FOLDER if path.is_dir() else path.read_bytes()
        for path in (folder, *folder.rglob("*"))
    }


def lay_out(tree: Tree, folder: Path) -> Path:
    """Write a tree to a folder that is not there yet."""
    for path, contents in sorted(tree.items()):
        if contents is FOLDER:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(contents)
    return folder

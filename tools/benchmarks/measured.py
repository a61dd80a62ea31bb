"""The commit, date and machine of a measurement, and the tables whose code has changed since."""

import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from paddle_mnist.system.environment import usable_cpus

ROOT = Path(__file__).parents[2]
_TABLE = re.compile(r"<!-- benchmark ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
_MEASURED = re.compile(r", commit (\w+), date ([\d-]+)\.\n")


def machine() -> dict[str, str]:
    """Return the versions of the libraries that matter, the processor, the commit and the date."""
    versions = {"python": platform.python_version(), "cores": str(usable_cpus())}
    for name in ("paddlepaddle", "numpy", "torch", "lightning", "onnxruntime"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    models = []
    with contextlib.suppress(OSError):  # not on every system
        models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        **versions,
        "cpu": models[0] if models else platform.machine(),
        "blas": _blas_kernels(),
        "commit": _git("rev-parse", "--short=12", "HEAD").stdout.strip() or "unknown",
        "date": datetime.date.today().isoformat(),
    }


def _git(*words: str, root: Path = ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)


def _blas_kernels() -> str:
    """Return the kernels of NumPy's and SciPy's OpenBLAS, and whether the environment chose them.

    OPENBLAS_CORETYPE, where it is set, may make NumPy slower.
    """
    import numpy  # noqa: F401, whose library is to be looked at
    from threadpoolctl import threadpool_info

    libraries = [info for info in threadpool_info() if info["internal_api"] == "openblas"]
    kernels = " and ".join(sorted({str(info.get("architecture")) for info in libraries}))
    chosen = os.environ.get("OPENBLAS_CORETYPE")
    return f"{kernels or 'no OpenBLAS'}, OPENBLAS_CORETYPE {chosen or 'not set'}"


def stale_tables(
    pages: Sequence[Path], code: Mapping[str, Sequence[str]], root: Path = ROOT
) -> Iterator[str]:
    """Yield a line for each table that is older than the code that it measured.

    code: the files and folders of the repository that decide a table's figures, by its name.
    """
    for page in pages:
        for name, table in _TABLE.findall(page.read_text("utf-8")):
            if paths := code.get(name):
                measured = _MEASURED.search(table)
                reason = _changes(measured[1], paths, root) if measured else "without a commit"
                if reason:
                    when = f", measured on {measured[2]} at {measured[1]}" if measured else ""
                    yield f"{page.name}: {name}{when}: {reason}"


def stale_results(folder: Path, code: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each stored result of a claim that is older than the code that decides it.

    code: as for `stale_tables`, by the names of the claims.
    """
    for name, paths in code.items():
        path = folder / f"{name}.json"
        if paths and path.exists():
            measured = json.loads(path.read_text("utf-8"))["measured"]
            if reason := _changes(measured["commit"], paths, ROOT):
                when = f"measured on {measured['date']} at {measured['commit']}"
                yield f"{path.name}, {when}: {reason}"


def _changes(commit: str, paths: Sequence[str], root: Path) -> str:
    """Return which files have changed since a commit, "" for none."""
    done = _git("diff", "--name-only", commit, "--", *paths, root=root)
    if done.returncode:
        return f"git knows no such commit ({done.stderr.splitlines()[0]})"
    changed = done.stdout.splitlines()
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{changed[0]}{more} changed since" if changed else ""

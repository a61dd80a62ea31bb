"""The tables of the pages whose code has changed since they were measured.

A measured table ends with the commit and the date of its measurement (`benchmarks.machine`).
"""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TABLE = re.compile(r"<!-- benchmark ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
_MEASURED = re.compile(r", commit (\w+), date ([\d-]+)\.\n")


def stale_tables(
    pages: Sequence[Path], code: Mapping[str, Sequence[str]], root: Path = ROOT
) -> Iterator[str]:
    """Yield a line for each table that is older than the code that it measured.

    code: the modules and packages that decide the figures of a table, by its name.
    """
    for page in pages:
        for name, table in _TABLE.findall(page.read_text("utf-8")):
            if modules := code.get(name):
                measured = _MEASURED.search(table)
                paths = [_path(module, root) for module in modules]
                reason = _changes(measured[1], paths, root) if measured else "without a commit"
                if reason:
                    when = f", measured on {measured[2]} at {measured[1]}" if measured else ""
                    yield f"{page.name}: {name}{when}: {reason}"


def _path(module: str, root: Path) -> str:
    """Return the path of a module or package of `paddle_mnist`, or below `tools`."""
    parts = module.split(".")
    path = Path(*parts) if parts[0] == "paddle_mnist" else Path("tools", *parts)
    return path.as_posix() if (root / path).is_dir() else f"{path.as_posix()}.py"


def _changes(commit: str, paths: Sequence[str], root: Path) -> str:
    """Return which files changed since a commit, in words; "" if none did."""
    command = ["git", "diff", "--name-only", commit, "--", *paths]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        return f"git knows no such commit ({done.stderr.splitlines()[0]})"
    changed = done.stdout.splitlines()
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{changed[0]}{more} changed since" if changed else ""

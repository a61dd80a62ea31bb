#!/usr/bin/env python
"""List the Chinese pages whose English page has changed since they were translated.

The last line of a Chinese page, `<!-- en: COMMIT -->`, names the commit whose English page it
follows. A later commit that changes both pages keeps them together; one that changes only the
English page is listed. Once the Chinese page has caught up, put the English page's newest commit
there.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AT_THE_ROOT = {"README.zh-CN.md": "README.md", "docs/zh/reproduction.md": "REPRODUCTION.md"}
MARK = re.compile(r"^<!-- en: ([0-9a-f]{7,40}) -->$", re.M)


def translations(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each Chinese page and the English one that it follows; some have no English page."""
    pages = [*root.glob("README.zh-CN.md"), *sorted((root / "docs/zh").glob("*.md"))]
    for page in pages:
        name = page.relative_to(root).as_posix()
        english = AT_THE_ROOT.get(name, name.replace("docs/zh", "docs/en"))
        if (root / english).exists():
            yield name, english


def behind(root: Path) -> Iterator[str]:
    """Yield a line for each Chinese page without a mark, or behind its English page."""
    for page, english in translations(root):
        marked = MARK.search((root / page).read_text("utf-8"))
        if marked is None:
            yield f"{page}: no mark <!-- en: COMMIT -->"
            continue
        commits = _commits(root, marked[1], english)
        missed = [commit for commit in commits if commit not in _commits(root, marked[1], page)]
        if missed:
            yield f"{page}: {english} has changed in {', '.join(missed)}"


def _commits(root: Path, since: str, path: str) -> list[str]:
    """Return the commits after `since` that change a file, newest first."""
    command = ["git", "log", "--format=%h", f"{since}..HEAD", "--", path]
    log = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return log.stdout.split()


if __name__ == "__main__":
    lines = list(behind(ROOT))
    print("\n".join(lines) or "each Chinese page follows its English page")
    sys.exit(bool(lines))

#!/usr/bin/env python
"""List the Chinese pages whose English page has changed since they were translated.

The last line of a Chinese page, `<!-- en: COMMIT -->`, names the commit whose English page it
follows. A later commit that changes both pages keeps them together; one that changes only the
English page is listed. Once the Chinese pages have caught up, `--mark` writes the newest commits of
their English pages into those that are listed.
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


def behind(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each Chinese page without a valid mark or behind its English page: both, and why."""
    for page, english in translations(root):
        marked = MARK.search((root / page).read_text("utf-8"))
        if marked is None:
            yield page, english, "no mark <!-- en: COMMIT -->"
        elif not _git(root, "rev-parse", "--quiet", "--verify", f"{marked[1]}^{{commit}}"):
            yield page, english, f"commit {marked[1]} is unknown"
        else:
            commits = _commits(root, english, f"{marked[1]}..HEAD")
            both = _commits(root, page, f"{marked[1]}..HEAD")
            if missed := [commit for commit in commits if commit not in both]:
                yield page, english, f"{english} has changed in {', '.join(missed)}"


def mark(root: Path, page: str, english: str) -> None:
    """Write the newest commit of the English page into the Chinese page."""
    text = MARK.sub("", (root / page).read_text("utf-8")).rstrip()
    newest = _commits(root, english, "HEAD")[0]
    (root / page).write_text(f"{text}\n\n<!-- en: {newest} -->\n", "utf-8")


def _commits(root: Path, path: str, revisions: str) -> list[str]:
    """Return the commits that change a file, newest first."""
    return _git(root, "log", "--format=%h", revisions, "--", path).split()


def _git(root: Path, *words: str) -> str:
    """Return what git prints; nothing if it fails."""
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    pages = list(behind(ROOT))
    for page, english, why in pages:
        print(f"{page}: {why}")
        if "--mark" in sys.argv:
            mark(ROOT, page, english)
    if not pages:
        print("each Chinese page follows its English page")
    sys.exit(bool(pages) and "--mark" not in sys.argv)
